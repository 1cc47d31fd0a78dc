"""Lanes: topics whose windows are cut together, frozen in Dagster's event log, copied in one run.

lane            which topics form a lane
assignment      which lane copies what belongs to one that is not loaded
naming          names of assets, windows, jobs, pools and tags in Dagster
topic_catalog   topics seen so far, so that loading the definitions makes no network calls
window_planner  cuts what is new into windows
window_log      frozen windows in the event log: runs write them, and those from the UI read them
run_snapshot    takes the snapshot of a run, and writes what the run must know before it copies
window_run      copies one frozen window and recounts it
audit_run       an audit inside a run, and its HTML page
resting         topics that failed, which windows leave out for a while
turns           who copies a lane now: a session, its successor, or a person's run
config_watch    whether relay.yaml has changed since a session has read it
stopping        how a run is stopped at the next commit
failing         failures that Dagster does not retry
run_log         logs the progress of a run
metadata        metadata of a topic's materialisation
"""
