"""What watches: the planner cuts windows and asks for their runs, the health sensor looks at the nodes.

attempts    what became of a window so far, by its runs
planner     the sensor of a lane
health      the sensor of a mirror's nodes
"""
