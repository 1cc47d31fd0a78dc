"""Takes a snapshot: one procedure, in the order that docs/transactions.md argues for."""

from __future__ import annotations

from collections.abc import Container, Iterable
from dataclasses import dataclass, field, replace

from relay_pipelines.errors import ConfigError, DestinationError, RelayError
from relay_pipelines.garbage import only_new_garbage_collected
from relay_pipelines.ledger import checkpoint, ledger_topic
from relay_pipelines.ledger.checkpoint import StartRecord
from relay_pipelines.ledger.state_table import CheckpointSnapshot, read_state
from relay_pipelines.model import TopicPartition
from relay_pipelines.plan import hops, policies
from relay_pipelines.plan.blockers import Facts, losses
from relay_pipelines.plan.owners import moved_topics
from relay_pipelines.plan.positions import Position
from relay_pipelines.plan.topic_selection import (
    QUARANTINE,
    Target,
    TopicDecision,
    named_without_match,
    refusals,
    select,
    targets,
)
from relay_pipelines.plan.upstreams import UpstreamSelection
from relay_pipelines.protocol import error_codes
from relay_pipelines.protocol.admin import sizes_on_disk
from relay_pipelines.protocol.client import ClusterClient
from relay_pipelines.protocol.metadata import Metadata, TopicMetadata
from relay_pipelines.settings.validation_errors import nearest
from relay_pipelines.sides import Sides
from relay_pipelines.snapshot import (
    configs,
    shared_destinations,
    start_offsets,
    upstream_selection,
    watermarks,
)
from relay_pipelines.snapshot.cluster_snapshot import (
    Belongs,
    ClusterSnapshot,
    Selected,
    Topic,
    TopicConfigs,
    all_topics,
)
from relay_pipelines.snapshot.lost_checkpoints import Lost, LostCheckpoints
from relay_pipelines.user_sources import Sources

_STATE_TOPICS = (checkpoint.TOPIC, ledger_topic.TOPIC)
_NOT_SHOWN = frozenset(
    {
        error_codes.UNKNOWN_TOPIC_OR_PARTITION,
        error_codes.TOPIC_AUTHORIZATION_FAILED,
        error_codes.INVALID_TOPIC,
    }
)
_WAIT_SECONDS = 3.0  # for an election, or for an upstream that does not answer


def take_snapshot(
    sides: Sides,
    only_topic: str | None = None,
    *,
    belongs: Belongs = all_topics,
    first_upstream: int = 0,
    patient: bool = True,
    refuse_loops: bool = True,
    settled: bool = False,
) -> ClusterSnapshot:
    """Choose the upstream to read, and ask it and the destination.

    Args:
        only_topic: leave out all other topics.
        belongs: leave out the topics for which it returns False.
        first_upstream: 0 prefers the upstream that was read last; every number above, another
            upstream.
        patient: as in `retry`.
        refuse_loops: whether copies may not be copied to where they come from. A replay, which
            ends, has a guard of its own.
        settled: whether transactions that hide where records at the source come from are waited
            for, as by whoever copies; also if patient.

    Raises:
        ConfigError: `only_topic` is not mirrored.
        RelayError: no upstream answers, or the destination does not; the user lacks a permission.
    """
    options, began = sides.options, sides.clock.monotonic()
    # there is a last attempt that does not wait
    limit = options.give_up_after_ms / 2000 if options.give_up_after_ms >= 0 else _WAIT_SECONDS
    wait_seconds = min(_WAIT_SECONDS, limit) if patient else 0.0

    with only_new_garbage_collected(), sides.destination() as destination:

        def ask() -> ClusterSnapshot:
            at_destination = _shown(destination, _STATE_TOPICS, refuse_hidden=True)
            state = (
                read_state(destination).of(sides.name)
                if checkpoint.TOPIC in at_destination.topics
                else CheckpointSnapshot()
            )
            waits = sides.clock.monotonic() - began < wait_seconds
            selection = upstream_selection.select_upstream(
                sides, state, first_upstream, waits=waits
            )
            # with other upstreams to fail over to, do not wait as long for one that hangs
            of_upstream = sides.mirror.health_options if selection.others else None
            with sides.source(selection.read.cluster, options=of_upstream) as source:
                return _Reading(
                    sides,
                    selection,
                    state,
                    source,
                    destination,
                    source.metadata(),
                    at_destination,
                    waits,
                    only_topic,
                    only_topic.__eq__ if only_topic else belongs,
                    refuse_loops,
                    # whoever copies needs to know all hops, however soon it tries again
                    patient or settled,
                ).read()

        return destination.retry(ask, patient=patient)


def _shown(
    client: ClusterClient, topics: Iterable[str], *, refuse_hidden: bool = False
) -> Metadata:
    """Return metadata of those topics that exist and that the user may see, as a list has them.

    Raises:
        PermissionDeniedError: the user may not see one, and `refuse_hidden`.
    """
    answer = client.metadata(sorted(topics))
    if refuse_hidden and (hidden := [each for each in answer.topics.values() if each.is_hidden]):
        raise _hidden_error(client, hidden[0])
    shown = {
        name: topic for name, topic in answer.topics.items() if topic.error_code not in _NOT_SHOWN
    }
    return Metadata(answer.cluster_id, answer.controller_id, answer.brokers, shown)


def _hidden_error(
    client: ClusterClient,
    topic: TopicMetadata,
    tp: TopicPartition | None = None,
    otherwise: str = "",
) -> RelayError:
    """Return the error for a topic that the user may not describe."""
    return client.failure(
        topic.error_code,
        f"Metadata of topic {topic.name}",
        topic_partition=tp,
        permission=f"Describe on topic {topic.name}{otherwise}",
    )


Errors = dict[TopicPartition, RelayError]
Refusals = dict[str, RelayError]


@dataclass(slots=True)
class _Reading:
    """One attempt at a snapshot, and what it has read so far.

    Args:
        at_destination: the topics of the state; others are asked for as they are needed, because
            a destination may have many that do not concern the mirror.
        waits: whether what may pass in a moment raises, to be tried again.
        only_topic, belongs, refuse_loops, settled: as of `take_snapshot`.
        all_targets: of every topic that the mirror copies, also in other runs and lanes: they must
            not be copied to the same topics.
        topics: the included ones.
    """

    sides: Sides
    selection: UpstreamSelection
    state: CheckpointSnapshot
    source: ClusterClient
    destination: ClusterClient
    at_source: Metadata
    at_destination: Metadata
    waits: bool
    only_topic: str | None
    belongs: Belongs
    refuse_loops: bool
    settled: bool
    decisions: list[TopicDecision] = field(default_factory=list, init=False)
    all_targets: dict[str, Target] = field(default_factory=dict, init=False)
    topics: dict[str, Topic] = field(default_factory=dict, init=False)

    def read(self) -> ClusterSnapshot:
        """Read what both sides hold."""
        name = self.sides.name
        unknown = self._ask_for_unlisted()
        self._select_topics()
        self._look_at_destination()
        refused = self._refused_names()
        copies = {
            tp: topic.target.of(tp)
            for source_topic, topic in self.topics.items()
            if source_topic not in refused
            for tp in topic.metadata.topic_partitions
        }
        # T: does the destination hold more than its checkpoints say? They may be read again
        known, finder = self.state, LostCheckpoints(self.destination, name, self.at_destination)
        self.state, lost = finder.find(copies, known)
        if self.state is not known:  # another run has committed
            self._look_at_destination()
        # a pin says that it is wanted to copy to where another mirror has copied
        new = {
            tp: to
            for tp, to in copies.items()
            if tp not in self.state.checkpoints and self.topics[tp.topic].target.partition is None
        }
        shared = shared_destinations.refusals(self.destination, self.at_destination, name, new)
        unseen = self._hidden_copies()
        unknown |= self._missing() | {
            tp: unseen[source_topic]
            for source_topic in unseen
            for tp in self.topics[source_topic].metadata.topic_partitions
        }
        selected = self._selected({tp.topic for tp in unknown})
        unknown |= self._leaderless()
        # S: where topics start that were never copied
        new_starts = start_offsets.new_starts(
            self.sides,
            self.source,
            self.selection.unread,
            self.state,
            lost.entries,
            self.all_targets,
        )
        # of topics that were there before: high watermarks, then last stable offsets
        positions, unjudged = self._positions(new_starts, lost, unknown)
        # H: what is copied from here on is not below these ends
        refused |= self._read_hops()
        of_topics = {
            topic: error.of(TopicPartition(topic, 0))
            for topic, error in refused.items()
            if topic in self.topics
        }
        if self.waits and (passing := [each for each in unjudged.values() if each.retryable]):
            raise passing[0]
        # of what a run would copy, or whose losses it would accept, it has to know these
        acted_on = {
            position.topic_partition.topic
            for position in positions
            if position.lag or any(losses(position))
        }
        topic_configs = self._configs(acted_on)
        hidden = {topic: why for topic, why in topic_configs.refused.items() if topic in acted_on}
        return ClusterSnapshot(
            self.sides.at(self.destination.cluster_id),
            self.selection.read_at(self.source.cluster),
            self.state,
            self.topics,
            positions,
            self._facts(
                positions, unknown | unjudged, hidden | shared | of_topics | unseen, topic_configs
            ),
            self.at_destination,
            topic_configs,
            selected,
            new_starts,
        )

    def _facts(
        self,
        positions: list[Position],
        unknown: Errors,
        refused: Refusals,
        topic_configs: TopicConfigs,
    ) -> Facts:
        name, checkpoints = self.sides.name, self.state.checkpoints
        by_topic = {topic: each.policy.digests for topic, each in self.topics.items()}
        return Facts(
            name,
            unknown,
            refused,
            is_ledger_lost=bool(checkpoints)
            and ledger_topic.TOPIC not in self.at_destination.topics,
            moved=moved_topics(name, self.state.owners),
            superseded=policies.refusals(checkpoints.values(), by_topic),
            bound_elsewhere=watermarks.bound_elsewhere(
                self.state, self._targets, self.at_destination
            ),
            unwritable=self._unwritable(positions, topic_configs),
        )

    @property
    def _targets(self) -> dict[str, Target]:
        return {name: topic.target for name, topic in self.topics.items()}

    @property
    def _partitions(self) -> list[TopicPartition]:
        return [tp for topic in self.topics.values() for tp in topic.metadata.topic_partitions]

    def _look_at_destination(self) -> None:
        """Ask about the topics that are written, or hold copies, and were not asked about yet."""
        names = {name for topic in self.topics.values() for name in topic.written}
        names.update(
            committed.copies.topic_partition.topic
            for tp, committed in self.state.checkpoints.items()
            if committed.copies is not None and tp.topic in self.topics
        )
        if new := names.difference(self.at_destination.topics):
            self.at_destination.topics |= _shown(self.destination, new).topics

    def _hidden_copies(self) -> Refusals:
        """Return why topics are not copied whose copies the user may no longer see.

        They may be there: that their topic is gone would be a loss, to be accepted or reset.
        """
        bound = {
            tp.topic: to.topic
            for tp, committed in self.state.checkpoints.items()
            if committed.copies is not None
            and tp.topic in self.topics
            and (to := self.topics[tp.topic].target.of(tp)) == committed.bound_to
            and to.topic not in self.at_destination.topics
        }
        there = self.destination.metadata(sorted(set(bound.values()))).topics if bound else {}
        return {
            name: _hidden_error(self.destination, there[to], TopicPartition(name, 0))
            for name, to in bound.items()
            if there[to].is_hidden
        }

    def _missing(self) -> Errors:
        """Return why topic-partitions that only another upstream may have are not copied."""
        if not self.selection.unread:
            return {}
        at_upstream = {
            tp for topic in self.at_source.topics.values() for tp in topic.topic_partitions
        }
        # of a topic of which only the start is decided, nobody knows the partitions
        copied = {tp.topic for tp in self.state.checkpoints}
        started = [TopicPartition(topic, 0) for topic in self.state.starts if topic not in copied]
        begun = [*self.state.checkpoints, *started]
        included = set(self._included(tp.topic for tp in begun))
        missing = self.selection.missing(at_upstream, [tp for tp in begun if tp.topic in included])
        return {tp: error for tp, error in missing.items() if self.belongs(tp.topic)}

    def _leaderless(self) -> Errors:
        """The topic-partitions that have no leader, and why they are not copied.

        Raises:
            SourceError: there are some, and it waits: an election takes a moment; or none has one,
                as when a cluster has just started.
        """
        partitions = self._partitions
        unknown: Errors = {
            tp: self.source.leaderless(tp)
            for tp in partitions
            if not self.topics[tp.topic].metadata.has_leader(tp.partition)
        }
        if unknown and (self.waits or len(unknown) == len(partitions)):
            self.source.forget()
            raise next(iter(unknown.values()))
        return unknown

    def _unwritable(self, positions: list[Position], topic_configs: TopicConfigs) -> Errors:
        """Return what keeps the destination from taking records that are to be copied.

        A task that tried would hold its neighbours up: an aborted transaction does not end there.

        Raises:
            DestinationError: as `_leaderless` raises it.
        """
        errors: Errors = {
            tp: error
            for position in positions
            if position.lag
            and (tp := position.topic_partition)
            and (error := self._unwritable_now(tp, topic_configs))
        }
        if errors and (self.waits or len(errors) == len(positions)):
            self.destination.forget()
            raise next(iter(errors.values()))
        return errors

    def _unwritable_now(self, tp: TopicPartition, topic_configs: TopicConfigs) -> RelayError | None:
        to = self.all_targets[tp.topic].of(tp)
        topic = self.at_destination.topics.get(to.topic)
        if topic is None or to.partition not in topic.leaders:
            return None
        needed = topic_configs.destination.get(to.topic, {}).get("min.insync.replicas")
        # a topic of fewer replicas than that needs all of them
        least = min(int(needed.value or 1) if needed else 1, topic.replicas[to.partition])
        if not topic.has_leader(to.partition):
            what = f"its destination {to} has no leader"
        elif (there := topic.in_sync[to.partition]) < least:
            what = f"its destination {to} has {there} of {least} in-sync replicas that it needs"
        else:
            return None
        return DestinationError(
            f"{what} on {self.destination.cluster}",
            remedy="start the brokers that have its replicas; if they run, their logs say why",
            topic_partition=tp,
        )

    def _ask_for_unlisted(self) -> Errors:
        """Ask by name for topics that the mirror knows and the source does not list.

        A list leaves out topics that the user may not describe. Asked by name, a broker refuses
        those, and says of the others that they do not exist.

        Returns:
            the hidden topics, and why.

        Raises:
            PermissionDeniedError: `only_topic` is hidden.
            RetriableError: the broker cannot say it now.
        """
        copied = {tp.topic for tp in self.state.checkpoints}
        asked = [self.only_topic] if self.only_topic else []
        known = copied.union(self.state.starts, self._named(), asked)
        unlisted = self._included(known.difference(self.at_source.topics))
        hidden: Errors = {}
        for name, topic in self.source.metadata(unlisted).topics.items() if unlisted else ():
            tp = TopicPartition(name, 0)
            if topic.error_code == error_codes.NONE:  # it was created after the list
                self.at_source.topics[name] = topic
            elif topic.is_hidden:
                otherwise = ", or, if it was deleted, add it to topics.deny"
                hidden[tp] = _hidden_error(self.source, topic, tp, otherwise)
            elif topic.error_code != error_codes.UNKNOWN_TOPIC_OR_PARTITION:
                raise self.source.failure(topic.error_code, f"Metadata of topic {name}")
        if self.only_topic and hidden:
            raise next(iter(hidden.values()))
        return hidden

    def _named(self) -> list[str]:
        """The topics that `topics.allow` names, and that the source does not list."""
        return named_without_match(self.sides.mirror.topics.allow, self.at_source.topics)

    def _select_topics(self) -> None:
        mirror, sources = self.sides.mirror, Sources()
        self.decisions = self._decide(self.at_source.topics)
        selected = [decision.topic for decision in self.decisions if decision.included]
        names = list(filter(self.belongs, selected))
        if self.only_topic and not names:
            raise not_mirrored(self.only_topic, self.decisions)
        self.all_targets = targets(selected, mirror.topics.rename)
        self.topics = {
            name: Topic(self.all_targets[name], self.at_source.topics[name], sources.fix(policy))
            for name, policy in mirror.record_policies(names).items()
        }

    def _decide(self, topics: Iterable[str]) -> list[TopicDecision]:
        return select(topics, self.sides.mirror.topics.allow, self.sides.mirror.topics.deny)

    def _included(self, topics: Iterable[str]) -> list[str]:
        """Those of some topics that are selected, and asked for."""
        decisions = self._decide(set(topics))
        names = (decision.topic for decision in decisions if decision.included)
        return list(filter(self.belongs, names))

    def _selected(self, hidden: Container[str]) -> Selected:
        """Return what relay.yaml selects, also of what the source does not have.

        Args:
            hidden: the topics of which that is explained.
        """
        begun = dict.fromkeys(self.state.starts, "") | {
            tp.topic: committed.destination.topic
            for tp, committed in self.state.checkpoints.items()
        }
        gone = (name for name in begun if name not in self.at_source.topics and name not in hidden)
        deleted = {topic: begun[topic] for topic in self._included(gone)}
        unseen = [
            topic
            for topic in self._included(self._named())
            if topic not in hidden and topic not in deleted
        ]
        return Selected(self.decisions, deleted, tuple(unseen))

    def _refused_names(self) -> Refusals:
        """Return why topics are not copied whose copies would be mixed with other records.

        Also of topics that are not asked for.
        """
        copies = {to.topic for to in self.all_targets.values()}
        quarantines = {
            topic: quarantine
            for topic, to in self.all_targets.items()
            if (quarantine := to.topic + QUARANTINE) in copies
            and self.sides.mirror.record_policy(topic).may_quarantine
        }
        holders = {
            tp.topic
            for tp, committed in self.state.checkpoints.items()
            if (to := self.all_targets.get(tp.topic)) and committed.bound_to == to.of(tp)
        }
        refused: Refusals = {**refusals(self.all_targets, quarantines, holders)}
        ids = {state.cluster.id for state in self.selection.upstreams} | {self.at_source.cluster_id}
        if self.refuse_loops and self.at_destination.cluster_id in ids:
            refused |= shared_destinations.copies_onto_sources(
                self.destination.cluster,
                {name: topic.written for name, topic in self.topics.items()},
                lambda topic: self._decide([topic])[0].included,
            )
        return refused

    def _read_hops(self) -> Refusals:
        """Read by which hops copies came to the topics; return why some may not be copied on.

        Those that wait for transactions see the checkpoints that come after their records.
        """
        name, there = self.sides.name, self.at_destination.cluster_id
        if checkpoint.TOPIC not in self.at_source.topics and not (
            # another process may just have begun
            self.settled and _shown(self.source, [checkpoint.TOPIC]).topics
        ):
            return {}
        passed, unknown = shared_destinations.passed(
            name, self.source, there, list(self.topics), settled=self.settled
        )
        self.topics |= {
            topic: replace(self.topics[topic], passed=by) for topic, by in passed.items() if by
        }
        if not self.refuse_loops:
            return {}
        destinations = {topic: to.topic for topic, to in self._targets.items()}
        returning = hops.refusals(name, self.source.cluster, there, destinations, passed)
        return {**returning, **unknown}

    def _positions(
        self, new_starts: Iterable[StartRecord], lost: Lost, unknown: Container[TopicPartition]
    ) -> tuple[list[Position], Errors]:
        starts = {start.topic: start for start in new_starts} | dict(self.state.starts)
        partitions = [tp for tp in self._partitions if tp not in unknown]
        positions, unjudged = watermarks.read_positions(
            self.source,
            partitions,
            self._targets,
            self.at_destination,
            replace(self.state, starts=starts),
            lost,
            among_several=bool(self.selection.others),
        )
        return list(map(self.selection.with_others, positions)), unjudged

    def _configs(self, acted_on: Container[str]) -> TopicConfigs:
        """Return the configurations and sizes of what a run would copy, or create before it.

        Args:
            acted_on: the topics with something new, or with losses.
        """
        targets = {
            name: topic
            for name, topic in self.topics.items()
            if name in acted_on or not self.at_destination.topics.keys() >= set(topic.written)
        }
        if not targets:
            return TopicConfigs()
        topic_configs = configs.read(
            self.sides, self.source, self.destination, targets, self.at_destination
        )
        return replace(topic_configs, sizes_bytes=sizes_on_disk(self.source, list(targets)))


def not_mirrored(topic: str, decisions: Iterable[TopicDecision]) -> ConfigError:
    """Return the error of whoever asks for a topic that a mirror does not copy.

    Args:
        decisions: on every topic of the source.
    """
    known = {decision.topic: decision for decision in decisions}
    remedy = "see `relay plan --why` for every topic and why"
    if decision := known.get(topic):
        return ConfigError(f"topic {topic!r} is not mirrored: {decision.why}", remedy=remedy)
    mirrored = [name for name, decision in known.items() if decision.included]
    return ConfigError(
        f"topic {topic!r} is not mirrored: the source has no such topic",
        remedy=nearest(topic, mirrored, "topics", remedy),
    )
