"""Lanes and runs in Dagster: what assets, windows, jobs, sensors and checks have in common.

A lane is a group of topics whose windows are cut together and copied in one run.

    lane            which topics form a lane, and what a run of it is told
    naming          names of assets, windows, jobs, pools and tags in Dagster
    job_builder     builds jobs of one op, and the configuration of what they are asked for
    check_builder   builds checks, and the event that says what one has found
    topic_catalog   topics seen so far, so that loading the definitions makes no network calls
    shortcuts       what Dagster does too slowly for many topics, with one contract test
    window_log      frozen windows in the event log, which runs write and read

A run that copies:

    turns           the queue of the runs of a lane: who copies now
    heartbeat       how others see that a run lives
    run_tags        adds tags to a run while others do
    stopping        how a run is stopped at the next commit, or fails for good
    run_log         logs the progress of a run
"""
