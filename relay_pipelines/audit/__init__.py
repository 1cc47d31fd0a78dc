"""Whether the destination is what the source was.

What an audit looks at, and what it says:

    request            what an audit is asked for
    selection          which ranges that means
    audit              an audit of a mirror: coverage, recount, comparison
    spark_job          its Spark jobs
    verdict            what was compared, and the one of five states that follows from it
    against_statement  compares a destination with a statement instead of the source

What it reads, each file by itself:

    coverage           what the ledger says about every source offset
    destination_topics  whether the topics with the copies are those that were written
    source_logs        whether the source's logs are those that were copied
    recount            counts the records of a range again, at the destination
    recount_parts      a range in parts, each of which a task counts
    chunk_count        what is at the destination of one chunk
    range_index        finds ranges by an offset
    uncopied           what the source has and the ledger does not
    retention          whether retention may have deleted the beginning of a log
    chunks             reads a chunk on both sides
    librdkafka         reads a chunk on both sides with another client
    comparison         compares it up to the first difference
    key_comparison     compares the records of each key, of a compacted topic
    difference         the records that differ, as text

Where people see it:

    command            the command `relay audit`
    tables, document   its tables, and what `--json` prints
    page               its HTML page
    metrics            its metrics
    dagster_run        an audit inside a Dagster run
    checks             the check `audit` of every mirrored topic
    jobs               the job that people launch, and what a schedule repeats
"""
