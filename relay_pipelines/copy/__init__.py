"""The copy: what runs inside a Spark task. Knows neither Spark nor Dagster; a test or a shell can run it alone.

A batch goes down this list:

task                        several ranges over the same connections, an outcome each
copier                      the loop over one range: attempts, chunks, deadline, commit
sources, row_batches        where the loop pulls its batches from: a node, or rows
failover, position, reader  which node is read, whether it holds what was copied, and its offsets as
contiguous spans batching, filtering, kept_offsets   which batches go as they are, and which are
decoded, filtered and merged chunk                       what the open transaction copies
transaction, producer       records, checkpoint and ledger entry in one transaction checkpoint,
ledger          what is committed with the data row_reader, row_stream, columns, transforming
records as rows, for SQL throttle, backoff, clock, faults    time, and the named points at which a
test kills or stops the process
"""
