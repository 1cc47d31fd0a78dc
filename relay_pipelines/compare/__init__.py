"""Whether two clusters hold the same, whoever has copied it: an audit without a ledger.

What is asked for, and what follows:

    request      what a comparison is asked for
    selection    finds the topics of both sides, and which logs are compared with each other
    pairs        the values between driver and tasks: a pair of logs, and what was found in it
    comparing    reads all pairs: what command, Python API and check call
    result       what was found in all of them, and the verdict

How records find each other, each file by itself:

    alignment    names what happened to each record of two stretches
    reading      reads both sides, at a limited rate
    in_order     compares two topic-partitions in order
    by_key       compares all partitions of a topic key by key, or as a multiset
    tasks        does that in a task, or with Spark's shuffle
    commits      what groups have committed on both sides

Where people see it:

    command      the command `relay compare`
    report       its tables, and what `--json` prints
    page         its HTML page
    checks       a check of any asset
"""
