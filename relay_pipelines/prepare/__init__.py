"""What a run checks and changes at the destination before it copies.

prepared_snapshot   takes the snapshot of a run: records where new topics start, accepts losses
checkpoint_moves    commits a moved checkpoint, with a ledger entry
topics              creates missing topics, adds partitions
topic_configs       compares and sets topic configurations
findings            what deserves attention in a snapshot: said once, for all who show it
owners              claims topic-partitions for the ids of a run; quarantines an upstream
permissions         which permissions are missing for all of this
"""
