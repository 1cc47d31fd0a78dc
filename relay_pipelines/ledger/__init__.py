"""What a mirror keeps at the destination beside the records, and how it is verified.

An entry says what one committed chunk is: source offsets, destination offsets, records, digest,
upstream, and the hash of the entry before it. The transaction that copies a chunk writes its entry
and its checkpoint, too (`copy/transaction.py`); what else moves a checkpoint writes an entry that
says why (`prepare/checkpoint_moves.py`). No other module writes here. Audits, replays, statements
and windows read only what `verified` and `committed` have verified.

    followed         what this process has read of compacted topics
    checkpoint       the records of the topic of checkpoints: their keys, and what they say
    state_table      what that topic holds, of one mirror, of its replays, or of all
    last_checkpoint  what a task reads that has taken a transactional id over
    ledger_topic     the entries: how they are encoded, and chained
    reader           reads the checkpoints of a mirror, and the ledger: onward, back, as it grows
    fencing          takes a transactional id over, and commits what a driver decides under it

    chain            whether entries are those that were committed
    verified         reads a mirror's ledger, and verifies its chains
    committed        what windows, or the last hours, have copied, back from the heads
    chunk_copies     where chunks are on each side, without the records of others
    offset_runs      which offsets of a chunk have a copy, or are copies, in few bytes
    offset_map       which destination offset is the copy of which source offset
    statement        what a ledger said at some time
    ledger_columns   entries as a table
"""
