"""Sensors: the planner starts the jobs of a mirror, the health sensor probes the nodes.

planner         the sensor of a mirror: one snapshot, then lane by lane
lane_plan       what a tick finds of one lane
run_requests    whether the job of a lane is requested
planner_cursor  what it remembers from tick to tick
evaluations     the evaluations of checks that it reports
health          the sensor of a mirror's source nodes
source_events   reports how far the source topics have grown
pruning         deletes old windows and their runs
"""
