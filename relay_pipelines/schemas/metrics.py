"""What `relay schemas verify` has found, as metrics."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from relay_pipelines.audit.metrics import Seen, rewritten
from relay_pipelines.schemas.verdict import State, TopicVerdict

_CHECK = "schemas"
NAMES = ("check_failed", "schemas_verdict", "schema_ids")


def write(
    path: Path, mirror: str, verdicts: Sequence[TopicVerdict], *, is_part: bool = False
) -> None:
    """Write the verdict on each topic; what the file says of others stays.

    Args:
        is_part: whether less than whole topics were looked at.

    Raises:
        RelayError: the file cannot be read or written.
    """
    by_topic = {each.topic: each for each in verdicts}
    seen = {topic: Seen(bool(each.exit_code), is_part) for topic, each in by_topic.items()}
    with rewritten(path, NAMES, mirror, seen) as ((failed, states, ids), topics):
        for each in map(by_topic.__getitem__, topics):
            failed.labels(mirror, each.topic, _CHECK).set(bool(each.exit_code))
            for state in State:
                states.labels(mirror, each.topic, state).set(state is each.state)
            numbers = len(each.same), len(each.differing), len(each.unknown)
            for name, number in zip(("same", "differing", "unknown"), numbers, strict=True):
                ids.labels(mirror, each.topic, name).set(number)
