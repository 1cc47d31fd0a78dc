"""Sensors: the planner starts the jobs of a mirror, the health sensor probes the upstreams.

planner         the sensor of a mirror: one snapshot, then lane by lane
lane_plan       what a tick finds of one lane
run_requests    whether the job of a lane is requested
health          the sensor of a mirror's upstreams
said            what was reported, and is due again; the cursors
source_events   how far source topics have grown
unevaluated     what checks say of which nothing is known
tick_ends       how a tick fails, or is skipped
pruning         deletes old windows and their runs
"""
