"""Compares the destination with the ledger, and with the source.

coverage           what the ledger says about every source offset
selection          what to audit: a topic, a window, offsets, dates
range_index        finds ranges by an offset
recount            counts the records of a range again, at the destination
chunk_count        what is at the destination of one chunk
retention          whether retention may have deleted the beginning of a log
recount_parts      a range in parts, each of which a task counts
accounted          the destination offsets of which the ledger has every entry
audit              an audit of a mirror: coverage, recount, comparison
audit_job          the Spark jobs of the comparison
chunks             reads a chunk on both sides
librdkafka         reads a chunk on both sides with another client
comparison         compares it up to the first difference
key_comparison     compares the records of each key, of a compacted topic
difference         the records that differ, as text
chain              whether ledger entries are those that were committed
verified_ledger    reads a mirror's ledger, and verifies its chains
statement          what a ledger said at some time, signed if wanted
against_statement  compares a destination with a statement
"""
