"""What `relay run` knows of its own runs."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from itertools import pairwise
from typing import Any

from prometheus_client import CollectorRegistry

from relay_pipelines.errors import FencedError, Side, error_class
from relay_pipelines.metrics.catalog import METRICS, By, collector
from relay_pipelines.metrics.committed import COMMITTED, CommittedCounters
from relay_pipelines.model import LedgerEntry, Outcome, Status, TopicPartition
from relay_pipelines.plan.node_choice import NodeVerdict
from relay_pipelines.plan.positions import Position, open_since
from relay_pipelines.protocol.clock import Clock
from relay_pipelines.run.result import RunResult
from relay_pipelines.run.run_plan import RunPlan
from relay_pipelines.snapshot.cluster_snapshot import ClusterSnapshot

_OF_POSITIONS = ("lag_records", "open_transaction_records", "open_transaction_seconds")


class MetricsObserver:
    """Updates the metrics of the runs that it observes, in its own registry."""

    def __init__(self, clock: Clock) -> None:
        self.registry = CollectorRegistry()
        self._clock = clock
        self._committed = CommittedCounters(self.registry)
        self._metrics = {
            metric.name: collector(metric, self.registry)
            for metric in METRICS
            if metric.by in {By.RUN, By.BOTH} and metric.name not in COMMITTED
        }
        self._ends: dict[str, Counter[str]] = {}
        self._known: dict[str, set[TopicPartition]] = {}
        self._last_commits_ms: dict[str, int] = {}
        self._node = ""

    def begin(self, plan: RunPlan) -> None:
        """Set end offsets, lags and the last commit from the plan."""
        snapshot = plan.snapshot
        self._forget(snapshot)
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
        # from 0 on: an increase from no value to 1 would not be seen
        self._metrics["failures_total"].labels(snapshot.mirror, FencedError.__name__)

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

    def _forget(self, snapshot: ClusterSnapshot) -> None:
        """Remove the gauges of what the mirror no longer has or reads: they would stay for ever."""
        known = {position.topic_partition for position in snapshot.positions}
        for at in self._known.get(snapshot.mirror, set()) - known:
            for name in _OF_POSITIONS:
                self._metrics[name].remove(snapshot.mirror, at.topic, at.partition)
        self._known[snapshot.mirror] = known
        for node in self._ends.pop(snapshot.mirror, {}):
            self._metrics["source_highwatermark"].remove(node)

    def _count(self, entry: LedgerEntry) -> None:
        self._committed.count(entry)
        self._lag(entry.mirror, entry.source.topic_partition).dec(len(entry.source))
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
        age = open_since([position], self._clock.now_ms()) or 0.0
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
