"""The driver of a run: looks at both clusters, plans, prepares the destination, has Spark copy, and watches it.

survey        what both clusters say, read once
topics        topics at the destination: made where missing, their limits
planning      from survey to ranges and tasks
follow        the ledger as it grows: progress
run           one mirror from survey to result
result        what a run did
recount       the count check: the destination against the ledger
signals       Ctrl-C and SIGTERM, between two commits
"""
