"""Sensors: the planner starts the jobs of a mirror, the health sensor probes the upstreams.

planner         the sensor of a mirror: one snapshot, then lane by lane
lane_plan       what a tick finds of one lane
run_requests    whether the job of a lane is requested
health          the sensor of a mirror's upstreams
source_events   what a tick reports: source topics that grew, checks, and what it remembers
tick_error      how a tick fails
pruning         deletes old windows and their runs
"""
