"""What users see. Results go to stdout; progress, warnings and errors go to stderr.

formatting    consoles; numbers, sizes, durations and times as text
messages      the lines of errors and warnings, and JSON documents
tables        the tables of the commands
json_output   the documents that `--json` prints
progress      the progress of a run: bars in a terminal, lines elsewhere
watching      the view of `relay status --watch`
audit_page    the report of an audit as an HTML page
"""
