"""What both clusters look like before a run, read once. Nothing is written."""

from __future__ import annotations

from collections.abc import Callable, Container, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property, partial

from relay_pipelines.errors import ConfigError, DestinationError, RelayError
from relay_pipelines.finding import Finding
from relay_pipelines.garbage import only_new_garbage_collected
from relay_pipelines.ledger import checkpoint, ledger_topic
from relay_pipelines.ledger.checkpoint import StartRecord
from relay_pipelines.ledger.state_table import CheckpointSnapshot, read_state
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
from relay_pipelines.plan import hops
from relay_pipelines.plan import policies as record_policies
from relay_pipelines.plan.blockers import Blocker, Blockers, Facts, judge, losses
from relay_pipelines.plan.owners import moved_topics, present_owner
from relay_pipelines.plan.positions import Position, uncopied
from relay_pipelines.plan.topic_selection import (
    QUARANTINE,
    Target,
    TopicDecision,
    named_without_match,
    refusals,
    select,
    targets,
)
from relay_pipelines.protocol import error_codes
from relay_pipelines.protocol.admin import readable_topic_configs, sizes_on_disk
from relay_pipelines.protocol.client import ClusterClient, destination_client
from relay_pipelines.protocol.metadata import Metadata, TopicMetadata
from relay_pipelines.sides import Sides
from relay_pipelines.snapshot import (
    shared_destinations,
    start_offsets,
    state_topics,
    upstream_selection,
)
from relay_pipelines.snapshot.lost_checkpoints import Lost, LostCheckpoints
from relay_pipelines.snapshot.recent_configs import Configs, RecentConfigs, TopicConfigs
from relay_pipelines.snapshot.upstream_selection import UpstreamSelection
from relay_pipelines.snapshot.watermarks import Positions, bound_elsewhere
from relay_pipelines.user_sources import Sources

NEEDED_CONFIGS = (
    "cleanup.policy",
    "compression.type",
    "max.message.bytes",
    "message.timestamp.type",
    "min.insync.replicas",
)
"""The configuration of a destination topic that a copy must know."""
_STATE_TOPICS = (checkpoint.TOPIC, ledger_topic.TOPIC)
_NOT_SHOWN = frozenset(
    {
        error_codes.UNKNOWN_TOPIC_OR_PARTITION,
        error_codes.TOPIC_AUTHORIZATION_FAILED,
        error_codes.INVALID_TOPIC,
    }
)
_WAIT_SECONDS = 3.0  # for an election, or for an upstream that does not answer

Belongs = Callable[[str], bool]


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
        return topics_written(self.target.topic, self.policy)


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
        sides: how they were asked, and whoever acts on the snapshot asks them.
        selection: the upstream that was asked, and that a copy reads; and the others.
        state: what the destination knows of the mirror.
        topics: the included ones, by name.
        positions: every topic-partition of these topics that has one.
        facts: what else the judges of `blockers` ask.
        at_destination: brokers of the destination, and the topics there that concern the mirror.
        configs: what was asked for.
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
        return self.selection.upstream

    @cached_property
    def destination(self) -> Cluster:
        """The cluster that was asked, with its id."""
        return replace(self.sides.mirror.destination_cluster, id=self.at_destination.cluster_id)

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
        """Return a client of the destination that was asked; no other cluster is taken for it.

        Args:
            purpose: appended to the name that brokers see.
            options: those of the mirror by default.
        """
        options = options or self.sides.options
        return destination_client(self.name, self.destination, options, self.sides.clock, purpose)

    @cached_property
    def blockers(self) -> dict[TopicPartition, Blockers]:
        """All that keeps topic-partitions from being copied; of one that is copied, none.

        Those of a topic that is refused share its error.
        """
        found = {each.topic_partition: judge(each, self.facts) for each in self.positions}
        unknown = {tp: {Blocker.UNKNOWN: error} for tp, error in self.facts.unknown.items()}
        return {tp: blockers for tp, blockers in (found | unknown).items() if blockers}

    @cached_property
    def held(self) -> dict[TopicPartition, RelayError]:
        """Why topic-partitions are not copied: the worst of their blockers."""
        return {tp: next(iter(found.values())) for tp, found in self.blockers.items()}

    def held_for(self, *reasons: Blocker) -> dict[TopicPartition, RelayError]:
        """Return those of which one of these is the worst."""
        return {
            tp: self.held[tp] for tp, found in self.blockers.items() if next(iter(found)) in reasons
        }

    def blocker(self, of: TopicPartition, kind: Blocker) -> RelayError | None:
        """Return a blocker of a topic-partition, also behind a worse one; None if there is none."""
        return self.blockers.get(of, {}).get(kind)

    @cached_property
    def news(self) -> list[OffsetRange]:
        """What a copy would take: all that is not copied yet and not held, sorted."""
        waiting = sorted(uncopied(self.positions).values())
        return [each for each in waiting if len(each) and each.topic_partition not in self.held]

    def only(self, belongs: Belongs) -> ClusterSnapshot:
        """Return the part of some topics, as a snapshot of these alone would have found it."""
        unknown = {tp: error for tp, error in self.facts.unknown.items() if belongs(tp.topic)}
        return replace(
            self,
            topics={name: topic for name, topic in self.topics.items() if belongs(name)},
            positions=[each for each in self.positions if belongs(each.topic_partition.topic)],
            facts=replace(self.facts, unknown=unknown),
            selected=self.selected.only(belongs),
            new_starts=[start for start in self.new_starts if belongs(start.topic)],
        )

    @cached_property
    def policies(self) -> dict[str, Policy]:
        """Source topic -> what decides its records by this configuration."""
        return {name: topic.policy.digests for name, topic in self.topics.items()}

    @property
    def upstream_behind(self) -> int:
        """How many records other upstreams have that the one which is read lacks."""
        chosen = (
            verdict for verdict in self.selection.verdicts if verdict.name == self.upstream.name
        )
        return next((verdict.behind for verdict in chosen), 0)

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
        found: dict[str, list[Position]] = {}
        for position in self.positions:
            found.setdefault(position.topic_partition.topic, []).append(position)
        return found

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
        """The topics that are not refused."""
        refused = self.facts.refused
        return {name: topic for name, topic in self.topics.items() if name not in refused}


def all_topics(_topic: str) -> bool:
    """Include every topic in a snapshot."""
    return True


def take_snapshot(
    sides: Sides,
    only_topic: str | None = None,
    *,
    belongs: Belongs = all_topics,
    first_upstream: int = 0,
    configs: bool = True,
    patient: bool = True,
    refuse_loops: bool = True,
    settled: bool = False,
    recent: RecentConfigs | None = None,
) -> ClusterSnapshot:
    """Choose the upstream to read, and ask it and the destination.

    Args:
        only_topic: leave out all other topics.
        belongs: leave out the topics for which it returns False.
        first_upstream: 0 prefers the upstream that was read last; every number above, another
            upstream.
        configs: whether to ask for the configurations and sizes of all topics, and not only for
            what holds back those with news.
        patient: as in `retry`.
        refuse_loops: whether copies may not be copied to where they come from. A replay, which
            ends, has a guard of its own.
        settled: whether transactions that hide where records at the source come from are waited
            for, as by whoever copies; also if patient.
        recent: the configurations of the session's last snapshot, which are good enough if there is
            nothing to copy.

    Raises:
        ConfigError: `only_topic` is not mirrored.
        RelayError: no upstream answers, or the destination does not; the user lacks a permission.
    """
    options, began = sides.options, sides.clock.monotonic()
    # there is a last attempt that does not wait
    limit = options.give_up_after_ms / 2000 if options.give_up_after_ms >= 0 else _WAIT_SECONDS
    wait_seconds = min(_WAIT_SECONDS, limit) if patient else 0.0

    with (
        only_new_garbage_collected(),
        sides.destination() as destination,
    ):

        def ask() -> ClusterSnapshot:
            at_destination = _shown(destination, _STATE_TOPICS)
            checkpoints = (
                read_state(destination).of(sides.name)
                if checkpoint.TOPIC in at_destination.topics
                else CheckpointSnapshot()
            )
            waits = sides.clock.monotonic() - began < wait_seconds
            selection = upstream_selection.select_upstream(
                sides, checkpoints, first_upstream, waits=waits
            )
            # with other upstreams to fail over to, do not wait as long for one that hangs
            of_upstream = sides.mirror.health_options if selection.others else None
            with sides.source(selection.upstream, options=of_upstream) as source:
                builder = _SnapshotBuilder(sides, source, destination, at_destination)
                return builder.build(
                    selection,
                    checkpoints,
                    only_topic,
                    belongs,
                    configs=configs,
                    refuse_loops=refuse_loops,
                    waits=waits,
                    # whoever copies needs to know all hops, however soon it tries again
                    settled=patient or settled,
                    recent=recent or RecentConfigs(),
                )

        return destination.retry(ask, patient=patient)


def _shown(client: ClusterClient, topics: Iterable[str]) -> Metadata:
    """Return metadata of those topics that exist and that the user may see, as a list has them."""
    found = client.metadata(sorted(topics))
    shown = {
        name: topic for name, topic in found.topics.items() if topic.error_code not in _NOT_SHOWN
    }
    return Metadata(found.cluster_id, found.controller_id, found.brokers, shown)


@dataclass(frozen=True, slots=True)
class _Topics:
    """Which topics a snapshot includes.

    Args:
        all_targets: of every topic that the mirror copies, also in other runs and lanes: they must
            not be copied to the same topics.
        names: of the included ones.
    """

    decisions: Sequence[TopicDecision]
    all_targets: Mapping[str, Target]
    names: Sequence[str]

    @property
    def targets(self) -> dict[str, Target]:
        return {topic: self.all_targets[topic] for topic in self.names}

    @property
    def destinations(self) -> dict[str, str]:
        return {topic: self.all_targets[topic].topic for topic in self.names}


class _SnapshotBuilder:
    """Builds a snapshot, step by step.

    Args:
        at_destination: the topics of the state; others are asked for as they are needed, because
            a destination may have many that do not concern the mirror.
    """

    def __init__(
        self,
        sides: Sides,
        source: ClusterClient,
        destination: ClusterClient,
        at_destination: Metadata,
    ) -> None:
        self._sides = sides
        self._source = source
        self._destination = destination
        self._at_source = source.metadata()
        self._at_destination = at_destination
        self._asked = {*_STATE_TOPICS}

    def build(
        self,
        selection: UpstreamSelection,
        checkpoints: CheckpointSnapshot,
        only_topic: str | None,
        belongs: Belongs,
        *,
        configs: bool,
        refuse_loops: bool,
        waits: bool,
        settled: bool,
        recent: RecentConfigs,
    ) -> ClusterSnapshot:
        unreadable = self._ask_for_unlisted(checkpoints, only_topic, belongs)
        topics = self._select_topics(only_topic, belongs)
        sources = Sources()
        named_policies = self._sides.mirror.record_policies(topics.names)
        policies = {topic: sources.fix(policy) for topic, policy in named_policies.items()}
        self._look_at_destination(topics, policies, checkpoints)
        named = self._refused_names(topics, checkpoints)
        if refuse_loops:
            named |= self._copies_onto_sources(topics, policies, selection)
        accepted = replace(topics, names=[name for name in topics.names if name not in named])
        known = checkpoints
        checkpoints, lost = self._find_lost(accepted, checkpoints)
        if checkpoints is not known:  # another run has committed
            self._look_at_destination(topics, policies, checkpoints)
        shared = self._shared(accepted, checkpoints)
        unreadable |= self._missing(selection, checkpoints, only_topic, belongs)
        hidden = {tp.topic for tp in unreadable}
        deleted = {} if only_topic else self._deleted(checkpoints, hidden, belongs)
        unseen = [] if only_topic else self._unseen(hidden.union(deleted), belongs)
        existing = self._existing(topics, policies)
        leaderless = self._leaderless(topics.names, waits=waits)
        new_starts = start_offsets.new_starts(
            self._source,
            self._sides.name,
            self._sides.mirror.start,
            checkpoints,
            lost.entries,
            topics.all_targets,
            self._source.clock.now_ms(),
            selection.unread,
        )
        starts = {start.topic: start for start in new_starts} | dict(checkpoints.starts)
        snapshot = replace(checkpoints, starts=starts)
        positions, unjudged = self._positions(selection, topics, snapshot, lost, leaderless)
        # after the ends: what is copied from here on is not below them
        passed, unknown = self._passed(topics, settled=settled)
        if refuse_loops:
            named |= self._returning(topics, passed) | unknown
        named = {
            topic: error.of(TopicPartition(topic, 0))
            for topic, error in named.items()
            if topic in policies
        }
        if waits and (passing := [each for each in unjudged.values() if each.retryable]):
            raise passing[0]
        news = {position.topic_partition.topic for position in positions if position.lag}
        if configs:
            found = recent.find(
                (self._source.cluster, tuple(topics.names), tuple(existing)),
                self._source.clock.monotonic(),
                partial(self._configs, topics, policies, existing),
                copies=bool(news),
            )
            needed = found.destination
        else:  # what holds back what would be copied, and no more
            of_news = replace(topics, names=sorted(news))
            existing_news = self._existing(of_news, policies)
            _, needed, refused = self._needed_configs(of_news, policies, existing_news)
            found = TopicConfigs(refused=refused)
        facts = Facts(
            self._sides.name,
            unreadable | leaderless | unjudged,
            {**found.refused, **shared, **named},
            is_ledger_lost=bool(checkpoints.checkpoints)
            and ledger_topic.TOPIC not in self._at_destination.topics,
            moved=moved_topics(self._sides.name, checkpoints.owners),
            superseded=record_policies.refusals(
                checkpoints.checkpoints.values(),
                {topic: policy.digests for topic, policy in policies.items()},
            ),
            bound_elsewhere=bound_elsewhere(
                checkpoints.checkpoints, topics.targets, self._at_destination
            ),
            unwritable=self._unwritable_now(positions, topics, needed, waits=waits),
        )
        return ClusterSnapshot(
            self._sides,
            replace(selection, upstream=self._source.cluster),
            checkpoints,
            {
                name: Topic(to, self._at_source.topics[name], policies[name], passed.get(name, ()))
                for name, to in topics.targets.items()
            },
            positions,
            facts,
            self._at_destination,
            found,
            Selected(topics.decisions, deleted, tuple(unseen)),
            new_starts,
        )

    def _look_at_destination(
        self,
        topics: _Topics,
        policies: Mapping[str, RecordPolicy],
        checkpoints: CheckpointSnapshot,
    ) -> None:
        """Ask about the topics that are written, or hold copies, and were not asked about yet."""
        wanted = {
            name
            for topic, destination in topics.destinations.items()
            for name in topics_written(destination, policies[topic])
        }
        included = set(topics.names)
        wanted.update(
            committed.copies.topic_partition.topic
            for tp, committed in checkpoints.checkpoints.items()
            if committed.copies is not None and tp.topic in included
        )
        if new := wanted - self._asked:
            self._asked |= new
            shown = _shown(self._destination, new)
            shown.topics = self._at_destination.topics | shown.topics
            self._at_destination = shown

    def _missing(
        self,
        selection: UpstreamSelection,
        checkpoints: CheckpointSnapshot,
        only_topic: str | None,
        belongs: Belongs,
    ) -> dict[TopicPartition, RelayError]:
        """Return why topic-partitions that only another upstream may have are not copied."""
        if not selection.unread:
            return {}
        at_upstream = {
            tp for topic in self._at_source.topics.values() for tp in topic.topic_partitions
        }
        # of a topic of which only the start is decided, nobody knows the partitions
        started = checkpoints.starts.keys() - {tp.topic for tp in checkpoints.checkpoints}
        begun = [*checkpoints.checkpoints, *(TopicPartition(topic, 0) for topic in started)]
        decisions = self._decide({tp.topic for tp in begun})
        selected = {decision.topic for decision in decisions if decision.included}
        missing = selection.missing(at_upstream, [tp for tp in begun if tp.topic in selected])
        return {
            tp: error
            for tp, error in missing.items()
            if only_topic in {None, tp.topic} and belongs(tp.topic)
        }

    def _leaderless(
        self, topics: Iterable[str], *, waits: bool
    ) -> dict[TopicPartition, RelayError]:
        """The topic-partitions that have no leader, and why they are not copied.

        Raises:
            SourceError: there are some, and `waits`: an election takes a moment; or none has one,
                as when a cluster has just started.
        """
        partitions = [
            tp for topic in topics for tp in self._at_source.topics[topic].topic_partitions
        ]
        found = {
            tp: self._source.leaderless(tp)
            for tp in partitions
            if not self._at_source.topics[tp.topic].has_leader(tp.partition)
        }
        if found and (waits or len(found) == len(partitions)):
            self._source.forget()
            raise next(iter(found.values()))
        return found

    def _unwritable_now(
        self, positions: Sequence[Position], topics: _Topics, configs: Configs, *, waits: bool
    ) -> dict[TopicPartition, RelayError]:
        """Return what keeps the destination from taking records that are to be copied.

        A task that tried would hold its neighbours up: an aborted transaction does not end there.

        Raises:
            DestinationError: as `_leaderless` raises it.
        """
        errors = {
            tp: error
            for position in positions
            if position.lag
            and (tp := position.topic_partition)
            and (error := self._unwritable(tp, topics.all_targets[tp.topic].of(tp), configs))
        }
        if errors and (waits or len(errors) == len(positions)):
            self._destination.forget()
            raise next(iter(errors.values()))
        return errors

    def _unwritable(
        self, tp: TopicPartition, to: TopicPartition, configs: Configs
    ) -> RelayError | None:
        topic = self._at_destination.topics.get(to.topic)
        if topic is None or to.partition not in topic.leaders:
            return None
        needed = configs.get(to.topic, {}).get("min.insync.replicas")
        # a topic of fewer replicas than that needs all of them
        least = min(int(needed.value or 1) if needed else 1, topic.replicas[to.partition])
        if not topic.has_leader(to.partition):
            what = f"its destination {to} has no leader"
        elif (there := topic.in_sync[to.partition]) < least:
            what = f"its destination {to} has {there} of {least} in-sync replicas that it needs"
        else:
            return None
        return DestinationError(
            f"{what} on {self._destination.cluster}",
            remedy="start the brokers that have its replicas; if they run, their logs say why",
            topic_partition=tp,
        )

    def _ask_for_unlisted(
        self, checkpoints: CheckpointSnapshot, only_topic: str | None, belongs: Belongs
    ) -> dict[TopicPartition, RelayError]:
        """Ask by name for topics that the mirror knows and the source does not list.

        A list leaves out topics that the user may not describe. Asked by name, a broker refuses
        those, and says of the others that they do not exist.

        Returns:
            the hidden topics, and why.

        Raises:
            PermissionDeniedError: `only_topic` is hidden.
            RetriableError: the broker cannot say it now.
        """
        known = {only_topic} if only_topic else self._known_topics(checkpoints)
        unlisted = [
            decision.topic
            for decision in self._decide(known.difference(self._at_source.topics))
            if decision.included and belongs(decision.topic)
        ]
        hidden: dict[TopicPartition, RelayError] = {}
        for name, found in self._source.metadata(unlisted).topics.items() if unlisted else ():
            tp = TopicPartition(name, 0)
            if found.error_code == error_codes.NONE:  # it was created after the list
                self._at_source.topics[name] = found
            elif found.error_code == error_codes.TOPIC_AUTHORIZATION_FAILED:
                hidden[tp] = error_codes.failure(
                    found.error_code,
                    f"Metadata of topic {name}",
                    at=str(self._source.cluster),
                    retriable=self._source.retriable,
                    topic_partition=tp,
                    # brokers refuse a name whether or not the topic exists
                    permission=f"Describe on topic {name}, or, if it was deleted, add it to"
                    " topics.deny",
                )
            elif found.error_code != error_codes.UNKNOWN_TOPIC_OR_PARTITION:
                raise self._source.failure(found.error_code, f"Metadata of topic {name}")
        if only_topic and hidden:
            raise next(iter(hidden.values()))
        return hidden

    def _known_topics(self, checkpoints: CheckpointSnapshot) -> set[str]:
        """The topics that were copied or fixed a start, and those that relay.yaml spells out."""
        copied = {tp.topic for tp in checkpoints.checkpoints}
        return copied.union(checkpoints.starts, self._named())

    def _named(self) -> list[str]:
        """The topics that `topics.allow` names, and that the source does not list."""
        return named_without_match(self._sides.mirror.topics.allow, self._at_source.topics)

    def _select_topics(self, only_topic: str | None, belongs: Belongs) -> _Topics:
        decisions = self._decide(self._at_source.topics)
        included = [decision.topic for decision in decisions if decision.included]
        names = [topic for topic in included if only_topic in {None, topic} and belongs(topic)]
        if only_topic is not None and not names:
            raise _not_mirrored(only_topic, decisions)
        return _Topics(decisions, targets(included, self._sides.mirror.topics.rename), names)

    def _decide(self, topics: Iterable[str]) -> list[TopicDecision]:
        return select(topics, self._sides.mirror.topics.allow, self._sides.mirror.topics.deny)

    def _selects(self, topic: str) -> bool:
        return self._decide([topic])[0].included

    def _refused_names(
        self, topics: _Topics, checkpoints: CheckpointSnapshot
    ) -> dict[str, RelayError]:
        """Return why topics are not copied whose copies would be mixed with other records."""
        copies = {to.topic for to in topics.all_targets.values()}
        quarantines = {
            topic: quarantine
            for topic, to in topics.all_targets.items()
            if (quarantine := to.topic + QUARANTINE) in copies
            and self._sides.mirror.record_policy(topic).may_quarantine
        }
        holders = {
            tp.topic
            for tp, committed in checkpoints.checkpoints.items()
            if tp.topic in topics.all_targets
            and committed.bound_to == topics.all_targets[tp.topic].of(tp)
        }
        return {**refusals(topics.all_targets, quarantines, holders)}

    def _copies_onto_sources(
        self, topics: _Topics, policies: Mapping[str, RecordPolicy], selection: UpstreamSelection
    ) -> dict[str, RelayError]:
        """Return why topics are not copied whose copies this mirror would copy."""
        destination_id = self._at_destination.cluster_id
        if destination_id not in {self._at_source.cluster_id, *selection.cluster_ids}:
            return {}
        written = {
            topic: topics_written(destination, policies[topic])
            for topic, destination in topics.destinations.items()
        }
        return {
            **shared_destinations.copies_onto_sources(
                self._destination.cluster, written, self._selects
            )
        }

    def _passed(
        self, topics: _Topics, *, settled: bool
    ) -> tuple[dict[str, tuple[Hop, ...]], dict[str, RelayError]]:
        """Return source topic -> the hops by which copies came to it, or why they are unknown.

        Args:
            settled: whether after the transactions that are open now: their checkpoints may come
                after their records.
        """
        state = {checkpoint.TOPIC}
        if not state & self._at_source.topics.keys() and not (
            settled and _shown(self._source, state).topics  # another process may just have begun
        ):
            return {}, {}
        there = self._at_destination.cluster_id
        return shared_destinations.passed(
            self._sides.name, self._source, there, topics.names, settled=settled
        )

    def _returning(
        self, topics: _Topics, passed: Mapping[str, tuple[Hop, ...]]
    ) -> dict[str, RelayError]:
        """Return why topics are not copied whose records were at the destination before."""
        destination = self._at_destination.cluster_id
        return {
            **hops.refusals(
                self._sides.name,
                self._source.cluster,
                self._source.cluster_id,
                destination,
                topics.destinations,
                passed,
            )
        }

    def _find_lost(
        self, topics: _Topics, checkpoints: CheckpointSnapshot
    ) -> tuple[CheckpointSnapshot, Lost]:
        """Return which checkpoints are not the last ones, as `LostCheckpoints.find`."""
        destinations = {
            tp: topics.all_targets[topic].of(tp)
            for topic in topics.names
            for tp in self._at_source.topics[topic].topic_partitions
        }
        return LostCheckpoints(self._destination, self._sides.name, self._at_destination).find(
            destinations, checkpoints
        )

    def _shared(self, topics: _Topics, checkpoints: CheckpointSnapshot) -> dict[str, RelayError]:
        """The source topics that would be copied to where another mirror has copied, and why not.

        A pin says that this is wanted.
        """
        wanted = {
            tp: topics.all_targets[topic].of(tp)
            for topic in topics.names
            if topics.all_targets[topic].partition is None
            for tp in self._at_source.topics[topic].topic_partitions
            if tp not in checkpoints.checkpoints
        }
        return shared_destinations.refusals(
            self._destination, self._at_destination, self._sides.name, wanted
        )

    def _deleted(
        self, checkpoints: CheckpointSnapshot, hidden: Container[str], belongs: Belongs
    ) -> dict[str, str]:
        """Source topic -> destination topic, of topics that were begun and no longer exist."""
        begun = dict.fromkeys(checkpoints.starts, "") | {
            tp.topic: committed.destination.topic
            for tp, committed in checkpoints.checkpoints.items()
        }
        deleted = {
            topic: destination
            for topic, destination in begun.items()
            if topic not in self._at_source.topics and topic not in hidden
        }
        return {
            decision.topic: deleted[decision.topic]
            for decision in self._decide(deleted)
            if decision.included and belongs(decision.topic)
        }

    def _unseen(self, explained: Container[str], belongs: Belongs) -> list[str]:
        """The topics that relay.yaml spells out, that were never begun, and that do not exist."""
        return [
            decision.topic
            for decision in self._decide(self._named())
            if decision.included and decision.topic not in explained and belongs(decision.topic)
        ]

    def _existing(self, topics: _Topics, policies: Mapping[str, RecordPolicy]) -> list[str]:
        written = {
            name
            for topic, destination in topics.destinations.items()
            for name in topics_written(destination, policies[topic])
        }
        return sorted(written.intersection(self._at_destination.topics))

    def _positions(
        self,
        selection: UpstreamSelection,
        topics: _Topics,
        checkpoints: CheckpointSnapshot,
        lost: Lost,
        leaderless: Container[TopicPartition],
    ) -> tuple[list[Position], dict[TopicPartition, RelayError]]:
        positions, unjudged = Positions(
            self._source,
            self._at_destination,
            topics.targets,
            checkpoints,
            lost,
            leaderless,
            among_several=bool(selection.others),
        ).all()
        return [with_other_upstreams(selection, position) for position in positions], unjudged

    def _configs(
        self, topics: _Topics, policies: Mapping[str, RecordPolicy], existing: Sequence[str]
    ) -> TopicConfigs:
        return TopicConfigs(
            *self._needed_configs(topics, policies, existing),
            sizes_on_disk(self._source, topics.names),
            state_topics.read(self._destination, self._at_destination),
        )

    def _needed_configs(
        self, topics: _Topics, policies: Mapping[str, RecordPolicy], existing: Sequence[str]
    ) -> tuple[Configs, Configs, dict[str, RelayError]]:
        """Return the configurations at both sides, and which topics may not be copied without."""
        keys = self._sides.mirror.topics.config_keys
        at_source, hidden = readable_topic_configs(self._source, topics.names, keys)
        at_destination, hidden_copies = readable_topic_configs(
            self._destination, existing, sorted({*keys, *NEEDED_CONFIGS})
        )
        refused: dict[str, RelayError] = {}
        for topic, destination in topics.destinations.items():
            written = topics_written(destination, policies[topic])
            errors = [hidden.get(topic), *map(hidden_copies.get, written)]
            if error := next(filter(None, errors), None):
                refused[topic] = error.of(TopicPartition(topic, 0))
        return at_source, at_destination, refused


def with_other_upstreams(selection: UpstreamSelection, position: Position) -> Position:
    """Add what another upstream has, or may have, of it that this one does not."""
    if not selection.unread:
        return position
    lost, elsewhere = losses(position), None
    if lost:
        elsewhere = selection.elsewhere(position, lost[0])
    elif position.next_offset is None:
        elsewhere = selection.older(position)
    return replace(
        position,
        elsewhere=elsewhere,
        first_offset=selection.first_offset(position),
        silent=selection.silent(position),
    )


def topics_written(destination: str, policy: RecordPolicy) -> list[str]:
    """Return the destination topics that get the records of a source topic."""
    quarantine = [destination + QUARANTINE] if policy.may_quarantine else []
    return [destination, *quarantine]


def _not_mirrored(topic: str, decisions: Sequence[TopicDecision]) -> ConfigError:
    why = next(
        (decision.why for decision in decisions if decision.topic == topic),
        "the source has no such topic",
    )
    return ConfigError(
        f"topic {topic!r} is not mirrored: {why}", remedy="see `relay plan` for every topic and why"
    )
