"""What both clusters look like now. Reads, never writes.

cluster_snapshot    all of it: topics, offsets, checkpoints, configurations, and what is held
read_clusters       reads it once, in the order that matters
watermarks          what the source holds of every topic-partition, and how far it is copied
upstream_selection  which upstream is read, and why
lost_checkpoints    checkpoints that are gone, or older than the ledger
configs             of what would be copied, and of all topics, for who compares them
state_topics        the topics of checkpoints and ledger, and what is wrong with them
shared_destinations  what other mirrors have copied to the same topic-partitions; loops
start_offsets       where topics start that were never copied
offsets_by_time     the offsets of a time span
hidden_copies       what readers do not see at the destination, as a transaction is open
lag                 how old the oldest uncopied record is; how fast topics grow and are copied
"""
