"""Where consumers go on at the other side: offsets translated exactly, by the ledger.

positions    offsets that consumers have reached, and the answers
translation  from one to the other, by the entries of a mirror: no I/O
translate    reads what a translation needs from the destination, and groups' offsets
apply        commits for groups what was translated
verify       compares the records around positions on both sides
request      what the command is asked for, and its files
command      the command `relay offsets`
"""
