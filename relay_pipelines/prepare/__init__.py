"""What a run checks and changes at the destination before it copies.

prepared_snapshot   takes the snapshot of a run: records where new topics start, accepts losses
edits_taken_back    decides again where a run used an edit that is taken back
losses              moves the checkpoint past a loss that is accepted
checkpoint_moves    commits a moved checkpoint, with a ledger entry
topics              creates missing topics, adds partitions
topic_configs       compares and sets topic configurations
owners              claims topic-partitions for the ids under which the run copies them
node_quarantine     puts a diverged node into quarantine
permissions         which permissions are missing for all of this
"""
