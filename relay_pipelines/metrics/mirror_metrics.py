"""What can be read of a mirror from its clusters, whoever copies: nothing is written."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from relay_pipelines.errors import ConfigError, PermissionDeniedError
from relay_pipelines.ledger import checkpoint, ledger_topic
from relay_pipelines.model import TopicPartition
from relay_pipelines.page.advice import OTHERS, State
from relay_pipelines.page.look import Look
from relay_pipelines.page.page import Page, page_of
from relay_pipelines.plan.node_choice import NodeVerdict
from relay_pipelines.plan.positions import Position, open_since
from relay_pipelines.prepare import topics
from relay_pipelines.settings import Mirror
from relay_pipelines.snapshot.cluster_snapshot import ClusterSnapshot
from relay_pipelines.snapshot.lag import oldest_seconds

_QUARANTINED = "quarantined"
_OF_TOPICS = {ConfigError.__name__, PermissionDeniedError.__name__}
_STATES = ("healthy", "behind", "unavailable", _QUARANTINED)


class Sample(NamedTuple):
    """A value of a metric."""

    name: str
    labels: tuple[str, ...]
    value: float


def samples(look: Look, mirror: Mirror, *, by_partition: bool) -> Iterator[Sample]:
    """Yield the values of all gauges of a mirror.

    Args:
        by_partition: whether topic-partitions have values of their own; otherwise those of a topic
            are added up, or the worst counts, and the label is empty.
    """
    snapshot = look.snapshot
    groups: defaultdict[tuple[str, str], list[Position]] = defaultdict(list)
    for position in snapshot.positions:
        at = position.topic_partition
        groups[at.topic, str(at.partition) if by_partition else ""].append(position)
    for labels, positions in groups.items():
        for name, value in _progress(look, positions):
            if value is not None:
                yield Sample(name, (snapshot.mirror, *labels), value)
    yield from _hidden(look, by_partition=by_partition)
    yield from _page(page_of(look, mirror), by_partition=by_partition)
    for topic in snapshot.targets:
        target_ms = mirror.window_of(topic).lag_target
        yield Sample("lag_target_seconds", (snapshot.mirror, topic), target_ms / 1000)
    yield from _nodes(snapshot)
    yield from _checks(look)
    last_ms = _last_commit_ms(look, list(snapshot.checkpoints))
    if last_ms is not None:
        yield Sample("last_commit_timestamp_seconds", (snapshot.mirror,), last_ms / 1000)


def _progress(look: Look, positions: list[Position]) -> Iterator[tuple[str, float | None]]:
    """Yield the values of one topic-partition, or of all of a topic."""
    lags = [look.lags[position.topic_partition] for position in positions]
    committed_ms = _last_commit_ms(look, [position.topic_partition for position in positions])
    yield "lag_records", sum(lag.records for lag in lags)
    yield "lag_seconds", oldest_seconds(lags)
    yield "source_end_offset", sum(position.end_offset for position in positions)
    yield "checkpoint_offset", sum(position.begin for position in positions)
    yield "open_transaction_records", sum(len(position.open_transaction) for position in positions)
    yield "open_transaction_seconds", open_since(positions, look.taken_ms) or 0.0
    yield "commit_timestamp_seconds", None if committed_ms is None else committed_ms / 1000


def _hidden(look: Look, *, by_partition: bool) -> Iterator[Sample]:
    """Yield what readers of the destination do not see: copies, checkpoints, or the ledger."""
    snapshot = look.snapshot
    topics = [*dict.fromkeys(snapshot.destinations.values()), checkpoint.TOPIC, ledger_topic.TOPIC]
    records: dict[tuple[str, str], int] = {(topic, ""): 0 for topic in topics}
    ages: dict[tuple[str, str], float] = dict.fromkeys(records, 0.0)
    for found in look.hidden:
        at = found.hidden.topic_partition
        key = at.topic, str(at.partition) if by_partition else ""
        records[key] = records.get(key, 0) + len(found.hidden)
        ages[key] = max(ages.get(key, 0.0), found.seconds(look.taken_ms) or 0.0)
    for labels, number in records.items():
        yield Sample("hidden_records", (snapshot.mirror, *labels), number)
        yield Sample("hidden_seconds", (snapshot.mirror, *labels), ages[labels])


def _last_commit_ms(look: Look, wanted: list[TopicPartition]) -> int | None:
    checkpoints = look.snapshot.checkpoints
    return max(
        (checkpoints[at].committed_at_ms for at in wanted if at in checkpoints), default=None
    )


def _page(shown: Page, *, by_partition: bool) -> Iterator[Sample]:
    """Yield the state of the mirror, and what guards hold back of it."""
    yield from states(shown.mirror, shown.state)
    held_back: Counter[tuple[str, str, str]] = Counter()
    for held in shown.held:
        if held.reason in OTHERS:  # these have gauges of their own
            continue
        for at in held.topic_partitions:
            # the number of a hidden topic's partitions is unknown
            is_named = by_partition and held.reason not in _OF_TOPICS
            held_back[at.topic, str(at.partition) if is_named else "", held.reason] += 1
    for labels, number in held_back.items():
        yield Sample("held_back", (shown.mirror, *labels), number)


def states(mirror: str, found: State) -> Iterator[Sample]:
    """Yield the state of a mirror, which may be unknown."""
    for state in State:
        yield Sample("state", (mirror, state), state is found)


def samples_without_node(mirror: str, nodes: Sequence[str]) -> Iterator[Sample]:
    """Yield what is known of the nodes of a mirror that are all in quarantine."""
    for node in nodes:
        yield from _node(mirror, node, _QUARANTINED, is_read=False)


def _nodes(snapshot: ClusterSnapshot) -> Iterator[Sample]:
    for verdict in snapshot.verdicts:
        is_read = verdict.name == snapshot.node.name
        yield from _node(snapshot.mirror, verdict.name, _state(verdict), is_read=is_read)
        if verdict.eligible:
            labels = (snapshot.mirror, verdict.name)
            yield Sample("node_behind_records", labels, verdict.behind)


def _node(mirror: str, node: str, found: str, *, is_read: bool) -> Iterator[Sample]:
    yield Sample("node_read", (mirror, node), is_read)
    for state in _STATES:
        yield Sample("node_state", (mirror, node, state), state == found)


def _state(verdict: NodeVerdict) -> str:
    if verdict.quarantined:
        return _QUARANTINED
    if not verdict.eligible:
        return "unavailable"
    return "healthy" if verdict.healthy else "behind"


def _checks(look: Look) -> Iterator[Sample]:
    snapshot = look.snapshot
    missing = [*topics.deleted(snapshot), *topics.unseen(snapshot)]
    for check, failed in (("configs", look.config_differences), ("source_topics", missing)):
        yield Sample("check_failed", (snapshot.mirror, "", check), bool(failed))
