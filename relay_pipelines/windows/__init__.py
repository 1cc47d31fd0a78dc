"""The way of a window, from the tick that starts a run to the events that say what was copied.

`sensors/planner` requests a run of `jobs/mirror_lane`; a person's run begins in `assets/mirrored`.
Both come here:

    run_snapshot    takes the snapshot of a run, and writes what the run must know before it copies
    lane_run        cuts, freezes, copies and reports one window of a lane, then the next one
    cut             cuts what is new into a window
    window_run      copies one frozen window, and recounts it
    message_counts  the check that the destination holds exactly the records of a window
    expected        which chunks of a window its expectations look at
    window_checks   runs these expectations behind the copy
    window_events   what a window's copy tells Dagster
    metadata        metadata of a topic's materialisation

Between two windows:

    resting         topics that failed, which windows leave out for a while
    config_watch    whether relay.yaml has changed since a session has read it
"""
