"""What users see. Results go to stdout; progress, warnings and errors go to stderr.

formatting    consoles; numbers, sizes, durations and times as text
messages      the lines of errors and warnings, and JSON documents
tables        the tables of the commands
json_output   the documents that `--json` prints
progress      the progress of a run: bars in a terminal, lines elsewhere
watching      the view of `relay status --watch`
run_report    what the commands say about a plan, and about a run
page_view     the page of a mirror as text and as Markdown
html_page     reports as HTML pages
"""
