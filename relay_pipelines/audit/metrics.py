"""The result of audits as metrics: nobody else knows whether the records are the same."""

from __future__ import annotations

from collections.abc import Callable, Container, Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

from prometheus_client import CollectorRegistry
from prometheus_client.parser import text_string_to_metric_families

from relay_pipelines.audit.audit import Audit, verdict_of
from relay_pipelines.audit.request import AuditRequest
from relay_pipelines.audit.verdict import Coverage, State, Verdict
from relay_pipelines.metrics.catalog import PREFIX, collector, metric
from relay_pipelines.metrics.run_metrics import write_textfile

_CHECK = "audit"
_NAMES = ("check_failed", "audit_verdict", "audit_records")


class Audited(NamedTuple):
    """A mirror, or topics of it, and the audit; None if it could not be done."""

    mirror: str
    request: AuditRequest
    audit: Audit | None

    def replaces(self, mirror: str, topic: str) -> bool:
        """Whether an earlier verdict on the topic is no longer the last one."""
        asked = self.request.topics
        return mirror == self.mirror and (not asked or topic in asked)

    @property
    def verdicts(self) -> Iterator[tuple[str, Verdict]]:
        """The verdict on each topic; one without a topic if there is no audit of the mirror."""
        if self.audit is None:
            for topic in self.request.topics or ("",):
                yield topic, Verdict(State.FAILED, Coverage())
            return
        for topic, partitions in self.audit.topics.items():
            yield topic, verdict_of(self.audit.level, partitions)


def write(path: Path, audited: Sequence[Audited]) -> None:
    """Write the verdict on each topic, and how many records it rests on.

    What the file says of other mirrors and topics stays: their last audit was another one.

    Raises:
        RelayError: the file cannot be written.
    """
    registry = CollectorRegistry()

    def is_replaced(mirror: str, topic: str) -> bool:
        return any(each.replaces(mirror, topic) for each in audited)

    failed, states, records = gauges_in(path, registry, _NAMES, is_replaced)
    for each in audited:
        for topic, verdict in each.verdicts:
            exit_code = verdict.exit_code(strict=each.request.strict)
            failed.labels(each.mirror, topic, _CHECK).set(bool(exit_code))
            for state in State:
                states.labels(each.mirror, topic, state).set(state is verdict.state)
            for name, number in verdict.coverage.numbers.items():
                records.labels(each.mirror, topic, name).set(number)
    write_textfile(path, registry, "name a writable file with --textfile")


def gauges_in(
    path: Path,
    registry: CollectorRegistry,
    names: Sequence[str],
    is_replaced: Callable[[str, str], bool],
) -> list[Any]:
    """Return gauges with what a file says of mirrors and topics that are not replaced."""
    gauges = {PREFIX + name: collector(metric(name), registry) for name in names}
    for name, labels, value in _earlier(path, gauges):
        if not is_replaced(labels["mirror"], labels["topic"]):
            gauges[name].labels(**labels).set(value)
    return list(gauges.values())


def _earlier(path: Path, names: Container[str]) -> Iterator[tuple[str, dict[str, str], float]]:
    """Yield name, labels and value of what earlier audits have written."""
    with suppress(OSError, ValueError):  # there is no file, or it is no such file
        for family in text_string_to_metric_families(path.read_text()):
            for sample in family.samples:
                if sample.name in names:
                    yield sample.name, sample.labels, sample.value
