"""Asks all nodes of a source at once, so a slow one does not delay the others, and selects one.

Whether a source node holds the records that were copied, from it or from another node.
"""

from __future__ import annotations

from collections.abc import Container, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from dataclasses import dataclass, field, replace

from relay_pipelines.copy.position import difference, log_of, other_records, unproved_logs
from relay_pipelines.errors import (
    DivergedNodeError,
    RelayError,
    SourceError,
    TopicRecreatedError,
)
from relay_pipelines.ledger.state_table import CheckpointSnapshot
from relay_pipelines.model import (
    Checkpoint,
    Cluster,
    NodeIdentity,
    OffsetRange,
    TopicPartition,
)
from relay_pipelines.plan import node_choice
from relay_pipelines.plan.node_choice import NodeChoice, NodeVerdict, NodeView, judge_nodes
from relay_pipelines.plan.positions import Elsewhere, Loss, Position
from relay_pipelines.plan.topic_selection import select
from relay_pipelines.protocol.client import EARLIEST, LATEST, READ_COMMITTED
from relay_pipelines.settings import Mirror
from relay_pipelines.sides import Sides


@dataclass(frozen=True, slots=True)
class NodeState:
    """What a node answered.

    Args:
        end_offsets: the last stable offsets of the mirrored topic-partitions; None if it did not
            answer.
        latency_ms: how long the whole answer took, or how long it was awaited.
        error: why there is no answer; empty if there is one.
        quarantined: why it must not be read; empty if it may be.
        refusal: the error, if a retry is pointless: the node refuses the user, or its certificates
            cannot be read.
        low_watermarks: of the mirrored topic-partitions.
        cluster_id: of its cluster; empty if it did not answer.
        topic_ids: of the mirrored topics.
        unproved: as of `NodeView`.
        leaderless: the topic-partitions that have no leader.
        unreadable: those of which the last record copied cannot be read, and why.
    """

    node: Cluster
    end_offsets: Mapping[TopicPartition, int] | None = None
    latency_ms: float = 0.0
    error: str = ""
    quarantined: str = ""
    refusal: RelayError | None = None
    low_watermarks: Mapping[TopicPartition, int] = field(default_factory=dict)
    cluster_id: str = ""
    topic_ids: Mapping[str, str] = field(default_factory=dict)
    unproved: frozenset[TopicPartition] = frozenset()
    leaderless: frozenset[TopicPartition] = frozenset()
    unreadable: Mapping[TopicPartition, RelayError] = field(default_factory=dict)

    @property
    def view(self) -> NodeView:
        """What `judge_nodes` needs of it."""
        return NodeView(
            self.node.name,
            self.end_offsets,
            self.error,
            self.quarantined,
            self.low_watermarks,
            self.unproved,
            self.unanswered,
        )

    @property
    def unanswered(self) -> dict[TopicPartition, str]:
        """The topic-partitions that it cannot answer for, and why."""
        refused = {tp: error.what for tp, error in self.unreadable.items()}
        return dict.fromkeys(self.leaderless, "it has no leader") | refused

    def has_proved(self, checkpoint: Checkpoint) -> bool:
        """Whether a log is known, or was compared: one that ends at the checkpoint never is."""
        tp = checkpoint.source
        ends_there = (self.end_offsets or {}).get(tp) == checkpoint.next_offset
        return checkpoint.knows(self.log(tp.topic)) or not ends_there

    def log(self, topic: str) -> NodeIdentity:
        """Return which log a mirrored topic is on this node."""
        return NodeIdentity(self.node.name, self.topic_ids.get(topic, ""), self.cluster_id)


def probe(sides: Sides, snapshot: CheckpointSnapshot | None = None) -> list[NodeState]:
    """Ask every node, in configured order, and wait for `health.request_timeout` at most.

    A node with topics that the checkpoints do not know is asked again, for the last records copied.

    Args:
        snapshot: what was copied, and which nodes must not be read; None to compare nothing.
    """
    timeout_ms = sides.mirror.source.health.request_timeout
    pool = ThreadPoolExecutor(max_workers=len(sides.mirror.nodes), thread_name_prefix="probe")
    answers = {node: pool.submit(_probe, sides, node) for node in sides.mirror.nodes}
    wait(answers.values(), timeout_ms / 1000)
    pool.shutdown(wait=False)  # the requests of slow nodes end by their own timeouts
    late = f"no answer within {timeout_ms / 1000:g} s"
    states = [
        answer.result() if answer.done() else NodeState(node, None, timeout_ms, f"{node}: {late}")
        for node, answer in answers.items()
    ]
    if snapshot is None:
        return states
    return [
        replace(state, quarantined=why)
        if (why := snapshot.quarantined.get(state.node.name, ""))
        else _compared(sides, state, snapshot)
        for state in states
    ]


def choose_node(
    mirror: Mirror,
    states: Sequence[NodeState],
    checkpoints: CheckpointSnapshot,
    attempt: int = 0,
    *,
    waits: bool = False,
) -> NodeChoice:
    """Choose the node to read: the one that was read last while it is healthy, else another.

    Args:
        attempt: every attempt after the first prefers another node, whatever was read last.
        waits: as in `node_choice.choose_node`.
    """
    health = mirror.source.health
    views = [state.view for state in states]
    begins_low = checkpoints.has_begun or mirror.start.is_earliest
    # what was never copied begins at the node that has the most of it
    new = node_choice.first_offsets(views) if begins_low else {}
    verdicts = judge_nodes(views, new | checkpoints.next_offsets, health.lag_threshold)
    last = _last_node(checkpoints.checkpoints)
    return node_choice.choose_node(verdicts, last, health.failback, attempt, waits=waits)


@dataclass(frozen=True, slots=True)
class NodeSelection:
    """The node to read, and why.

    Args:
        others: the nodes to fail over to, in order.
        previous: the node that was read before, if it is another one.
        verdicts: on every node; on an only one without asking it.
        unread: the other nodes, without those in quarantine.
        cluster_ids: of the nodes that were asked and answered.
    """

    node: Cluster
    why: str
    others: tuple[Cluster, ...] = ()
    previous: str = ""
    verdicts: tuple[NodeVerdict, ...] = ()
    unread: tuple[NodeState, ...] = ()
    cluster_ids: frozenset[str] = frozenset()

    def elsewhere(self, position: Position, loss: Loss) -> Elsewhere | None:
        """Return which other node may have lost records; None if all answered and none has them."""
        lost = OffsetRange(position.topic_partition, position.begin, loss.resume)
        views = [state.view for state in self.unread]
        for view in views:
            if loss.error is TopicRecreatedError and view.has_log(lost.topic_partition):
                return Elsewhere(f"node {view.name} has the log that was copied", is_silent=False)
            if view.holds_some(lost) if lost else view.holds(lost.topic_partition, lost.start):
                return Elsewhere(f"node {view.name} has them", is_silent=False)
        silent = self.silent(position)
        return Elsewhere(silent, is_silent=True) if silent else None

    def silent(self, position: Position) -> str:
        """Say which other node does not answer for a topic-partition; empty if all do."""
        return self._silent(position.topic_partition)

    def _silent(self, tp: TopicPartition) -> str:
        for state in self.unread:
            if not state.view.answers_for(tp):
                why = state.error or f"{state.unanswered[tp]} there"
                return f"node {state.node.name} does not answer: {why}"
        return ""

    def first_offset(self, position: Position) -> int:
        """Return where the log begins on the node that has the most of it.

        Of a topic that was created again, this is the first offset of any node's.
        """
        tp, first = position.topic_partition, position.low_watermark
        for view in (state.view for state in self.unread):
            low = view.low_watermarks.get(tp, first)
            is_same = position.recreated or view.has_log(tp)
            if is_same and low < (view.end_offsets or {}).get(tp, low):
                first = min(first, low)
        return first

    def older(self, position: Position) -> Elsewhere | None:
        """Return which other node has, or may have, records before a new one's low watermark."""
        before = OffsetRange(position.topic_partition, 0, position.low_watermark)
        if not before or position.low_watermark == position.end_offset:
            return None
        here = f"node {self.node.name}"
        for state in self.unread:
            if state.view.holds_some(before):
                what = f"{here}, but node {state.node.name} has the offsets before it"
                return Elsewhere(what, is_silent=False)
        if not (silent := self.silent(position)):
            return None
        return Elsewhere(
            f"{here}, and it is unknown who has those before it: {silent}", is_silent=True
        )

    def missing(
        self, at_node: Container[TopicPartition], begun: Iterable[TopicPartition]
    ) -> dict[TopicPartition, RelayError]:
        """Return an error for every topic-partition that this node does not have, but another may.

        Args:
            at_node: the topic-partitions of this node.
            begun: those with a checkpoint, or whose start is decided. One that no node shows may be
                on a silent one.
        """
        found: dict[TopicPartition, Elsewhere] = {}
        for state in self.unread:
            for tp, low in state.low_watermarks.items():
                end = (state.end_offsets or {}).get(tp, low)
                if tp not in at_node and low < end:
                    what = f"but node {state.node.name} has its offsets [{low}, {end})"
                    found.setdefault(tp, Elsewhere(what, is_silent=False))
        for tp in begun:
            if tp not in at_node and (silent := self._silent(tp)):
                found.setdefault(tp, Elsewhere(f"and {silent}", is_silent=True))
        return {
            tp: SourceError(
                f"node {self.node.name} does not have it, {elsewhere.what}",
                remedy=elsewhere.remedy(
                    "create it on both, or copy it with only that node in source.nodes"
                ),
                topic_partition=tp,
            )
            for tp, elsewhere in sorted(found.items())
        }

    def same_logs(
        self, tp: TopicPartition, checkpoint: Checkpoint | None
    ) -> tuple[NodeIdentity, ...]:
        """Return the logs of the other nodes that hold what was copied of a topic-partition.

        Before the first record is copied, these are the logs that the configuration calls the same.
        """
        return tuple(
            state.log(tp.topic)
            for state in self.unread
            if state.view.has_log(tp) and (checkpoint is None or state.has_proved(checkpoint))
        )


def select_node(
    sides: Sides, checkpoints: CheckpointSnapshot, attempt: int = 0, *, waits: bool = False
) -> NodeSelection:
    """Select the node to read. A source's only node is not asked beforehand.

    Args:
        attempt, waits: as in `choose_node`.

    Raises:
        SourceError: no node can be read now; names every node and its reason.
        RelayError: no node can be read, and a retry is pointless.
        DivergedNodeError: all nodes are in quarantine.
    """
    if len(sides.mirror.nodes) == 1:
        (node,) = sides.mirror.nodes
        why = checkpoints.quarantined.get(node.name, "")
        verdict = NodeVerdict(
            node.name, eligible=not why, healthy=not why, why=why, quarantined=bool(why)
        )
        return NodeSelection(node, "the only one", verdicts=(verdict,))
    states = probe(sides, checkpoints)
    choice = choose_node(sides.mirror, states, checkpoints, attempt, waits=waits)
    names = [node.name for node in sides.mirror.nodes]
    if choice.name not in names:
        raise _no_node(states, choice)
    index = names.index(choice.name)
    nodes = [replace(state.node, id=state.cluster_id) for state in states]
    node, last = nodes[index], _last_node(checkpoints.checkpoints)
    # includes nodes that are down now: they may be up when one is needed
    others = (*nodes[index + 1 :], *nodes[:index])
    return NodeSelection(
        node,
        choice.why,
        tuple(other for other in others if other.name not in checkpoints.quarantined),
        last if last not in {None, node.name} else "",
        tuple(choice.verdicts),
        tuple(state for state in states if state.node != node and not state.quarantined),
        frozenset(state.cluster_id for state in states if state.cluster_id),
    )


def _no_node(states: Sequence[NodeState], choice: NodeChoice) -> RelayError:
    what = f"no node of the source can be read: {choice.why}"
    readable = [state for state in states if not state.quarantined]
    if not readable:
        remedy = "rebuild one of them, then `relay nodes --clear NODE`"
        return DivergedNodeError(what, remedy=remedy)
    refusals = [state.refusal for state in readable if state.refusal]
    kind = type(refusals[0]) if len(refusals) == len(readable) else SourceError
    remedy = "see `relay nodes`"
    if any(verdict.incomplete_partitions for verdict in choice.verdicts):
        remedy = (
            "start the nodes that do not answer, or remove them from source.nodes to give up"
            f" the records that only they have; {remedy}"
        )
    return kind(what, remedy=remedy)


def _last_node(checkpoints: Mapping[TopicPartition, Checkpoint]) -> str | None:
    last = max(
        checkpoints.values(), key=lambda checkpoint: checkpoint.committed_at_ms, default=None
    )
    return None if last is None else last.node


def _probe(sides: Sides, node: Cluster) -> NodeState:
    began = sides.clock.monotonic()
    try:
        with sides.source(node, "health", options=sides.mirror.health_options) as client:
            metadata = client.metadata()
            topics = metadata.topics
            decisions = select(topics, sides.mirror.topics.allow, sides.mirror.topics.deny)
            mirrored = [
                tp
                for decision in decisions
                if decision.included
                for tp in topics[decision.topic].topic_partitions
            ]
            partitions = [tp for tp in mirrored if topics[tp.topic].has_leader(tp.partition)]
            low = client.list_offsets(partitions, EARLIEST, READ_COMMITTED)
            ends = client.list_offsets(partitions, LATEST, READ_COMMITTED)
    except RelayError as error:
        refusal = None if error.retryable else error
        return NodeState(
            node, None, (sides.clock.monotonic() - began) * 1000, str(error), refusal=refusal
        )
    return NodeState(
        node,
        ends,
        (sides.clock.monotonic() - began) * 1000,
        low_watermarks=low,
        cluster_id=metadata.cluster_id,
        topic_ids={tp.topic: topics[tp.topic].topic_id for tp in partitions},
        leaderless=frozenset(mirrored).difference(partitions),
    )


def _compared(sides: Sides, state: NodeState, snapshot: CheckpointSnapshot) -> NodeState:
    """Compare the last records copied with a node's, where ids do not tell its log."""
    ends = state.end_offsets or {}
    unknown = {
        tp: checkpoint
        for tp, checkpoint in snapshot.checkpoints.items()
        if tp in ends and (tp in snapshot.doubted or not checkpoint.knows(state.log(tp.topic)))
    }
    if not unknown:
        return state
    try:
        with sides.source(state.node, "health", options=sides.mirror.health_options) as client:
            unproved, unreadable = unproved_logs(client, ends, unknown, snapshot.doubted)
    except RelayError as error:
        return replace(state, end_offsets=None, error=str(error))
    return replace(
        state,
        end_offsets={tp: end for tp, end in ends.items() if tp not in unreadable},
        unproved=frozenset(unproved),
        unreadable=unreadable,
    )


def find_divergence(
    sides: Sides, node: Cluster, checkpoints: Iterable[Checkpoint]
) -> RelayError | None:
    """Compare the last copied record of every topic-partition with the node's.

    Topic-partitions that end earlier at the node, or have no leader there, are left out: they make
    the node ineligible anyway.

    Returns:
        the first difference: a `DivergedNodeError`, or a `TopicRecreatedError` if the node holds
            another topic than it did, which the guards hold back without a quarantine; None if
            there is none.

    Raises:
        RelayError: the node does not answer, or refuses.
    """
    with sides.source(node, "divergence", sides.mirror.health_options) as client:
        topics = client.metadata().topics
        by_source = {
            committed.source: committed
            for committed in checkpoints
            if committed.source.topic in topics
            and topics[committed.source.topic].has_leader(committed.source.partition)
        }
        ends = client.list_offsets(by_source, LATEST, READ_COMMITTED)
        for tp, committed in sorted(by_source.items()):
            if ends[tp] < committed.next_offset:
                continue
            if differing := difference(client, committed):
                return other_records(log_of(client, tp.topic), committed, differing)
    return None
