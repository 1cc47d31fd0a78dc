"""What `relay run` knows of its own runs.

Counters of committed chunks. Counts come from the ledger, so they hold even if tasks died.

Where metrics can be read: an HTTP endpoint, and a file for the node exporter.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from itertools import pairwise
from pathlib import Path
from typing import Any

import prometheus_client as prometheus
from prometheus_client import CollectorRegistry

from relay_pipelines import settings
from relay_pipelines.errors import ConfigError, FencedError, RelayError, Side, error_class
from relay_pipelines.metrics.catalog import METRICS, By, collector, metric
from relay_pipelines.model import LedgerEntry, Outcome, Skipped, Status, TopicPartition
from relay_pipelines.plan.positions import Position, open_since
from relay_pipelines.plan.upstreams import UpstreamState
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
        self._upstream = ""

    def begin(self, plan: RunPlan) -> None:
        """Set end offsets, lags and the last commit from the plan."""
        snapshot = plan.snapshot
        self._forget(snapshot)
        self._upstream = snapshot.upstream.name
        self._ends[snapshot.name] = Counter(
            {
                self._upstream: sum(
                    max(position.end_offset, position.high_watermark)
                    for position in snapshot.positions
                )
            }
        )
        for upstream, total in sum(self._ends.values(), Counter[str]()).items():
            self._metrics["source_highwatermark"].labels(upstream).set(total)
        for position in snapshot.positions:  # also of what is held back: its records wait, too
            self._lag(snapshot.name, position.topic_partition).set(position.lag)
            self._open_transaction(snapshot.name, position)
        for checkpoint in snapshot.checkpoints.values():
            self._last_commit(snapshot.name, checkpoint.committed_at_ms)
        if snapshot.selection.previous:
            self._metrics["source_candidate_switches_total"].labels(self._upstream).inc()
        for state in snapshot.selection.upstreams:
            self._state_of(state)
        # from 0 on: an increase from no value to 1 would not be seen
        self._metrics["failures_total"].labels(snapshot.name, FencedError.__name__)

    def submitted(self, application: str) -> None:
        """Do nothing: it is no metric."""

    def committed(self, entries: Sequence[LedgerEntry]) -> None:
        """Count committed chunks."""
        for entry in entries:
            self._count(entry)

    def end(self, result: RunResult) -> None:
        """Count failures, and observe durations that are known at the end of a run."""
        for error in result.errors:
            self.failed(result.mirror, type(error).__name__, self._upstream)
        for outcome in result.outcomes:
            self._outcome(result.mirror, outcome)
        for side, waited in result.throttled_seconds.items():
            self._metrics["throttled_seconds_total"].labels(result.mirror, side).inc(waited)
        for upstream in result.diverged:
            self._metrics["source_quarantined"].labels(upstream).set(1)
        if result.copying_seconds:
            self._metrics["window_duration_seconds"].labels(result.mirror).observe(
                result.copying_seconds
            )
        if result.exit_code == 0:
            self._metrics["last_success_timestamp_seconds"].labels(result.mirror).set(
                self._clock.now_ms() / 1000
            )

    def failed(self, mirror: str, error: str, upstream: str = "") -> None:
        """Count a failure.

        Args:
            error: the class name of the error.
            upstream: the upstream that was read; empty if there was none yet.
        """
        self._metrics["failures_total"].labels(mirror, error).inc()
        side = error_class(error).side
        if side is Side.SOURCE:
            self._metrics["source_errors_total"].labels(upstream, error).inc()
        elif side is Side.DESTINATION:
            self._metrics["target_errors_total"].labels(error).inc()

    def _forget(self, snapshot: ClusterSnapshot) -> None:
        """Remove the gauges of what the mirror no longer has or reads: they would stay for ever."""
        partitions = {position.topic_partition for position in snapshot.positions}
        for tp in self._known.get(snapshot.name, set()) - partitions:
            for name in _OF_POSITIONS:
                self._metrics[name].remove(snapshot.name, tp.topic, tp.partition)
        self._known[snapshot.name] = partitions
        for upstream in self._ends.pop(snapshot.name, {}):
            self._metrics["source_highwatermark"].remove(upstream)

    def _count(self, entry: LedgerEntry) -> None:
        self._committed.count(entry)
        self._lag(entry.mirror, entry.tp).dec(len(entry.source))
        self._last_commit(entry.mirror, entry.committed_at_ms)

    def _state_of(self, upstream: UpstreamState) -> None:
        self._metrics["source_quarantined"].labels(upstream.name).set(bool(upstream.quarantined))
        if upstream.eligible and not upstream.healthy:
            self._metrics["source_lag_threshold_exceeded_total"].labels(upstream.name).inc()
        elif not upstream.eligible:
            self._metrics["source_unhealthy_total"].labels(upstream.name).inc()

    def _outcome(self, mirror: str, outcome: Outcome) -> None:
        if outcome.status is not Status.DONE:
            self.failed(mirror, outcome.error_kind, outcome.upstream)
        for before, segment in pairwise(outcome.segments):
            if segment.upstream != before.upstream:
                self._metrics["source_candidate_switches_total"].labels(segment.upstream).inc()
        # only the sum is known, and a summary exposes only sum and count
        for _ in range(outcome.chunks):
            self._metrics["commit_duration_seconds"].labels(mirror).observe(
                outcome.commit_seconds / outcome.chunks
            )

    def _open_transaction(self, mirror: str, position: Position) -> None:
        age = open_since([position], self._clock.now_ms()) or 0.0
        labels = (mirror, position.topic_partition.topic, position.topic_partition.partition)
        records = position.open_records
        self._metrics["open_transaction_records"].labels(*labels).set(records)
        self._metrics["open_transaction_seconds"].labels(*labels).set(age)

    def _lag(self, mirror: str, source: TopicPartition) -> Any:
        return self._metrics["lag_records"].labels(mirror, source.topic, source.partition)

    def _last_commit(self, mirror: str, committed_at_ms: int) -> None:
        self._last_commits_ms[mirror] = max(committed_at_ms, self._last_commits_ms.get(mirror, 0))
        self._metrics["last_commit_timestamp_seconds"].labels(mirror).set(
            self._last_commits_ms[mirror] / 1000
        )


COMMITTED = (
    "messages_relayed_total",
    "msg_count",
    "consumed_messages_total",
    "produced_messages_total",
    "messages_reencoded_total",
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
        source, target = entry.tp, entry.to
        here, there = (source.partition, target.partition) if by_partition else ("", "")
        metrics["messages_relayed_total"].labels(source.topic, here, target.topic, there).inc(
            entry.records
        )
        metrics["msg_count"].labels(source.topic, target.topic, here).inc(entry.records)
        metrics["consumed_messages_total"].labels(source.topic).inc(_consumed(entry))
        metrics["produced_messages_total"].labels(target.topic).inc(entry.records)
        metrics["messages_reencoded_total"].labels(source.topic).inc(entry.reencoded)
        metrics["bytes_relayed_total"].labels(source.topic, target.topic).inc(entry.size_bytes)
        for reason, offsets in entry.skipped.items():
            metrics["offsets_skipped_total"].labels(source.topic, reason).inc(offsets)


def _consumed(entry: LedgerEntry) -> int:
    return entry.records + sum(
        entry.skipped.get(reason, 0) for reason in (Skipped.FILTERED, Skipped.QUARANTINED)
    )


HEALTH = "/healthz"


class Endpoint:
    """Serves metrics at an address, and at /healthz whether they can be relied on.

    Args:
        address: host:port.
        remedy: what to do if the address cannot be used.
        failing: says what is wrong; empty if nothing is.
    """

    def __init__(
        self,
        address: str,
        registry: CollectorRegistry,
        remedy: str,
        failing: Callable[[], str] = lambda: "",
    ) -> None:
        self._address = address
        self._registry = registry
        self._remedy = remedy
        self._failing = failing
        self._server: Any = None

    def open(self) -> None:
        """Serve from now on; does nothing if it is served already.

        Raises:
            ConfigError: the address is in use, or does not belong to this machine.
        """
        if self._server is not None:
            return
        host, _, port = self._address.rpartition(":")
        try:
            server, _ = prometheus.start_http_server(int(port), host.strip("[]"), self._registry)
        except OSError as error:
            raise ConfigError(
                f"metrics cannot be served at {self._address}: {error.strerror or error}",
                remedy=self._remedy,
            ) from error
        server.set_app(self._with_health(server.get_app()))
        self._server = server

    def close(self) -> None:
        """Serve no longer."""
        if self._server is not None:
            self._server.shutdown()
            self._server.server_close()
            self._server = None

    def _with_health(self, metrics: Any) -> Any:
        def app(environ: Any, start_response: Any) -> Any:
            if environ["PATH_INFO"] != HEALTH:
                return metrics(environ, start_response)
            why = self._failing()
            status = "503 Service Unavailable" if why else "200 OK"
            start_response(status, [("Content-Type", "text/plain; charset=utf-8")])
            return [f"{why or 'ok'}\n".encode()]

        return app


class Publication:
    """Publishes the metrics of runs as the settings say."""

    def __init__(self, observer: MetricsObserver, configured: settings.Metrics) -> None:
        self.observer = observer
        self._textfile = configured.textfile
        self._endpoint = None
        if configured.address is not None:
            remedy = "set metrics.address to a free port of this machine, or leave it out"
            self._endpoint = Endpoint(configured.address, observer.registry, remedy)

    def serve(self) -> None:
        """Serve from now on, if there is to be an endpoint.

        Raises:
            ConfigError: the address is in use, or does not belong to this machine.
        """
        if self._endpoint is not None:
            self._endpoint.open()

    def write(self) -> None:
        """Write the file, if there is to be one.

        Raises:
            RelayError: it cannot be written.
        """
        if self._textfile is not None:
            write_textfile(
                self._textfile, self.observer.registry, "set metrics.textfile to a writable file"
            )

    def end(self) -> None:
        """Serve no longer, and write the file."""
        if self._endpoint is not None:
            self._endpoint.close()
        self.write()


def write_textfile(path: Path | str, registry: CollectorRegistry, remedy: str) -> None:
    """Write metrics to a file for the node exporter's textfile collector.

    Raises:
        RelayError: it cannot be written.
    """
    try:
        prometheus.write_to_textfile(str(path), registry)
    except OSError as error:
        raise RelayError(
            f"metrics cannot be written to {path}: {error.strerror or error}", remedy=remedy
        ) from error


@contextmanager
def published(observer: MetricsObserver, configured: settings.Metrics) -> Iterator[Publication]:
    """Publish metrics in this context, once `serve` was called, and write them at its end.

    Raises:
        RelayError: the file cannot be written.
    """
    publication = Publication(observer, configured)
    try:
        yield publication
    finally:
        publication.end()
