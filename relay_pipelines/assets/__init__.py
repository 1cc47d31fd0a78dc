"""What Dagster shows as assets.

mirrored  the topics of a lane at the destination, and the op that copies a window of them
external  assets that Dagster only displays: source topics, windows and upstreams
"""
