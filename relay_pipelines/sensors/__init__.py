"""Sensors: the planner cuts windows and requests runs, the health sensor probes the nodes.

planner        the sensor of a lane
health         the sensor of a mirror's source nodes
window_status  which topics of a window are missing, judged by its runs
pruning        deletes the runs of old windows
"""
