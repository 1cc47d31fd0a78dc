"""The nodes of a source, asked all at once: a slow one delays no verdict on the others."""

from __future__ import annotations

import secrets
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from dataclasses import dataclass, field, replace

from relay_pipelines.errors import DivergedNodeError, RelayError, SourceError
from relay_pipelines.model import Checkpoint, Cluster, OffsetRange, TopicPartition
from relay_pipelines.plan.node_choice import Choice, NodeView, Verdict, choose, judge
from relay_pipelines.plan.positions import Loss, Position
from relay_pipelines.plan.topic_selection import select
from relay_pipelines.protocol.client import EARLIEST, LATEST, READ_COMMITTED, ClusterClient
from relay_pipelines.protocol.clock import Clock
from relay_pipelines.settings import Mirror
from relay_pipelines.state.checkpoint import CheckpointSnapshot


@dataclass(frozen=True, slots=True)
class NodeState:
    """What a node answered.

    Args:
        end_offsets: the last stable offsets of the mirrored topic-partitions; None if it did not
        answer.
        latency_ms: of the whole answer, or of waiting for it.
        error: why there is no answer, in one line; empty if there is one.
        quarantined: why it is not to be read; empty if it may be.
        refusal: the error, if asking again is of no use: it refuses us, or its certificates cannot
        be read.
        low_watermarks: of the mirrored topic-partitions.
    """

    node: Cluster
    end_offsets: Mapping[TopicPartition, int] | None = None
    latency_ms: float = 0.0
    error: str = ""
    quarantined: str = ""
    refusal: RelayError | None = None
    low_watermarks: Mapping[TopicPartition, int] = field(default_factory=dict)

    @property
    def view(self) -> NodeView:
        """What the choice is made from."""
        return NodeView(
            self.node.name, self.end_offsets, self.error, self.quarantined, self.low_watermarks
        )


def probe(
    name: str, mirror: Mirror, clock: Clock, quarantined: Mapping[str, str] | None = None
) -> list[NodeState]:
    """Ask every node, in the order of the configuration; none is waited for longer than `health.request_timeout`.

    Args:
        quarantined: nodes that are not to be read, and why.
    """
    timeout_ms = mirror.source.health.request_timeout
    pool = ThreadPoolExecutor(max_workers=len(mirror.nodes), thread_name_prefix="probe")
    asked = {node: pool.submit(_probe, name, mirror, node, clock) for node in mirror.nodes}
    wait(asked.values(), timeout_ms / 1000)
    pool.shutdown(wait=False)  # who is late ends by the time limits of its own requests
    late = f"no answer within {timeout_ms / 1000:g} s"
    states = [
        answer.result() if answer.done() else NodeState(node, None, timeout_ms, f"{node}: {late}")
        for node, answer in asked.items()
    ]
    return [replace(one, quarantined=(quarantined or {}).get(one.node.name, "")) for one in states]


def choice(
    mirror: Mirror, states: Sequence[NodeState], stored: CheckpointSnapshot, retry: int = 0
) -> Choice:
    """Choose the node to read: the one that was read last while it is healthy, else another.

    Args:
        retry: each begins with another node, whatever was read last.
    """
    health = mirror.source.health
    verdicts = judge([one.view for one in states], stored.next_offsets, health.lag_threshold)
    last = _read_last(stored.checkpoints)
    first = secrets.randbelow(len(states)) if health.randomize_initial and last is None else 0
    return choose(verdicts, None if retry else last, health.failback, first + retry)


@dataclass(frozen=True, slots=True)
class NodeSelection:
    """The node to read, why this one, and those to go on with when it fails, in order.

    Args:
        left: the node that was read before, if this is another one.
        verdicts: on every node that was asked.
        unread: what the nodes said that are not read, without those in quarantine.
    """

    node: Cluster
    why: str
    others: tuple[Cluster, ...] = ()
    left: str = ""
    verdicts: tuple[Verdict, ...] = ()
    unread: tuple[NodeView, ...] = ()

    def elsewhere(self, position: Position, found: Loss) -> str:
        """Say where records may be that this node has lost; empty if all other nodes have answered and none has them."""
        lost = OffsetRange(position.topic_partition, position.begin, found.resume)
        for one in self.unread:
            if one.holds_some(lost) if lost else one.holds(lost.topic_partition, lost.start):
                return f"node {one.name} has them"
        return next(
            (
                f"node {one.name} does not answer: {one.error}"
                for one in self.unread
                if one.end_offsets is None
            ),
            "",
        )


def to_read(
    name: str, mirror: Mirror, stored: CheckpointSnapshot, clock: Clock, retry: int = 0
) -> NodeSelection:
    """Return the node to read. A source's only node is not asked beforehand.

    Raises:
        SourceError: none can be read now; names every node and its own reason.
        RelayError: none can be read, and asking again is of no use.
        DivergedNodeError: none can be read until somebody has cleared one of them.
    """
    if len(mirror.nodes) == 1:
        return NodeSelection(mirror.nodes[0], "the only one")
    states = probe(name, mirror, clock, stored.quarantined)
    made = choice(mirror, states, stored, retry)
    last = _read_last(stored.checkpoints)
    for index, node in enumerate(mirror.nodes):
        if node.name == made.name:
            # also those that are down now: by the time one is needed, it may be up
            others = (*mirror.nodes[index + 1 :], *mirror.nodes[:index])
            return NodeSelection(
                node,
                made.why,
                tuple(one for one in others if one.name not in stored.quarantined),
                last if last not in {None, node.name} else "",
                tuple(made.verdicts),
                tuple(one.view for one in states if one.node != node and not one.quarantined),
            )
    readable = [one for one in states if not one.quarantined]
    if not readable:
        raise DivergedNodeError(
            f"no node of the source can be read: {made.why}",
            remedy="rebuild one of them, then `relay nodes --clear NODE`",
        )
    refusals = [one.refusal for one in readable if one.refusal]
    kind = type(refusals[0]) if len(refusals) == len(readable) else SourceError
    remedy = "see `relay nodes`"
    if any(one.lacking for one in made.verdicts):
        remedy = f"start the nodes that do not answer, or take them off source.nodes to do without what they alone have; {remedy}"
    raise kind(f"no node of the source can be read: {made.why}", remedy=remedy)


def _read_last(checkpoints: Mapping[TopicPartition, Checkpoint]) -> str | None:
    last = max(checkpoints.values(), key=lambda one: one.committed_at_ms, default=None)
    return None if last is None else last.node


def _probe(name: str, mirror: Mirror, node: Cluster, clock: Clock) -> NodeState:
    began = clock.monotonic()
    try:
        with ClusterClient(
            node, SourceError, f"relay-{name}-health", mirror.source.health.request_timeout
        ) as client:
            topics = client.metadata().topics
            chosen = [
                one.topic
                for one in select(topics, mirror.topics.allow, mirror.topics.deny)
                if one.included
            ]
            wanted = [one for topic in chosen for one in topics[topic].topic_partitions]
            low = client.list_offsets(wanted, EARLIEST, READ_COMMITTED)
            ends = client.list_offsets(wanted, LATEST, READ_COMMITTED)
    except RelayError as error:
        refusal = None if error.retryable else error
        return NodeState(
            node, None, (clock.monotonic() - began) * 1000, str(error), refusal=refusal
        )
    return NodeState(node, ends, (clock.monotonic() - began) * 1000, low_watermarks=low)
