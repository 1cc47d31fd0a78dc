"""What both clusters look like at one time; `read_clusters` takes it."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property

from relay_pipelines.errors import RelayError
from relay_pipelines.finding import Finding
from relay_pipelines.ledger.checkpoint import StartRecord
from relay_pipelines.ledger.state_table import CheckpointSnapshot
from relay_pipelines.model import (
    Checkpoint,
    Cluster,
    CopyOptions,
    Hop,
    OffsetRange,
    Policy,
    RecordPolicy,
    TopicPartition,
)
from relay_pipelines.plan import policies as record_policies
from relay_pipelines.plan.blockers import Blocker, Blockers, Facts, judge
from relay_pipelines.plan.owners import present_owner
from relay_pipelines.plan.positions import Position
from relay_pipelines.plan.topic_selection import QUARANTINE, Target, TopicDecision
from relay_pipelines.plan.upstreams import UpstreamSelection
from relay_pipelines.protocol.client import ClusterClient
from relay_pipelines.protocol.config_requests import ConfigValue
from relay_pipelines.protocol.metadata import Metadata, TopicMetadata
from relay_pipelines.sides import Sides

Belongs = Callable[[str], bool]
Configs = Mapping[str, Mapping[str, ConfigValue]]


@dataclass(frozen=True, slots=True)
class Topic:
    """A topic of the source that is included.

    Args:
        target: its destination topic, and the partition to which it is pinned.
        policy: how its records are copied, with the files of its classes.
        passed: the hops by which copies came to it; none for a topic without copies.
    """

    target: Target
    metadata: TopicMetadata
    policy: RecordPolicy
    passed: tuple[Hop, ...] = ()

    @property
    def written(self) -> list[str]:
        """The destination topics that get its records."""
        quarantine = [self.target.topic + QUARANTINE] if self.policy.may_quarantine else []
        return [self.target.topic, *quarantine]


@dataclass(frozen=True, slots=True)
class TopicConfigs:
    """Configurations of topics, at least of those that would be copied.

    Args:
        source, destination: by topic and key.
        refused: source topic -> why it could not be copied: its configuration, or that of its
            copy, cannot be read.
        sizes_bytes: of what would be copied, on the source's disk, where it reports them.
    """

    source: Configs = field(default_factory=dict)
    destination: Configs = field(default_factory=dict)
    refused: Mapping[str, RelayError] = field(default_factory=dict)
    sizes_bytes: Mapping[TopicPartition, int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Selected:
    """Which topics relay.yaml selects.

    Args:
        decisions: on every topic of the source.
        deleted: source topic -> destination topic, of topics that are selected and that the
            upstream no longer has; the destination topic is empty if nothing was copied.
        unseen: names that `topics.allow` spells out, that were never copied, and that the upstream
            does not have.
    """

    decisions: Sequence[TopicDecision] = ()
    deleted: Mapping[str, str] = field(default_factory=dict)
    unseen: tuple[str, ...] = ()

    @property
    def shown(self) -> list[str]:
        """The topics that the source shows, without those of Kafka and of relay itself."""
        topics = (decision.topic for decision in self.decisions)
        return [topic for topic in topics if not topic.startswith("__")]

    def only(self, belongs: Belongs) -> Selected:
        """Return what concerns some topics."""
        deleted = {topic: to for topic, to in self.deleted.items() if belongs(topic)}
        return Selected(self.decisions, deleted, tuple(filter(belongs, self.unseen)))


@dataclass(frozen=True)  # without slots, for the cached properties
class ClusterSnapshot:
    """What both clusters look like.

    Args:
        sides: the mirror, and the destination that was seen: whoever acts on the snapshot asks
            that, and no other cluster that has its addresses by then.
        selection: the upstream that was asked, and that a copy reads; and the others.
        state: what the destination knows of the mirror.
        topics: the included ones, by name.
        positions: every topic-partition of these topics that has one.
        facts: what else the judges of `blockers` ask.
        at_destination: brokers of the destination, and the topics there that concern the mirror.
        configs: of the topics that would be copied; with `configs.with_all` of all.
        new_starts: as `start_offsets.new_starts` returns them; a run writes them before it copies
            the first record.
        accepted: losses that were accepted just before the snapshot was taken.
    """

    sides: Sides
    selection: UpstreamSelection
    state: CheckpointSnapshot
    topics: Mapping[str, Topic]
    positions: Sequence[Position]
    facts: Facts
    at_destination: Metadata
    configs: TopicConfigs
    selected: Selected
    new_starts: Sequence[StartRecord] = ()
    accepted: tuple[RelayError, ...] = ()

    @property
    def name(self) -> str:
        """The name of the mirror."""
        return self.sides.name

    @property
    def upstream(self) -> Cluster:
        """The upstream that was asked."""
        return self.selection.read.cluster

    @cached_property
    def destination(self) -> Cluster:
        """The cluster that was asked, with its id."""
        return self.sides.destination_cluster

    @property
    def checkpoints(self) -> Mapping[TopicPartition, Checkpoint]:
        """Those of the mirror."""
        return self.state.checkpoints

    def source_client(self, purpose: str = "") -> ClusterClient:
        """Return a client of the upstream that was asked."""
        return self.sides.source(self.upstream, purpose)

    def destination_client(
        self, purpose: str = "", options: CopyOptions | None = None
    ) -> ClusterClient:
        """Return a client of the destination that was asked; arguments as of `Sides`."""
        return self.sides.destination(purpose, options)

    @cached_property
    def blockers(self) -> dict[TopicPartition, Blockers]:
        """All that keeps topic-partitions from being copied; of one that is copied, none.

        Those of a topic that is refused share its error.
        """
        return judge(self.positions, self.facts)

    @cached_property
    def held(self) -> dict[TopicPartition, RelayError]:
        """Why topic-partitions are not copied: the worst of their blockers."""
        return {tp: next(iter(reasons_of.values())) for tp, reasons_of in self.blockers.items()}

    def held_for(self, *reasons: Blocker) -> dict[TopicPartition, RelayError]:
        """Return those of which one of these is the worst."""
        return {
            tp: self.held[tp]
            for tp, reasons_of in self.blockers.items()
            if next(iter(reasons_of)) in reasons
        }

    def blocker(self, of: TopicPartition, kind: Blocker) -> RelayError | None:
        """Return a blocker of a topic-partition, also behind a worse one; None if there is none."""
        return self.blockers.get(of, {}).get(kind)

    @cached_property
    def news(self) -> list[OffsetRange]:
        """What a copy would take: all that is not copied yet and not held, sorted."""
        free = (each for each in self.positions if each.topic_partition not in self.held)
        return sorted(position.uncopied for position in free if position.lag)

    def only(self, belongs: Belongs) -> ClusterSnapshot:
        """Return the part of some topics, as a snapshot of these alone would have found it."""
        unknown = {tp: error for tp, error in self.facts.unknown.items() if belongs(tp.topic)}
        return replace(
            self,
            topics={name: topic for name, topic in self.topics.items() if belongs(name)},
            positions=[
                position for position in self.positions if belongs(position.topic_partition.topic)
            ],
            facts=replace(self.facts, unknown=unknown),
            selected=self.selected.only(belongs),
            new_starts=[start for start in self.new_starts if belongs(start.topic)],
        )

    @cached_property
    def policies(self) -> dict[str, Policy]:
        """Source topic -> what decides its records by this configuration."""
        return {name: topic.policy.digests for name, topic in self.topics.items()}

    def owner_of(self, source: TopicPartition) -> str:
        """Return the transactional id that alone may copy a source topic-partition now."""
        is_copied = source in self.checkpoints
        return present_owner(self.name, source, self.state.owners, is_copied=is_copied)

    def generation_of(self, source: TopicPartition) -> int:
        """Return the generation of a source topic-partition's checkpoint; 0 if there is none."""
        checkpoint = self.checkpoints.get(source)
        return 0 if checkpoint is None else checkpoint.generation

    @cached_property
    def copied_to(self) -> set[str]:
        """The destination topics that this mirror has copied to: it may alter only these."""
        every = (committed.copies for committed in self.checkpoints.values())
        return {copies.topic_partition.topic for copies in every if copies is not None}

    def takeovers(self, of: Iterable[TopicPartition]) -> list[Finding]:
        """Return the topics of which another configuration decides the records than until now.

        Args:
            of: the source topic-partitions to look at.
        """
        return record_policies.takeovers(self.checkpoints, self.policies, of)

    @property
    def all_takeovers(self) -> list[Finding]:
        """The same of every topic that no guard holds back for that."""
        return self.takeovers(
            position.topic_partition
            for position in self.positions
            if not self.blocker(position.topic_partition, Blocker.SUPERSEDED)
        )

    def positions_of(self, topic: str) -> list[Position]:
        """The positions of one topic."""
        return self._by_topic.get(topic, [])

    @cached_property
    def _by_topic(self) -> dict[str, list[Position]]:
        """The positions of every topic."""
        by_topic: dict[str, list[Position]] = {}
        for position in self.positions:
            by_topic.setdefault(position.topic_partition.topic, []).append(position)
        return by_topic

    @cached_property
    def targets(self) -> dict[str, Target]:
        """Source topic -> destination topic, and the partition to which it is pinned."""
        return {name: topic.target for name, topic in self.topics.items()}

    @cached_property
    def destinations(self) -> dict[str, str]:
        """Source topic -> destination topic."""
        return {source: to.topic for source, to in self.targets.items()}

    @property
    def pinned_topics(self) -> set[str]:
        """The source topics of which all records go to one destination topic-partition."""
        return {source for source, to in self.targets.items() if to.partition is not None}

    def destination_of(self, source: TopicPartition) -> TopicPartition:
        """The topic-partition to which the records of a source topic-partition are copied."""
        return self.targets[source.topic].of(source)

    def partitions_needed(self) -> dict[str, int]:
        """How many partitions every topic that is written must have, quarantines included."""
        needed: dict[str, int] = {}
        for topic in self.accepted_topics.values():
            pinned = topic.target.partition
            count = len(topic.metadata.leaders) if pinned is None else pinned + 1
            for name in topic.written:
                needed[name] = max(count, needed.get(name, 0))
        return needed

    @cached_property
    def first_sources(self) -> dict[str, str]:
        """Destination topic, or quarantine -> the source topic whose configuration it gets."""
        sources: dict[str, str] = {}
        for source, topic in self.accepted_topics.items():
            for name in topic.written:
                sources.setdefault(name, source)
        return sources

    @cached_property
    def accepted_topics(self) -> dict[str, Topic]:
        """The topics that are not refused, and whose configuration is not known to be hidden."""
        refused = self.facts.refused.keys() | self.configs.refused
        return {name: topic for name, topic in self.topics.items() if name not in refused}


def all_topics(_topic: str) -> bool:
    """Include every topic in a snapshot."""
    return True
