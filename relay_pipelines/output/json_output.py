"""The documents of which the tables are views, and which `--json` prints.

Their keys are stable, times are in ISO 8601, sizes in bytes.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from relay_pipelines.errors import RelayError
from relay_pipelines.finding import Finding
from relay_pipelines.ledger.ledger_topic import LedgerRecord
from relay_pipelines.model import Checkpoint
from relay_pipelines.output.formatting import format_time
from relay_pipelines.page.held import Held
from relay_pipelines.page.look import Look
from relay_pipelines.page.page import Page
from relay_pipelines.plan.acl_decisions import State
from relay_pipelines.plan.positions import Position, open_since
from relay_pipelines.plan.upstreams import UpstreamSelection
from relay_pipelines.prepare import topics
from relay_pipelines.prepare.permissions import AclReport
from relay_pipelines.run.result import RunResult
from relay_pipelines.run.run_plan import RunPlan
from relay_pipelines.snapshot.lag import PartitionLag, Rate, total, total_rate

Document = dict[str, Any]


def upstreams(mirror: str, selection: UpstreamSelection) -> Document:
    """Return the state of every upstream, and which one is read."""
    return {
        "mirror": mirror,
        "chosen": selection.name,
        "why": selection.why,
        "upstreams": [
            {
                "upstream": state.name,
                "bootstrap_servers": list(state.cluster.bootstrap_servers),
                "reachable": state.error is None,
                "latency_ms": round(state.latency_ms, 1),
                "end_offsets": None if state.error else sum(log.end for log in state.logs.values()),
                "behind_by": state.behind if state.eligible else None,
                "eligible": state.eligible,
                "healthy": state.healthy,
                "why": state.why,
                "unanswered": {str(tp): why for tp, why in sorted(state.unanswered.items())},
                "leaderless": list(map(str, sorted(state.leaderless))),
            }
            for state in selection.upstreams
        ],
    }


def plan(planned: RunPlan, findings: Iterable[Finding], now_ms: int) -> Document:
    """Return what a run would copy, what open transactions hold up, and why topics are copied.

    Args:
        findings: what deserves attention.
    """
    snapshot = planned.snapshot
    new = dict.fromkeys(topic.name for topic in topics.missing(snapshot))
    return {
        "mirror": snapshot.name,
        "upstream": snapshot.upstream.name,
        "from": str(snapshot.upstream),
        "to": str(snapshot.destination),
        "windows": [
            {
                "topic": topic,
                "destination": str(snapshot.targets[topic]),
                "creates_topic": snapshot.targets[topic].topic in new,
                "records": sum(map(len, ranges)),
                "bytes": planned.size_bytes(ranges),
                "seconds": round(planned.seconds(ranges), 3),
                "ranges": [
                    {
                        "partition": offsets.topic_partition.partition,
                        "start": offsets.start,
                        "end": offsets.end,
                    }
                    for offsets in ranges
                ],
            }
            for topic, ranges in planned.by_topic.items()
        ],
        "open_transactions": [
            {
                "topic": position.topic_partition.topic,
                "partition": position.topic_partition.partition,
                "last_stable_offset": position.end_offset,
                "high_watermark": position.high_watermark,
                **transaction,
            }
            for position in snapshot.positions
            if (transaction := _open_transaction(position, now_ms))
        ],
        "to_be_created": list(new),
        "to_grow": topics.to_grow(snapshot),
        "findings": [finding.document for finding in findings],
        "topics": [
            {
                "topic": decision.topic,
                "included": decision.included,
                "why": decision.why,
                "destination": str(snapshot.targets.get(decision.topic, "")) or None,
            }
            for decision in snapshot.selected.decisions
        ],
    }


def page(shown: Page) -> Document:
    """Return the page of a mirror; while nothing is known of it, its numbers are null."""
    since, copier, known = shown.since_ms, shown.copier, not shown.error
    return {
        "mirror": shown.mirror,
        "state": str(shown.state),
        "error": shown.error or None,
        "since": None if since is None else format_time(since),
        "held": [_held(each) for each in shown.held],
        **_lag(shown.lag if known else None),
        "open_transaction_records": shown.opened.records if known else None,
        "upstream": shown.upstream or None,
        "upstream_behind": shown.upstream_behind if known else None,
        "copied_by": copier
        and {
            "run_id": copier.run_id,
            "upstream": copier.upstream,
            "committed_at": format_time(copier.committed_at_ms),
        },
        "findings": [finding.document for finding in shown.findings],
        "command": shown.command or None,
        "runbook": shown.runbook or None,
    }


def outage(shown: Page) -> Document:
    """Return what changes in a document while a cluster does not answer."""
    document = page(shown)
    return {
        key: document[key] for key in ("mirror", "state", "error", "since", "command", "runbook")
    }


def _held(held: Held) -> Document:
    document = dataclasses.asdict(held) | _lag(held.lag)
    del document["lag"]
    return document | {"topic_partitions": [*map(str, held.topic_partitions)]}


def status(look: Look, shown: Page, replays: Sequence[Document] = ()) -> Document:
    """Return the page, the progress of every topic-partition, and of every replay.

    Topics of which something is held back come first.
    """
    snapshot, now_ms = look.snapshot, look.taken_ms
    topics = []
    for topic, destination in snapshot.targets.items():
        positions = snapshot.positions_of(topic)
        topics.append(
            {
                "topic": topic,
                "destination": str(destination),
                **_lag(total(look.lags[position.topic_partition] for position in positions)),
                "open_transaction_records": _open_records(positions),
                "topic_partitions": [
                    _position(
                        position,
                        snapshot.checkpoints.get(position.topic_partition),
                        look.lags[position.topic_partition],
                        snapshot.held.get(position.topic_partition),
                        now_ms,
                    )
                    for position in positions
                ],
            }
        )
    topics.sort(key=lambda topic: not any(each["problem"] for each in topic["topic_partitions"]))
    return {
        **page(shown),
        "topics": topics,
        "hidden": [
            {
                "topic": each.hidden.topic_partition.topic,
                "partition": each.hidden.topic_partition.partition,
                "start": each.hidden.start,
                "end": each.hidden.end,
                "producer_id": each.producer_id,
                "transactional_id": each.transactional_id,
                "seconds": each.seconds(now_ms),
                "problem": str(each.error(snapshot.destination, now_ms)),
            }
            for each in look.hidden
        ],
        "replays": list(replays),
    }


def watched(look: Look, shown: Page, rates: Mapping[str, Rate]) -> Document:
    """Return the status, with the rates of the mirror and of its topics."""
    document = status(look, shown)
    for topic in document["topics"]:
        topic.update(_rate(rates.get(topic["topic"], Rate()), topic["lag_records"]))
        topic["committed_at"] = _last_commit(topic["topic_partitions"])
    document["committed_at"] = _last_commit(document["topics"])
    return document | _rate(total_rate(rates.values()), document["lag_records"])


def acls(mirror: str, report: AclReport, *, applied: bool) -> Document:
    """Return what the mirror does with every ACL of the source."""
    return {
        "mirror": mirror,
        "applied": applied,
        "without_authorizer": list(report.unsecured),
        "without_acls_before": list(report.first),
        "acls": [
            {
                "topic": decision.acl.resource,
                "permission": decision.acl.permission.name,
                "operation": decision.acl.operation.name,
                "principal": decision.acl.principal,
                "host": decision.acl.host,
                "state": "created"
                if applied and decision.state is State.MISSING
                else str(decision.state),
                "why": decision.why,
                "source": str(decision.source_acl),
            }
            for decision in report.decisions
        ],
    }


def run(result: RunResult, now_ms: int) -> Document:
    """Return what a run has copied, and what failed."""
    return {
        "mirror": result.mirror,
        "run_id": result.run_id,
        "ended_at": format_time(now_ms),
        "records": result.records,
        "bytes": result.size_bytes,
        "seconds": round(result.seconds, 3),
        "copying_seconds": round(result.copying_seconds, 3),
        "spark": result.spark,
        "throttled_seconds": {
            side: round(waited, 3) for side, waited in result.throttled_seconds.items()
        },
        "interrupted": result.interrupted,
        "topics": [
            {
                "topic": topic,
                "records": totals.records,
                "bytes": totals.size_bytes,
                "chunks": totals.chunks,
                "reencoded": totals.reencoded,
                "skipped": dict(totals.skipped),
                "upstreams": sorted(totals.upstreams),
                "code": sorted(totals.code),
            }
            for topic, totals in sorted(result.topics.items())
        ],
        "configs_changed": [change.done for change in result.reconfigured],
        "failures": result.failures,
    }


def entry(record: LedgerRecord) -> Document:
    """Return one committed chunk."""
    entry = record.entry
    return dataclasses.asdict(entry) | {
        "committed_at": format_time(entry.committed_at_ms),
        "hash": record.head.hash,
        "ledger_partition": record.at.partition,
        "ledger_offset": record.offset,
    }


def _open_records(positions: Iterable[Position]) -> int:
    return sum(position.open_records for position in positions)


def _open_transaction(position: Position, now_ms: int) -> Document | None:
    if not position.open_records:
        return None
    since_ms = position.open_since_ms
    return {
        "records": position.open_records,
        "since": None if since_ms is None else format_time(since_ms),
        "seconds": open_since([position], now_ms),
    }


def _rate(rate: Rate, lag: int) -> Document:
    """Return records per second, and the time to copy the lag; null if it grows."""
    left = rate.seconds_left(lag)
    return {
        "source_rate": round(rate.source, 1),
        "copy_rate": round(rate.copied, 1),
        "seconds_left": None if left is None else round(left, 1),
    }


def _last_commit(documents: Iterable[Document]) -> str | None:
    return max(filter(None, (one["committed_at"] for one in documents)), default=None)


def _lag(lag: PartitionLag | None) -> Document:
    """Return records and the age of the oldest; null if unknown."""
    age = None if lag is None else lag.seconds
    return {
        "lag_records": None if lag is None else lag.records,
        "lag_seconds": None if age is None else round(age, 1),
    }


def _position(
    position: Position,
    checkpoint: Checkpoint | None,
    lag: PartitionLag,
    held: RelayError | None,
    now_ms: int,
) -> Document:
    copies = checkpoint.copies if checkpoint else None
    return {
        "partition": position.topic_partition.partition,
        "source_start": position.low_watermark,
        "source_end": position.end_offset,
        "high_watermark": position.high_watermark,
        "checkpoint": checkpoint.next_offset if checkpoint else None,
        "copies": str(copies.topic_partition) if copies else None,
        **_lag(lag),
        "open_transaction": _open_transaction(position, now_ms),
        "upstream": checkpoint.upstream if checkpoint else None,
        "committed_at": format_time(checkpoint.committed_at_ms) if checkpoint else None,
        "problem": None if held is None else str(held),
    }
