"""`relay demo`: a mirror of two identical nodes; it is killed, then the node it reads; and the proof that nothing is missing.

events      the records of a made-up web shop
upstream    writes them to both nodes
scene       folder, clusters, topics, relay.yaml
command     the `relay` command as a process that can be killed
progress    what the ledger at the destination says
history     what there is before the mirror starts
middle      waits until a run is in the middle of its work
crash       kills a run there
failover    kills the node there that a run reads
origin      which node gave which records, from the ledger
reading     reads a cluster from end to end, with a client that is not ours
proof       compares two sides, record by record
telling     what people see
story       all of it in order
dagster     Dagster as a process, and its GraphQL
ui          `relay ui`: the same clusters, mirrored in the browser
"""

from __future__ import annotations

from relay_pipelines.demo.story import EVENTS, main

__all__ = ["EVENTS", "main"]
