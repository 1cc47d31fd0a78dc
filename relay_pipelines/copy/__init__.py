"""The copy: what runs inside a Spark task. Knows neither Spark nor Dagster; a test or a shell can run it alone.

task      several ranges over the same connections
copier    one range: attempts, chunks, commits
reader    the source's offsets as contiguous pieces
assembly  which batches go as they are, and which are merged or rewritten
producer  transactions at the destination
checkpoint, ledger   what is committed with the data
faults    named points where a test kills or stops the process
"""
