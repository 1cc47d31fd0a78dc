"""Sensors: the planner starts the job of a lane, the health sensor probes the nodes.

planner         the sensor of a lane
planner_cursor  what it remembers from tick to tick
evaluations     the evaluations of checks that it reports
health          the sensor of a mirror's source nodes
source_events   reports how far the source topics have grown
pruning         deletes old windows and their runs
"""
