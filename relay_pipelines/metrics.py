"""Prometheus metrics of a run; names shared with kaf-relay and Kafka Topic Mirror mean the same.

Counts come from the ledger, so they are of committed records, even if tasks died.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import prometheus_client as prometheus
from prometheus_client import CollectorRegistry

from relay_pipelines import settings
from relay_pipelines.errors import ConfigError, RelayError, Side, error_class
from relay_pipelines.model import LedgerEntry, Outcome, Skipped, Status, TopicPartition
from relay_pipelines.plan.node_choice import NodeVerdict
from relay_pipelines.plan.positions import Position
from relay_pipelines.protocol.clock import Clock
from relay_pipelines.run.result import RunResult
from relay_pipelines.run.run_plan import RunPlan

PREFIX = "kafka_relay_"
_DURATIONS = (0.5, 1, 2, 5, 10, 30, 60, 120, 300, 600, 1800, 3600)


@dataclass(frozen=True, slots=True)
class Metric:
    """One metric; `name` has no prefix, `kind` is a type of Prometheus."""

    name: str
    kind: str
    labels: tuple[str, ...]
    meaning: str


METRICS = (
    Metric(
        "messages_relayed_total",
        "counter",
        ("source_topic", "source_partition", "target_topic", "target_partition"),
        "Records committed at the destination.",
    ),
    Metric(
        "msg_count",
        "gauge",  # a Counter's name would have to end in _total
        ("source", "destination", "partition"),
        "The same by topic names and source partition, under an older name; it only grows.",
    ),
    Metric(
        "consumed_messages_total",
        "counter",
        ("topic",),
        "Records read from the source topic, in committed chunks.",
    ),
    Metric(
        "produced_messages_total",
        "counter",
        ("topic",),
        "Records committed to the destination topic.",
    ),
    Metric(
        "messages_rewritten_total",
        "counter",
        ("topic",),
        "Committed records that were decoded and encoded again.",
    ),
    Metric(
        "offsets_skipped_total",
        "counter",
        ("topic", "reason"),
        "Source offsets without a record at the destination. Reasons:"
        " control (transaction markers), aborted, compaction_gap (compaction has removed the record"
        " at the source), filtered, quarantined, lost (an accepted loss).",
    ),
    Metric(
        "bytes_relayed_total",
        "counter",
        ("source_topic", "target_topic"),
        "Bytes of the committed record batches.",
    ),
    Metric(
        "source_highwatermark",
        "gauge",
        ("node_id",),
        "Sum of the high watermarks of all mirrored topic-partitions on the node"
        " at the start of the run.",
    ),
    Metric(
        "lag_records",
        "gauge",
        ("mirror", "topic", "partition"),
        "Source offsets that are not copied yet, up to the end of the run.",
    ),
    Metric(
        "open_transaction_records",
        "gauge",
        ("mirror", "topic", "partition"),
        "Source offsets between last stable offset and high watermark at the start of the run.",
    ),
    Metric(
        "open_transaction_seconds",
        "gauge",
        ("mirror", "topic", "partition"),
        "Age of the first record of the open transaction at the start of the run; 0 if none.",
    ),
    Metric(
        "source_errors_total",
        "counter",
        ("node_id", "error"),
        "Failures of ranges or runs caused by the source, by error class.",
    ),
    Metric(
        "source_candidate_switches_total",
        "counter",
        ("node_id",),
        "How often reading switched to this node, between runs or within a range.",
    ),
    Metric(
        "source_unhealthy_total",
        "counter",
        ("node_id",),
        "How often the node was unreadable at the start of a run.",
    ),
    Metric(
        "source_lag_threshold_exceeded_total",
        "counter",
        ("node_id",),
        "How often the node exceeded lag_threshold at the start of a run.",
    ),
    Metric(
        "source_quarantined",
        "gauge",
        ("node_id",),
        "1 while the node is in quarantine, because its records differ from those copied.",
    ),
    Metric(
        "target_errors_total",
        "counter",
        ("error",),
        "Failures of ranges or runs caused by the destination, by error class.",
    ),
    Metric(
        "failures_total",
        "counter",
        ("mirror", "error"),
        "All failures of ranges or runs, by error class.",
    ),
    Metric(
        "window_duration_seconds",
        "histogram",
        ("mirror",),
        "Time to copy the windows of a run, without the start of Spark; only runs that copy count.",
    ),
    Metric(
        "commit_duration_seconds",
        "summary",
        ("mirror",),
        "Time to commit a chunk: checkpoint, ledger entry and end of the transaction."
        " Set when a run ends.",
    ),
    Metric(
        "last_success_timestamp_seconds",
        "gauge",
        ("mirror",),
        "End of the last successful run of this process, in seconds since 1970;"
        " absent before the first.",
    ),
    Metric(
        "last_commit_timestamp_seconds",
        "gauge",
        ("mirror",),
        "Time of the last commit by any run, in seconds since 1970; absent before the first.",
    ),
)


class MetricsObserver:
    """Updates the metrics of the runs that it observes, in its own registry."""

    def __init__(self, clock: Clock) -> None:
        self.registry = CollectorRegistry()
        self._clock = clock
        self._metrics = {metric.name: _collector(metric, self.registry) for metric in METRICS}
        self._ends: dict[str, Counter[str]] = {}
        self._last_commits_ms: dict[str, int] = {}
        self._node = ""

    def begin(self, plan: RunPlan) -> None:
        """Set end offsets, lags and the last commit from the plan."""
        snapshot = plan.snapshot
        self._node = snapshot.node.name
        self._ends[snapshot.mirror] = Counter(
            {
                self._node: sum(
                    max(position.end_offset, position.high_watermark)
                    for position in snapshot.positions
                )
            }
        )
        for node, total in sum(self._ends.values(), Counter[str]()).items():
            self._metrics["source_highwatermark"].labels(node).set(total)
        lags = {
            offsets.topic_partition: len(offsets)
            for window in plan.windows
            for offsets in window.ranges
        }
        for position in snapshot.positions:
            self._lag(snapshot.mirror, position.topic_partition).set(
                lags.get(position.topic_partition, 0)
            )
            self._open_transaction(snapshot.mirror, position)
        for checkpoint in snapshot.checkpoints.values():
            self._last_commit(snapshot.mirror, checkpoint.committed_at_ms)
        if snapshot.previous_node:
            self._metrics["source_candidate_switches_total"].labels(self._node).inc()
        for verdict in snapshot.verdicts:
            self._verdict(verdict)

    def committed(self, entries: Sequence[LedgerEntry]) -> None:
        """Count committed chunks."""
        for entry in entries:
            self._count(entry)

    def end(self, result: RunResult) -> None:
        """Count failures, and observe durations that are known at the end of a run."""
        for error in result.errors:
            self.failed(result.mirror, type(error).__name__, self._node)
        for outcome in result.outcomes:
            self._outcome(result.mirror, outcome)
        for node in result.diverged:
            self._metrics["source_quarantined"].labels(node).set(1)
        if result.copying_seconds:
            self._metrics["window_duration_seconds"].labels(result.mirror).observe(
                result.copying_seconds
            )
        if result.exit_code == 0:
            self._metrics["last_success_timestamp_seconds"].labels(result.mirror).set(
                self._clock.now_ms() / 1000
            )

    def failed(self, mirror: str, error: str, node: str = "") -> None:
        """Count a failure.

        Args:
            error: the class name of the error.
            node: the source node that was read; empty if there was none yet.
        """
        self._metrics["failures_total"].labels(mirror, error).inc()
        side = error_class(error).side
        if side is Side.SOURCE:
            self._metrics["source_errors_total"].labels(node, error).inc()
        elif side is Side.DESTINATION:
            self._metrics["target_errors_total"].labels(error).inc()

    def write(self, configured: settings.Metrics) -> None:
        """Write the file, if there is to be one.

        Raises:
            RelayError: it cannot be written.
        """
        if configured.textfile is None:
            return
        try:
            prometheus.write_to_textfile(str(configured.textfile), self.registry)
        except OSError as error:
            raise RelayError(
                f"metrics cannot be written to {configured.textfile}: {error.strerror or error}",
                remedy="set metrics.textfile to a writable file",
            ) from error

    def _count(self, entry: LedgerEntry) -> None:
        metrics = self._metrics
        source, target = entry.source.topic_partition, entry.destination.topic_partition
        metrics["messages_relayed_total"].labels(
            source.topic, source.partition, target.topic, target.partition
        ).inc(entry.records)
        metrics["msg_count"].labels(source.topic, target.topic, source.partition).inc(entry.records)
        metrics["consumed_messages_total"].labels(source.topic).inc(_consumed(entry))
        metrics["produced_messages_total"].labels(target.topic).inc(entry.records)
        metrics["messages_rewritten_total"].labels(source.topic).inc(entry.rewritten)
        metrics["bytes_relayed_total"].labels(source.topic, target.topic).inc(entry.size_bytes)
        for reason, offsets in entry.skipped.items():
            metrics["offsets_skipped_total"].labels(source.topic, reason).inc(offsets)
        self._lag(entry.mirror, source).dec(len(entry.source))
        self._last_commit(entry.mirror, entry.committed_at_ms)

    def _verdict(self, verdict: NodeVerdict) -> None:
        self._metrics["source_quarantined"].labels(verdict.name).set(verdict.quarantined)
        if verdict.eligible and not verdict.healthy:
            self._metrics["source_lag_threshold_exceeded_total"].labels(verdict.name).inc()
        elif not verdict.eligible:
            self._metrics["source_unhealthy_total"].labels(verdict.name).inc()

    def _outcome(self, mirror: str, outcome: Outcome) -> None:
        if outcome.status is not Status.DONE:
            self.failed(mirror, outcome.error_kind, outcome.node)
        for before, segment in pairwise(outcome.segments):
            if segment.node != before.node:
                self._metrics["source_candidate_switches_total"].labels(segment.node).inc()
        # only the sum is known, and a summary exposes only sum and count
        for _ in range(outcome.chunks):
            self._metrics["commit_duration_seconds"].labels(mirror).observe(
                outcome.commit_seconds / outcome.chunks
            )

    def _open_transaction(self, mirror: str, position: Position) -> None:
        since_ms = position.open_since_ms
        age = 0.0 if since_ms is None else max(0.0, (self._clock.now_ms() - since_ms) / 1000)
        labels = (mirror, position.topic_partition.topic, position.topic_partition.partition)
        records = len(position.open_transaction)
        self._metrics["open_transaction_records"].labels(*labels).set(records)
        self._metrics["open_transaction_seconds"].labels(*labels).set(age)

    def _lag(self, mirror: str, source: TopicPartition) -> Any:
        return self._metrics["lag_records"].labels(mirror, source.topic, source.partition)

    def _last_commit(self, mirror: str, committed_at_ms: int) -> None:
        self._last_commits_ms[mirror] = max(committed_at_ms, self._last_commits_ms.get(mirror, 0))
        self._metrics["last_commit_timestamp_seconds"].labels(mirror).set(
            self._last_commits_ms[mirror] / 1000
        )


@contextmanager
def published(observer: MetricsObserver, configured: settings.Metrics) -> Iterator[None]:
    """Serve the metrics in this context and write them at its end, if the settings say so.

    Raises:
        ConfigError: the address is in use, or does not belong to this machine.
        RelayError: the file cannot be written.
    """
    server = None if configured.address is None else _serve(configured.address, observer.registry)
    try:
        yield
    finally:
        if server is not None:
            server.shutdown()
            server.server_close()
        observer.write(configured)


def _serve(address: str, registry: CollectorRegistry) -> Any:
    host, _, port = address.rpartition(":")
    try:
        server, _thread = prometheus.start_http_server(int(port), host.strip("[]"), registry)
    except OSError as error:
        raise ConfigError(
            f"metrics cannot be served at {address}: {error.strerror or error}",
            remedy="set metrics.address to a free port of this machine, or leave it out",
        ) from error
    return server


def _collector(metric: Metric, registry: CollectorRegistry) -> Any:
    name = PREFIX + metric.name
    if metric.kind == "histogram":
        return prometheus.Histogram(
            name, metric.meaning, metric.labels, registry=registry, buckets=_DURATIONS
        )
    kinds = {
        "counter": prometheus.Counter,
        "gauge": prometheus.Gauge,
        "summary": prometheus.Summary,
    }
    return kinds[metric.kind](name, metric.meaning, metric.labels, registry=registry)


def _consumed(entry: LedgerEntry) -> int:
    return entry.records + sum(
        entry.skipped.get(reason, 0) for reason in (Skipped.FILTERED, Skipped.QUARANTINED)
    )
