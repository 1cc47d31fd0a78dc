"""What both clusters say before a run, read once. Nothing is written."""

from __future__ import annotations

from collections.abc import Callable, Container, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property

from relay_pipelines.copy.transaction import QUARANTINE
from relay_pipelines.errors import (
    ConfigError,
    DataLossError,
    DestinationError,
    SourceError,
)
from relay_pipelines.model import Checkpoint, Cluster, LedgerEntry, RecordPolicy, TopicPartition
from relay_pipelines.plan.node_choice import Verdict
from relay_pipelines.plan.owners import claimant_id, own_id
from relay_pipelines.plan.positions import Position, loss
from relay_pipelines.plan.topic_selection import (
    Target,
    TopicDecision,
    literal_names,
    select,
    targets,
)
from relay_pipelines.protocol.admin import ConfigValue, sizes_on_disk, topic_configs
from relay_pipelines.protocol.client import LATEST, READ_UNCOMMITTED, ClusterClient, TopicMetadata
from relay_pipelines.protocol.clock import Clock
from relay_pipelines.protocol.retries import retry
from relay_pipelines.settings import Mirror
from relay_pipelines.snapshot import loop_guard, node_selection, start_offsets
from relay_pipelines.snapshot.watermarks import Positions
from relay_pipelines.state import checkpoint as checkpoints
from relay_pipelines.state.checkpoint import CheckpointSnapshot, StartRecord
from relay_pipelines.state.ledger_reader import LedgerFollower

NEEDED_CONFIGS = ("compression.type", "max.message.bytes", "message.timestamp.type")
"""What a copy must know of its destination."""
_LEDGER_OFFSETS = 10_000  # per partition of the ledger, two an entry: half a second in all

Belongs = Callable[[str], bool]
Configs = Mapping[str, Mapping[str, ConfigValue]]


@dataclass(frozen=True)  # without slots: what is derived is derived once
class ClusterSnapshot:
    """What both clusters say.

    Args:
        node: the source node that was asked, and will be read.
        decisions: on every topic of the source.
        targets: source topic -> destination topic, and the partition to which it is pinned, of the
        included ones.
        positions: every topic-partition of the included topics.
        checkpoint_ends: how far each partition of the checkpoint topic was read; empty if it does
        not exist yet.
        source_topics, destination_topics: metadata by name; of the destination only those that
        exist.
        source_configs: those that follow the source, `topics.config_keys`; empty if nobody asked
        for them.
        destination_configs: those, and what a copy must know; empty if nobody asked for them.
        sizes_bytes: on the source's disk, where it tells.
        node_why: why this node is read.
        other_nodes: those to go on with when it fails, in order.
        left_node: the node that was read before, if this is another one.
        verdicts: on every node that was asked.
        recorded: the last ledger entry per topic-partition, where the mirror has no checkpoint at
        all, but may have copied.
        record_policy: source topic -> how its records are copied.
        accepted: losses behind which the copy has just been told to go on.
        deleted: source topic -> destination topic, of those that were copied, are still selected,
        and are not at the node.
        new_starts: of topics for which nobody has decided yet; those who copy write them down
        before the first record.
        owners: the transactional ids that own source topic-partitions, where one was recorded.
        unseen: names that `topics.allow` spells out, that were never copied, and that the node does
            not show.
    """

    mirror: str
    node: Cluster
    destination: Cluster
    decisions: Sequence[TopicDecision]
    targets: Mapping[str, Target]
    positions: Sequence[Position]
    checkpoints: Mapping[TopicPartition, Checkpoint]
    checkpoint_ends: Mapping[TopicPartition, int]
    source_topics: Mapping[str, TopicMetadata]
    destination_topics: Mapping[str, TopicMetadata]
    source_configs: Configs
    destination_configs: Configs
    sizes_bytes: Mapping[TopicPartition, int]
    node_why: str = ""
    other_nodes: tuple[Cluster, ...] = ()
    left_node: str = ""
    verdicts: tuple[Verdict, ...] = ()
    recorded: Mapping[TopicPartition, LedgerEntry] = field(default_factory=dict)
    record_policy: Mapping[str, RecordPolicy] = field(default_factory=dict)
    accepted: tuple[DataLossError, ...] = ()
    deleted: Mapping[str, str] = field(default_factory=dict)
    new_starts: Sequence[StartRecord] = ()
    unseen: tuple[str, ...] = ()
    owners: Mapping[TopicPartition, str] = field(default_factory=dict)

    def owner_of(self, source: TopicPartition) -> str:
        """Return the transactional id that alone may copy a source topic-partition now."""
        if source in self.owners:
            return self.owners[source]
        return (
            own_id(self.mirror, source) if source in self.checkpoints else claimant_id(self.mirror)
        )

    @property
    def copied_to(self) -> set[str]:
        """The destination topics that this mirror has copied to: they are its own to alter."""
        return {one.destination.topic for one in self.checkpoints.values()}

    def positions_of(self, topic: str) -> list[Position]:
        """Those of one topic."""
        return [one for one in self.positions if one.topic_partition.topic == topic]

    @cached_property
    def destinations(self) -> dict[str, str]:
        """Source topic -> destination topic."""
        return {source: to.topic for source, to in self.targets.items()}

    def destination_of(self, source: TopicPartition) -> TopicPartition:
        """Where the records of a source topic-partition go."""
        to = self.targets[source.topic]
        return TopicPartition(to.topic, source.partition if to.partition is None else to.partition)

    def partitions_needed(self) -> dict[str, int]:
        """How many partitions every destination topic must have, quarantines included."""
        needed: dict[str, int] = {}
        for source, to in self.targets.items():
            count = (
                len(self.source_topics[source].leaders)
                if to.partition is None
                else to.partition + 1
            )
            for topic in _written_to(to.topic, self.record_policy.get(source)):
                needed[topic] = max(count, needed.get(topic, 0))
        return needed

    @cached_property
    def first_sources(self) -> dict[str, str]:
        """Destination topic, or quarantine -> the source topic after which it is made."""
        found: dict[str, str] = {}
        for source, to in self.targets.items():
            for topic in _written_to(to.topic, self.record_policy.get(source)):
                found.setdefault(topic, source)
        return found


def _written_to(destination: str, record_policy: RecordPolicy | None) -> list[str]:
    return (
        [destination, destination + QUARANTINE]
        if record_policy and record_policy.may_quarantine
        else [destination]
    )


def _refuse_foreign_quarantines(
    record_policy: Mapping[str, RecordPolicy], everywhere: Mapping[str, Target]
) -> None:
    """A quarantine must not be the copy of another topic: records of both would be in it."""
    copies = {to.topic: source for source, to in everywhere.items()}
    for topic, how in record_policy.items():
        for written in _written_to(everywhere[topic].topic, how)[1:]:
            if written in copies:
                raise ConfigError(
                    f"the quarantine of topic {topic!r} is {written!r}, which is the copy of topic {copies[written]!r}",
                    remedy="rename one of them with topics.rename, or leave one out with topics.deny",
                )


def everything(_topic: str) -> bool:
    """Answer a survey of all topics."""
    return True


def take_snapshot(
    name: str,
    mirror: Mirror,
    clock: Clock,
    only_topic: str | None = None,
    *,
    belongs: Belongs = everything,
    first_node: int = 0,
    configs: bool = True,
    patient: bool = True,
) -> ClusterSnapshot:
    """Ask the source node that is to be read, and the destination.

    Args:
        only_topic: leave all other topics alone.
        belongs: leave all topics alone for which it says no.
        first_node: which one to ask first, counted around the source's nodes; the others follow in
        order.
        configs: whether to ask for the topics' configurations, the dearest question: only those who
        copy need them.
        patient: as in `retry`.

    Raises:
        ConfigError: source and destination are the same topic of the same cluster, or copy from
            each other, or `only_topic` is not mirrored.
        RelayError: no node answers, or the destination does not; the user lacks a permission.
    """

    def ask() -> ClusterSnapshot:
        return _take_snapshot(name, mirror, clock, only_topic, belongs, first_node, configs=configs)

    return retry(ask, name, mirror.copy_options, clock, patient=patient)


def read_checkpoints(
    name: str, mirror: Mirror, clock: Clock, *, settled: bool = False, patient: bool = True
) -> CheckpointSnapshot:
    """Read a mirror's checkpoints alone, and what stands beside them.

    Args:
        settled: wait until all transactions open by now have ended; those of other mirrors hide
        checkpoints, too.
        patient: as in `retry`.

    Raises:
        RelayError: the destination does not answer.
    """
    return retry(
        lambda: _read_checkpoints(name, mirror, clock, settled=settled),
        name,
        mirror.copy_options,
        clock,
        patient=patient,
    )


def _read_checkpoints(
    name: str, mirror: Mirror, clock: Clock, *, settled: bool
) -> CheckpointSnapshot:
    timeout_ms = mirror.copy_options.request_timeout_ms
    with ClusterClient(
        mirror.destination_cluster, DestinationError, f"relay-{name}", timeout_ms
    ) as destination:
        if destination.metadata([checkpoints.TOPIC]).topics[checkpoints.TOPIC].error_code:
            return CheckpointSnapshot()
        if settled:
            checkpoints.wait_for_open_transactions(
                destination, checkpoints.homes(checkpoints.TOPIC), mirror.copy_options, clock
            )
        return checkpoints.read_all(destination, name, clock)


def _take_snapshot(
    name: str,
    mirror: Mirror,
    clock: Clock,
    only_topic: str | None,
    belongs: Belongs,
    first_node: int,
    *,
    configs: bool,
) -> ClusterSnapshot:
    timeout_ms = mirror.copy_options.request_timeout_ms
    with ClusterClient(
        mirror.destination_cluster, DestinationError, f"relay-{name}", timeout_ms
    ) as destination:
        at_destination = destination.metadata()
        known = (
            checkpoints.read_all(destination, name, clock)
            if checkpoints.TOPIC in at_destination.topics
            else CheckpointSnapshot()
        )
        reading = node_selection.to_read(name, mirror, known, clock, first_node)
        # with another node to go to, nobody waits for one that hangs as long as for the only one
        patience_ms = mirror.source.health.request_timeout if reading.others else timeout_ms
        with ClusterClient(reading.node, SourceError, f"relay-{name}", patience_ms) as source:
            at_source = source.metadata()
            decisions = select(at_source.topics, mirror.topics.allow, mirror.topics.deny)
            included = [
                one.topic
                for one in decisions
                if one.included and only_topic in {None, one.topic} and belongs(one.topic)
            ]
            if only_topic is not None and not included:
                raise _not_mirrored(only_topic, decisions)
            # of all topics, as those of other lanes and runs must not land on the same ones
            everywhere = targets(
                [one.topic for one in decisions if one.included], mirror.topics.rename
            )
            renamed = {topic: everywhere[topic].topic for topic in included}
            if at_source.cluster_id == at_destination.cluster_id:
                loop_guard.refuse_onto_itself(source.cluster, renamed)
            if checkpoints.TOPIC in at_source.topics:
                loop_guard.refuse(source, at_destination.cluster_id, renamed, clock)
            record_policy = {topic: mirror.record_policy(topic) for topic in included}
            recorded: Mapping[TopicPartition, LedgerEntry] = {}
            if not known.checkpoints and _holds_records(
                destination, [at_destination.topics.get(one) for one in renamed.values()]
            ):
                known, recorded = _recorded(name, mirror, destination, known, clock)
            written = {
                one
                for topic in included
                for one in _written_to(renamed[topic], record_policy[topic])
            }
            _refuse_foreign_quarantines(record_policy, everywhere)
            existing = sorted(topic for topic in written if topic in at_destination.topics)
            gone = {} if only_topic else _deleted(mirror, known, at_source.topics, belongs)
            absent = [] if only_topic else _absent(mirror, at_source.topics, belongs)
            keys = mirror.topics.config_keys
            positions = [
                replace(one, elsewhere=reading.elsewhere(one, found))
                if (found := loss(one))
                else one
                for one in Positions(source, at_destination, renamed, known, recorded, mirror).all()
            ]
            undecided = start_offsets.undecided(mirror.start, known, recorded, included)
            return ClusterSnapshot(
                mirror=name,
                node=source.cluster,
                destination=destination.cluster,
                decisions=decisions,
                targets={topic: everywhere[topic] for topic in included},
                positions=positions,
                checkpoints=known.checkpoints,
                checkpoint_ends=known.ends,
                owners=known.owners,
                source_topics={topic: at_source.topics[topic] for topic in included},
                destination_topics={topic: at_destination.topics[topic] for topic in existing},
                source_configs=topic_configs(source, included, keys) if configs else {},
                destination_configs=topic_configs(
                    destination, existing, sorted({*keys, *NEEDED_CONFIGS})
                )
                if configs
                else {},
                sizes_bytes=sizes_on_disk(source, included),
                recorded=recorded,
                node_why=reading.why,
                other_nodes=reading.others,
                left_node=reading.left,
                verdicts=reading.verdicts,
                record_policy=record_policy,
                deleted=gone,
                unseen=tuple(topic for topic in absent if topic not in gone),
                new_starts=_starts(name, source, undecided, positions, clock),
            )


def _starts(
    name: str,
    source: ClusterClient,
    undecided: Sequence[str],
    positions: Sequence[Position],
    clock: Clock,
) -> list[StartRecord]:
    starts: dict[str, dict[int, int]] = {topic: {} for topic in undecided}
    for one in positions:
        if one.topic_partition.topic in starts:
            starts[one.topic_partition.topic][one.topic_partition.partition] = one.begin
    node, now_ms = source.cluster.name, clock.now_ms()
    return [
        StartRecord(name, topic, these, node, source.topic(topic).topic_id, now_ms)
        for topic, these in starts.items()
    ]


def _deleted(
    mirror: Mirror, known: CheckpointSnapshot, present: Container[str], belongs: Belongs
) -> dict[str, str]:
    """Source topic -> destination topic, of those that were copied and are still selected, and that the source no longer has."""
    gone = {
        at.topic: one.destination.topic
        for at, one in known.checkpoints.items()
        if at.topic not in present
    }
    decisions = select(gone, mirror.topics.allow, mirror.topics.deny)
    return {one.topic: gone[one.topic] for one in decisions if one.included and belongs(one.topic)}


def _absent(mirror: Mirror, present: Container[str], belongs: Belongs) -> list[str]:
    """The topics that relay.yaml names one by one, and that the source does not show."""
    named = select(literal_names(mirror.topics.allow), mirror.topics.allow, mirror.topics.deny)
    return [
        one.topic
        for one in named
        if one.included and one.topic not in present and belongs(one.topic)
    ]


def _holds_records(destination: ClusterClient, topics: Iterable[TopicMetadata | None]) -> bool:
    """Whether anything was ever written to one of these topics: only then can a lost checkpoint double anything."""
    wanted = {at for topic in topics if topic for at in topic.topic_partitions}
    return any(destination.list_offsets(wanted, LATEST, READ_UNCOMMITTED).values())


def _recorded(
    name: str, mirror: Mirror, destination: ClusterClient, known: CheckpointSnapshot, clock: Clock
) -> tuple[CheckpointSnapshot, dict[TopicPartition, LedgerEntry]]:
    """The last ledger entry of every source topic-partition, what checkpoints say, as far as the end of the ledger tells.

    Another run may have committed the first checkpoints since: they win, and no entry is returned.
    """
    follower = LedgerFollower(mirror.destination_cluster, name, None, mirror.copy_options, clock)
    try:
        history = follower.history(settled=True, last_offsets=_LEDGER_OFFSETS)
    finally:
        follower.close()
    if history and known.ends:
        checkpoints.wait_for_open_transactions(
            destination, checkpoints.homes(checkpoints.TOPIC), mirror.copy_options, clock
        )
        known = checkpoints.read_all(destination, name, clock)
    return known, {} if known.checkpoints else {one.source.topic_partition: one for one in history}


def _not_mirrored(topic: str, decisions: Sequence[TopicDecision]) -> ConfigError:
    why = next((one.why for one in decisions if one.topic == topic), "the source has no such topic")
    return ConfigError(
        f"topic {topic!r} is not mirrored: {why}", remedy="see `relay plan` for every topic and why"
    )
