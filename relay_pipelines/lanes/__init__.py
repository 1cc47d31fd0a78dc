"""Lanes: topics whose windows are cut together, frozen in Dagster's event log, copied in one run.

lane            which topics form a lane
naming          names of assets, partitions, pools and tags in Dagster
topic_catalog   topics seen so far, so that loading the definitions makes no network calls
window_planner  cuts new offsets into windows
window_log      frozen windows in the event log: the planner writes them, runs read them
window_run      copies one frozen window and recounts it
run_log         logs the progress of a run
metadata        metadata of a topic's materialisation
"""
