"""Jobs: one per lane, which the planner starts, and those that people start.

mirror_lane       copies a lane: one window, or one after the other
mirror_once       copies everything that is new, in one run
backfill_by_date  copies the records of a time span
replay            copies a range of a topic again, into another topic
audits            audits windows or dates, once or by a schedule
window_checks     runs the expectations of windows behind the copy
lane_run          cuts, freezes, copies and reports a window, for all of them
"""
