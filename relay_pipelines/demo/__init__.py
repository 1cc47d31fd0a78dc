"""`relay demo` and `relay ui`: three Kafka clusters on this machine and a mirror between them.

scenario       the demo from beginning to end: copy, two kills, proof
shop           the clusters of a made-up web shop, its events and producers
proof          compares the clusters record by record; which upstream delivered what
reporter       the terminal output
moving         the demo of a move: over, back and over again
spark_cluster  a master and workers, of which one is killed
ui             `relay ui`: Dagster mirrors the same clusters
dagster        `relay` and `dagster dev` as processes that can be killed
"""

from __future__ import annotations

from relay_pipelines.demo.scenario import EVENTS, main

__all__ = ["EVENTS", "main"]
