"""Lanes: topics whose windows are cut together, frozen in Dagster's event log, and copied in one run.

keys        the names of everything in Dagster
lane        which topics make a lane
catalog     the topics that were seen, so that loading asks no cluster
windows     frozen windows in the event log: written by the planner, read by the copy
cutter      cuts what is new into windows
copying     one frozen window: copied, counted anew
progress    a run's progress in its log
metadata    what a materialisation tells
"""
