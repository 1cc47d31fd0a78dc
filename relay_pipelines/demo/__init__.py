"""`relay demo` and `relay ui`: three Kafka clusters on this machine and a mirror between them.

scenario       the demo from beginning to end: copy, two kills, proof
environment    temporary folder, clusters, topics, relay.yaml
relay_process  `relay` as a process that can be killed
shop           the events of a made-up web shop and their producers
proof          reads the clusters and compares them record by record
provenance     which node delivered which records, from the ledger
reporter       the terminal output
ui             `relay ui`: Dagster mirrors the same clusters
dagster        `dagster dev` as a process, and its GraphQL
"""

from __future__ import annotations

from relay_pipelines.demo.scenario import EVENTS, main

__all__ = ["EVENTS", "main"]
