"""Counters of committed chunks. Counts come from the ledger, so they hold even if tasks died."""

from __future__ import annotations

from prometheus_client import CollectorRegistry

from relay_pipelines.metrics.catalog import collector, metric
from relay_pipelines.model import LedgerEntry, Skipped

COMMITTED = (
    "messages_relayed_total",
    "msg_count",
    "consumed_messages_total",
    "produced_messages_total",
    "messages_rewritten_total",
    "offsets_skipped_total",
    "bytes_relayed_total",
)


class CommittedCounters:
    """Counts the entries of a ledger."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self._metrics = {name: collector(metric(name), registry) for name in COMMITTED}

    def count(self, entry: LedgerEntry, *, by_partition: bool = True) -> None:
        """Count a chunk.

        Args:
            by_partition: whether to name partitions; otherwise, their label is empty.
        """
        metrics = self._metrics
        source, target = entry.source.topic_partition, entry.destination.topic_partition
        here, there = (source.partition, target.partition) if by_partition else ("", "")
        metrics["messages_relayed_total"].labels(source.topic, here, target.topic, there).inc(
            entry.records
        )
        metrics["msg_count"].labels(source.topic, target.topic, here).inc(entry.records)
        metrics["consumed_messages_total"].labels(source.topic).inc(_consumed(entry))
        metrics["produced_messages_total"].labels(target.topic).inc(entry.records)
        metrics["messages_rewritten_total"].labels(source.topic).inc(entry.rewritten)
        metrics["bytes_relayed_total"].labels(source.topic, target.topic).inc(entry.size_bytes)
        for reason, offsets in entry.skipped.items():
            metrics["offsets_skipped_total"].labels(source.topic, reason).inc(offsets)


def _consumed(entry: LedgerEntry) -> int:
    return entry.records + sum(
        entry.skipped.get(reason, 0) for reason in (Skipped.FILTERED, Skipped.QUARANTINED)
    )
