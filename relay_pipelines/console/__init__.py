"""What people see: words, tables, progress. Results go to stdout, all else to stderr.

words      consoles, numbers, sizes and times; the one line of an error
tables     what plan, status, ledger, check and the end of a run show
progress   a run under way: bars in a terminal, lines elsewhere
"""
