"""What Dagster shows as assets.

mirrored    the topics of a lane at the destination, and the op that copies a window of them
external    what is only reported: topics at the source, windows, nodes
"""
