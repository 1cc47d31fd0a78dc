"""Copies a range of a topic again, into another topic.

request        what a replay is asked for
own_mirror     the mirror of its own that it is
replay         plans and copies a replay, and shows those there are
replay_ranges  which offsets it reads
command        the command `relay replay`
job            the Dagster job
"""
