"""What `relay schemas verify` has found, as metrics."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from prometheus_client import CollectorRegistry

from relay_pipelines.audit.metrics import Seen, gauges_in
from relay_pipelines.metrics.run_metrics import write_textfile
from relay_pipelines.schemas.verdict import State, TopicVerdict

_CHECK = "schemas"
_NAMES = ("check_failed", "schemas_verdict", "schema_ids")


def write(
    path: Path, mirror: str, verdicts: Sequence[TopicVerdict], *, is_part: bool = False
) -> None:
    """Write the verdict on each topic; what the file says of others stays.

    Args:
        is_part: whether less than whole topics were looked at.

    Raises:
        RelayError: the file cannot be written.
    """
    registry, by_topic = CollectorRegistry(), {each.topic: each for each in verdicts}
    seen = {topic: Seen(bool(each.exit_code), is_part) for topic, each in by_topic.items()}
    (failed, states, ids), topics = gauges_in(path, registry, _NAMES, mirror, seen)
    for each in map(by_topic.__getitem__, topics):
        failed.labels(mirror, each.topic, _CHECK).set(bool(each.exit_code))
        for state in State:
            states.labels(mirror, each.topic, state).set(state is each.state)
        numbers = len(each.same), len(each.differing), len(each.unknown)
        for name, number in zip(("same", "differing", "unknown"), numbers, strict=True):
            ids.labels(mirror, each.topic, name).set(number)
    write_textfile(path, registry, "name a writable file with --textfile")
