"""Lanes and runs in Dagster: what assets, windows, jobs, sensors and checks have in common.

A lane is a group of topics whose windows are cut together and copied in one run.

    lane            which topics form a lane
    assignment      which lane copies what belongs to one that is not loaded
    naming          names of assets, windows, jobs, pools and tags in Dagster
    job_builder     builds jobs of one op, and the configuration of what they are asked for
    topic_catalog   topics seen so far, so that loading the definitions makes no network calls
    window_log      frozen windows in the event log, which runs write and read

A run that copies:

    turns           who copies a lane now: a session, its successor, or a person's run
    heartbeat       how others see that a run lives, and what it does
    stopping        how a run is stopped at the next commit
    failing         failures that Dagster does not retry
    run_log         logs the progress of a run
"""
