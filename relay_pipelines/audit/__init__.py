"""Whether the destination is what the source was.

What an audit looks at, and what it says:

    request            what an audit is asked for
    audit              an audit of a mirror: coverage, recount, comparison
    spark_job          its Spark jobs
    verdict            the tally of records, and the one of five states that follows from it
    against_statement  compares a destination with a statement instead of the source

What it reads, each file by itself:

    coverage           what the ledger says about every source offset, and which are audited
    source_logs        whether the source's logs are those that were copied
    claims             who may have written each destination offset, and what a count reads
    part_count         counts the records of a part at the destination
    recount            what was found, and what is wrong with it
    window_recount     counts what a window or a replay has copied
    retention          what is at the destination of a chunk, and what retention may have deleted
    chunks             reads a chunk on both sides
    comparison         compares it up to the first difference
    undecoded_sides    takes what is the same on both sides without decoding it
    key_comparison     compares the records of each key, of a compacted topic

Where people see it:

    command            the command `relay audit`
    report             its tables, and what `--json` prints
    metrics            its metrics
    page               its HTML page
    checks             an audit inside a Dagster run, and the check `audit` of a mirrored topic
    jobs               the job that people launch, and what a schedule repeats
"""
