"""The result of audits as metrics: nobody else knows whether the records are the same."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path

from prometheus_client import CollectorRegistry

from relay_pipelines.audit.audit import Audit, verdict_of
from relay_pipelines.audit.verdict import Coverage, State, Verdict
from relay_pipelines.metrics.catalog import collector, metric
from relay_pipelines.metrics.run_metrics import write_textfile

_CHECK = "audit"


def write(path: Path, audits: Iterable[tuple[str, Audit | None]]) -> None:
    """Write the verdict on each topic, and how many records it rests on.

    Args:
        audits: with their mirrors; None if one could not be done.

    Raises:
        RelayError: the file cannot be written.
    """
    registry = CollectorRegistry()
    failed, states, records = (
        collector(metric(name), registry)
        for name in ("check_failed", "audit_verdict", "audit_records")
    )
    for mirror, topic, verdict, strict in _verdicts(audits):
        failed.labels(mirror, topic, _CHECK).set(bool(verdict.exit_code(strict=strict)))
        for state in State:
            states.labels(mirror, topic, state).set(state is verdict.state)
        for name, number in verdict.coverage.numbers.items():
            records.labels(mirror, topic, name).set(number)
    write_textfile(path, registry, "name a writable file with --textfile")


def _verdicts(
    audits: Iterable[tuple[str, Audit | None]],
) -> Iterator[tuple[str, str, Verdict, bool]]:
    """Yield mirror, topic, verdict, and if it is strict; no topic if there is no audit."""
    for mirror, audit in audits:
        if audit is None:
            yield mirror, "", Verdict(State.FAILED, Coverage()), False
            continue
        for topic, partitions in audit.topics.items():
            yield mirror, topic, verdict_of(audit.level, partitions), audit.request.strict
