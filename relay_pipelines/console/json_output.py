"""What `--json` prints: plain mappings with stable keys, times in ISO 8601, sizes in bytes."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

from relay_pipelines.console.formatting import moment, open_since
from relay_pipelines.model import Checkpoint, LedgerEntry
from relay_pipelines.plan.acl_decisions import State
from relay_pipelines.plan.node_choice import NodeChoice
from relay_pipelines.plan.positions import Position, data_loss, lag_records
from relay_pipelines.prepare import topic_configs, topics
from relay_pipelines.prepare.reader_acls import AclReport
from relay_pipelines.run.run_plan import RunPlan
from relay_pipelines.snapshot.cluster_snapshot import ClusterSnapshot
from relay_pipelines.snapshot.node_selection import NodeState

Document = dict[str, Any]


def nodes(mirror: str, states: Sequence[NodeState], choice: NodeChoice) -> Document:
    """What every node answers, and which one is read."""
    return {
        "mirror": mirror,
        "chosen": choice.name,
        "why": choice.why,
        "nodes": [
            {
                "node": verdict.name,
                "bootstrap_servers": list(state.node.bootstrap_servers),
                "reachable": state.end_offsets is not None,
                "latency_ms": round(state.latency_ms, 1),
                "end_offsets": None
                if state.end_offsets is None
                else sum(state.end_offsets.values()),
                "behind_by": verdict.behind if verdict.eligible else None,
                "eligible": verdict.eligible,
                "healthy": verdict.healthy,
                "why": verdict.why,
            }
            for state, verdict in zip(states, choice.verdicts, strict=True)
        ],
    }


def plan(planned: RunPlan, now_ms: int) -> Document:
    """What a run would copy, what waits for open transactions, and why topics are in or out."""
    snapshot = planned.snapshot
    held_up = [one for one in snapshot.positions if one.open_transaction]
    return {
        "mirror": snapshot.mirror,
        "node": snapshot.node.name,
        "windows": [
            {
                "topic": window.topic,
                "destination": str(snapshot.targets[window.topic]),
                "records": planned.offsets(window),
                "bytes": planned.size_bytes(window),
                "seconds": round(planned.seconds(window), 3),
                "ranges": [
                    {"partition": one.topic_partition.partition, "start": one.start, "end": one.end}
                    for one in window.ranges
                ],
            }
            for window in planned.windows
        ],
        "open_transactions": [
            {"topic": one.topic_partition.topic, "partition": one.topic_partition.partition}
            | {"last_stable_offset": one.end_offset, "high_watermark": one.high_watermark}
            | (_open_transaction(one, now_ms) or {})
            for one in held_up
        ],
        "to_be_created": [one.name for one in topics.missing(snapshot)],
        "conflicts": topics.conflicts(snapshot),
        "config_differences": [
            dataclasses.asdict(one) for one in topic_configs.differences(snapshot)
        ],
        "deleted": dict(snapshot.deleted),
        "to_grow": topics.to_grow(snapshot),
        "too_few_partitions": topics.too_few_partitions(snapshot),
        "data_losses": [str(loss) for loss in planned.data_losses],
        "topics": [
            {"topic": one.topic, "included": one.included, "why": one.why}
            for one in snapshot.decisions
        ],
    }


def status(snapshot: ClusterSnapshot, now_ms: int) -> Document:
    """How far every topic-partition is copied."""
    lags = lag_records(snapshot.positions)
    found = []
    for topic, destination in snapshot.targets.items():
        own = snapshot.positions_of(topic)
        found.append(
            {
                "topic": topic,
                "destination": str(destination),
                "lag_records": sum(lags[one.topic_partition] for one in own),
                "open_transaction_records": sum(len(one.open_transaction) for one in own),
                "topic_partitions": [
                    _position(
                        one,
                        snapshot.checkpoints.get(one.topic_partition),
                        lags[one.topic_partition],
                        now_ms,
                    )
                    for one in own
                ],
            }
        )
    return {
        "mirror": snapshot.mirror,
        "node": snapshot.node.name,
        "lag_records": sum(lags.values()),
        "open_transaction_records": sum(len(one.open_transaction) for one in snapshot.positions),
        "topics": found,
        "deleted": dict(snapshot.deleted),
    }


def acls(mirror: str, report: AclReport, *, applied: bool) -> Document:
    """What becomes of the source's ACLs."""
    return {
        "mirror": mirror,
        "applied": applied,
        "without_authorizer": list(report.unsecured),
        "without_acls_before": list(report.first),
        "acls": [
            {
                "topic": one.acl.resource,
                "permission": one.acl.permission.name,
                "operation": one.acl.operation.name,
                "principal": one.acl.principal,
                "host": one.acl.host,
                "state": "created" if applied and one.state is State.MISSING else str(one.state),
                "why": one.why,
                "source": str(one.source_acl),
            }
            for one in report.decisions
        ],
    }


def problems(document: Mapping[str, Any]) -> list[str]:
    """Whatever holds a topic-partition of a status back."""
    return [
        one["problem"]
        for topic in document["topics"]
        for one in topic["topic_partitions"]
        if one["problem"]
    ]


def entry(one: LedgerEntry) -> Document:
    """One committed chunk."""
    return dataclasses.asdict(one) | {"committed_at": moment(one.committed_at_ms)}


def _open_transaction(position: Position, now_ms: int) -> Document | None:
    if not position.open_transaction:
        return None
    since_ms = position.open_since_ms
    return {
        "records": len(position.open_transaction),
        "since": None if since_ms is None else moment(since_ms),
        "seconds": open_since([position], now_ms),
    }


def _position(position: Position, checkpoint: Checkpoint | None, lag: int, now_ms: int) -> Document:
    loss = data_loss(position)
    return {
        "partition": position.topic_partition.partition,
        "source_start": position.low_watermark,
        "source_end": position.end_offset,
        "high_watermark": position.high_watermark,
        "checkpoint": checkpoint.next_offset if checkpoint else None,
        "lag_records": lag,
        "open_transaction": _open_transaction(position, now_ms),
        "node": checkpoint.node if checkpoint else None,
        "committed_at": moment(checkpoint.committed_at_ms) if checkpoint else None,
        "problem": None if loss is None else str(loss),
    }
