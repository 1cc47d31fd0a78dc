"""The result of audits as metrics: nobody else knows whether the records are the same."""

from __future__ import annotations

from collections.abc import Container, Iterator, Mapping, Sequence
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
_FAILED = "check_failed"
_NAMES = (_FAILED, "audit_verdict", "audit_records")


class Audited(NamedTuple):
    """A mirror, or topics of it, and the audit; None if it could not be done."""

    mirror: str
    request: AuditRequest
    audit: Audit | None

    @property
    def verdicts(self) -> dict[str, Verdict]:
        """The verdict on each topic, also on one that was asked for and that the ledger lacks.

        One without a topic if there is no audit of the mirror.
        """
        asked = self.request.topics or (("",) if self.audit is None else ())
        verdicts = dict.fromkeys(asked, Verdict(State.FAILED, Coverage()))
        if self.audit is not None:
            for topic, partitions in self.audit.topics.items():
                verdicts[topic] = verdict_of(self.audit.level, partitions)
        return verdicts

    @property
    def is_of_all(self) -> bool:
        """Whether a topic without a verdict has no copies that the ledger knows."""
        return self.audit is not None and not self.request.topics and not self.request.is_part


class Seen(NamedTuple):
    """What a check has seen of a topic.

    Args:
        fails: whether the check does.
        is_part: whether it has looked at less than the whole topic.
    """

    fails: bool
    is_part: bool


def write(path: Path, audited: Audited) -> None:
    """Write the verdict on each topic, and how many records it rests on.

    What the file says of other mirrors and topics stays: their last audit was another one.

    Raises:
        RelayError: the file cannot be written.
    """
    registry, verdicts, strict = CollectorRegistry(), audited.verdicts, audited.request.strict
    seen = {
        topic: Seen(
            bool(verdict.exit_code(strict=strict)),
            audited.request.is_part or verdict.coverage.left_out > 0,
        )
        for topic, verdict in verdicts.items()
    }
    (failed, states, records), topics = gauges_in(
        path, registry, _NAMES, audited.mirror, seen, is_of_all=audited.is_of_all
    )
    for topic in topics:
        failed.labels(audited.mirror, topic, _CHECK).set(seen[topic].fails)
        for state in State:
            states.labels(audited.mirror, topic, state).set(state is verdicts[topic].state)
        for name, number in verdicts[topic].coverage.numbers.items():
            records.labels(audited.mirror, topic, name).set(number)
    write_textfile(path, registry, "name a writable file with --textfile")


def gauges_in(
    path: Path,
    registry: CollectorRegistry,
    names: Sequence[str],
    mirror: str,
    seen: Mapping[str, Seen],
    *,
    is_of_all: bool = False,
) -> tuple[list[Any], list[str]]:
    """Return gauges with what stays of a file, and the topics of which they are to be set.

    A failed check stays until it passes on the whole topic: what passes on a part of it, or no
    longer finds the topic, has not looked at what failed.

    Args:
        seen: by topic of the mirror.
        is_of_all: whether the mirror has no other topics.
    """
    gauges = {PREFIX + name: collector(metric(name), registry) for name in names}
    earlier = [each for each in _earlier(path, gauges) if each.labels["mirror"] == mirror]
    failing = {
        sample.labels["topic"]
        for sample in earlier
        if sample.name == PREFIX + _FAILED and sample.value
    }
    topics = [
        topic for topic, now in seen.items() if now.fails or not now.is_part or topic not in failing
    ]
    gone = {each.labels["topic"] for each in earlier} - failing | {""} if is_of_all else set()
    for name, labels, value in _earlier(path, gauges):
        if labels["mirror"] != mirror or labels["topic"] not in {*topics, *gone}:
            gauges[name].labels(**labels).set(value)
    return list(gauges.values()), topics


def _earlier(path: Path, names: Container[str]) -> Iterator[_Sample]:
    """Yield what earlier audits have written."""
    with suppress(OSError, ValueError):  # there is no file, or it is no such file
        for family in text_string_to_metric_families(path.read_text(encoding="utf-8")):
            for sample in family.samples:
                if sample.name in names:
                    yield _Sample(sample.name, sample.labels, sample.value)


class _Sample(NamedTuple):
    """A value of a gauge, with the gauge's name and labels."""

    name: str
    labels: dict[str, str]
    value: float
