"""Jobs: one per lane, which the planner starts, and those that people start.

mirror_lane       copies a lane: one window, or one after the other
mirror_once       copies everything that is new, in one run
backfill_by_date  copies the records of a time span

Those of a feature are in its folder: `audit/jobs.py`, `replay/job.py`.
"""
