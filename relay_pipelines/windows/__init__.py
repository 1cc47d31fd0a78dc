"""The way of a window, from the tick that starts a run to the events that say what was copied.

`sensors/planner` requests a run of `jobs/mirror_lane`; a person's run begins in `assets/mirrored`.
Both come here:

    run_snapshot    takes the snapshot of a run, and writes what the run must know before it copies
    lane_run        cuts, freezes, copies and reports one window of a lane, then the next one
    cut             cuts what is new into a window, without topics that have just failed
    window_run      copies one frozen window, and recounts it
    window_checks   runs the expectations of its topics behind the copy
    window_events   what it tells Dagster: materialisations, and the check `message_counts`

Between two windows:

    config_watch    whether relay.yaml has changed since a session has read it
"""
