"""The result of audits as metrics: only an audit knows whether the records are the same."""

from __future__ import annotations

import fcntl
import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from enum import StrEnum
from pathlib import Path
from typing import Any, NamedTuple

from prometheus_client import CollectorRegistry
from prometheus_client.parser import text_string_to_metric_families
from prometheus_client.samples import Sample

from relay_pipelines.audit.audit import Audit
from relay_pipelines.audit.request import AuditRequest
from relay_pipelines.audit.verdict import State, Tally, Verdict
from relay_pipelines.errors import ConfigError, RelayError
from relay_pipelines.invocation import require_replaceable
from relay_pipelines.metrics.catalog import PREFIX, collector, metric
from relay_pipelines.metrics.run_metrics import write_textfile

OPTION = "--textfile"
NAMES = ("check_failed", "audit_verdict", "audit_records")
"""The gauges of an audit; the first says which checks fail."""
_CHECK = "audit"


class Seen(NamedTuple):
    """What a check has seen of a topic.

    Args:
        fails: whether the check does.
        is_part: whether it has looked at less than the whole topic.
        state: one of those of the check.
        numbers: of what it rests on, by name.
    """

    fails: bool
    is_part: bool
    state: StrEnum
    numbers: Mapping[str, int]


def write(path: Path, mirror: str, request: AuditRequest, audit: Audit | None) -> None:
    """Write the verdict on each topic, and how many records it rests on.

    What the file says of other mirrors and topics stays: their last audit was another one.

    Args:
        audit: None if it could not be done, which has failed for the topics that were asked for, or
            for the mirror as a whole.

    Raises:
        RelayError: the file cannot be read or written.
    """
    verdicts = dict.fromkeys(request.topics or ("",), Verdict(State.FAILED, Tally()))
    if audit is not None:
        verdicts = {topic: of_topic.verdict for topic, of_topic in audit.by_topic.items()}
    seen = {
        topic: Seen(
            bool(verdict.exit_code(strict=request.strict)),
            request.is_part or verdict.tally.left_out > 0,
            verdict.state,
            verdict.tally.numbers,
        )
        for topic, verdict in verdicts.items()
    }
    is_of_all = audit is not None and not request.topics and not request.is_part
    rewrite(path, NAMES, mirror, _CHECK, seen, is_of_all=is_of_all)


def require_rewritable(path: Path, names: Sequence[str]) -> None:
    """Refuse a file that `rewrite` would, before the work of which it gets the result.

    Raises:
        ConfigError: it is none of these gauges, or cannot be replaced.
        RelayError: its folder cannot be locked, as on some network file systems.
    """
    require_replaceable(OPTION, path)
    with _alone_in(path.parent):
        _samples(path, names)


def rewrite(
    path: Path,
    names: Sequence[str],
    mirror: str,
    check: str,
    seen: Mapping[str, Seen],
    *,
    is_of_all: bool = False,
) -> None:
    """Write what a check has seen of topics; what the file says of others stays.

    A failed check stays until it passes on the whole topic: what passes on a part of it, or no
    longer finds the topic, has not looked at what failed. Processes that write it take turns.

    Args:
        names: of the gauges: of failed checks, of states, and of numbers.
        seen: by topic of the mirror.
        is_of_all: whether the mirror has no other topics.

    Raises:
        RelayError: the file cannot be read or written.
    """
    registry = CollectorRegistry()
    gauges = {PREFIX + name: collector(metric(name), registry) for name in names}
    failed, states, numbers = gauges.values()
    with _alone_in(path.parent):
        for topic in _keep(_samples(path, names), gauges, mirror, seen, is_of_all=is_of_all):
            now = seen[topic]
            failed.labels(mirror, topic, check).set(now.fails)
            for state in type(now.state):
                states.labels(mirror, topic, state).set(state is now.state)
            for name, number in now.numbers.items():
                numbers.labels(mirror, topic, name).set(number)
        write_textfile(path, registry, f"name a writable file with {OPTION}")


def _keep(
    samples: Sequence[Sample],
    gauges: Mapping[str, Any],
    mirror: str,
    seen: Mapping[str, Seen],
    *,
    is_of_all: bool,
) -> list[str]:
    """Set gauges to what stays of the samples; return the topics that get other values."""
    earlier = [each for each in samples if each.labels["mirror"] == mirror]
    of_checks = next(iter(gauges))
    failing = {
        sample.labels["topic"] for sample in earlier if sample.name == of_checks and sample.value
    }
    topics = [
        topic for topic, now in seen.items() if now.fails or not now.is_part or topic not in failing
    ]
    gone = {each.labels["topic"] for each in earlier} - failing | {""} if is_of_all else set()
    for name, labels, value, *_ in samples:
        if labels["mirror"] != mirror or labels["topic"] not in {*topics, *gone}:
            gauges[name].labels(**labels).set(value)
    return topics


def _samples(path: Path, names: Sequence[str]) -> list[Sample]:
    """Read what is in a file; nothing if there is none yet.

    Raises:
        ConfigError: it cannot be read, or has something else in it, which would be lost.
    """
    labels = {PREFIX + name: set(metric(name).labels) for name in names}
    try:
        families = list(text_string_to_metric_families(path.read_text(encoding="utf-8")))
    except FileNotFoundError:
        return []
    except (OSError, ValueError) as error:
        raise ConfigError(
            f"{OPTION}: {path} is not a file of metrics: {error}",
            remedy="delete it, or name another file",
        ) from error
    samples = [sample for family in families for sample in family.samples]
    for name in (each.name for each in samples if labels.get(each.name) != each.labels.keys()):
        raise ConfigError(
            f"{OPTION}: {path} has other metrics, such as {name}, which would be lost",
            remedy="name a file of its own",
        )
    return samples


@contextmanager
def _alone_in(folder: Path) -> Iterator[None]:
    """Wait for others that write a file of the folder: the file itself is replaced, and no lock."""
    try:
        held = os.open(folder, os.O_RDONLY)
        fcntl.flock(held, fcntl.LOCK_EX)
    except OSError as error:
        raise RelayError(
            f"{OPTION}: {folder} cannot be locked: {error.strerror}",
            remedy="name a file in another folder",
        ) from error
    try:
        yield
    finally:
        os.close(held)
