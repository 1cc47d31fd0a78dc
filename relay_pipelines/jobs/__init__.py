"""Jobs that people start.

once      everything there is now, in one run
replan    cut windows now, and clear away those whose plan is gone
backfill  by date: freeze the windows of a time span, then backfill them
"""
