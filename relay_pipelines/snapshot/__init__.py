"""What both clusters look like now. Reads, never writes.

cluster_snapshot    all of it, read once: topics, offsets, checkpoints, configurations
watermarks          what the source holds of every topic-partition, and how far it is copied
node_selection      which node of the source is read, and why
lost_checkpoints    checkpoints that are gone, or older than the ledger
node_divergence     whether a node holds the last records that were copied
state_topics        the topics of checkpoints and ledger, and what is wrong with them
shared_destinations  what other mirrors have copied to the same topic-partitions
start_offsets       where topics start that were never copied
offsets_by_time     the offsets of a time span
loop_guard          refuses a mirror that would copy its own copies
hidden_copies       what readers do not see at the destination, as a transaction is open
lag                 how old the oldest record is that is not copied yet
rates               how fast topics grow and are copied, from one snapshot to the next
"""
