"""Where consumers go on at the other side: offsets translated exactly, by the ledger.

positions    offsets that consumers have reached, and the answers
translation  from one to the other, by the entries of a mirror: no I/O
translate    reads what a translation needs from the destination, and groups' offsets
followed_ledger  the translation of a mirror that copies: what is new of the ledger is read once
mark         tells what a mirror has committed for a group from what others have
group_look   how far groups of the source are followed at the destination
following    keeps groups up to date at the destination, until they move there
metrics      gauges of groups, for the exporter
checks       the check `group_offsets` in Dagster
apply        commits for groups what was translated
verify       compares the records around positions on both sides
request      what the command is asked for, and its files
command      the command `relay offsets`
"""
