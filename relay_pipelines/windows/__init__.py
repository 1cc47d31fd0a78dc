"""The way of a window, from the tick that starts a run to the events that say what was copied.

`sensors/planner` requests a run of `jobs/mirror_lane`, which copies what is new; a run by hand of
`assets/mirrored` copies a frozen window again. Both only decide when, and call `lane_run`, which
calls the others from top to bottom:

    lane_run        the way of a window of a lane, then of the next one
    run_snapshot    takes the snapshot of a run, and writes what the run must know before it copies
    cut             cuts what is new into a window, without topics that have just failed
    open_window     the window that is open: what was copied, and is not reported yet
    window_run      recounts a window, which one or several runs have copied
    window_checks   runs the expectations of its topics behind the copy
    failed_windows  which windows have failed, until later ones have copied what they left out
    schema_checks   compares the schemas of its records behind the copy
    window_events   what it tells Dagster: materialisations, and the check `message_counts`

Between two windows:

    config_watch    whether relay.yaml has changed since a session has read it
"""
