"""The copy: what a task runs to copy ranges of offsets from an upstream to the destination.

It knows neither Spark nor Dagster, so that a test can run it alone. A batch passes these modules
from top to bottom:

    task            copies several ranges over the same connections, and returns an outcome for each
    copier          the loop over one range: attempts, chunks, deadline, commit
    sources         what the loop pulls from: fetched spans, which become batches
      failover      the upstreams, one of which is read until it fails
      position      whether that upstream still holds the log that was copied
      batching      spans to batches: verbatim, or decoded, filtered and merged
      filtering     the user's filters, which leave records out
      kept_offsets  the offsets that a SQL predicate keeps, as such a filter
    row_batches     the other source: rows, which SQL or a transform returned, become batches
      row_reader    reads records as rows, before SQL
      row_stream    the rows after SQL, with the markers that account for every offset
      columns       records to Arrow columns, and back
      transforming  the user's transforms, which replace records
    chunk           portions, which the loop sends, and the chunk, which one transaction commits
    transaction     what the loop writes to: records, checkpoint and ledger entry in one transaction

    throttle        limits the bytes per second
    user_class      constructs the user's classes
    failpoints      points at which a test kills or stops the process
"""
