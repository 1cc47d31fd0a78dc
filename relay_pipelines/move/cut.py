"""The cut: copies the rest, proves it, takes the topics from the mirror, and moves the groups."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial

from relay_pipelines.audit.request import AuditRequest
from relay_pipelines.errors import (
    ConfigError,
    DestinationError,
)
from relay_pipelines.finding import Finding, Kind, warning
from relay_pipelines.ledger import checkpoint, fencing
from relay_pipelines.ledger.reader import CLOCK_SKEW_MS, read_own_checkpoints
from relay_pipelines.ledger.state_table import CheckpointSnapshot, read_state
from relay_pipelines.model import Side, TopicPartition
from relay_pipelines.move import fence
from relay_pipelines.move.copying import audit_all, copy_all
from relay_pipelines.move.gates import fails, not_moved
from relay_pipelines.move.inventory import (
    Groups,
    existing_partitions,
    group_client,
    open_upstreams,
    read_groups,
)
from relay_pipelines.move.record import UNKNOWN, CutPartition, MoveRecord, allows
from relay_pipelines.move.rehearsal import (
    destination_gate,
    group_gate,
    not_ready,
    schema_gate,
    snapshot_of,
    source_group_gate,
    topic_gate,
)
from relay_pipelines.move.request import MoveRequest
from relay_pipelines.move.states import Action, State
from relay_pipelines.offsets.apply import apply
from relay_pipelines.offsets.mark import mark_of
from relay_pipelines.output.formatting import count, format_time, plural
from relay_pipelines.plan.blockers import Blocker
from relay_pipelines.plan.owners import MOVE_SCOPE, claimant_id, moved_id, present_owner
from relay_pipelines.plan.topic_selection import renamed_target
from relay_pipelines.prepare.owners import claim_for
from relay_pipelines.protocol import groups as group_requests
from relay_pipelines.protocol.client import (
    LATEST,
    READ_COMMITTED,
    READ_UNCOMMITTED,
    ClusterClient,
)
from relay_pipelines.protocol.open_transactions import wait_for_open_transactions
from relay_pipelines.run.session import Session
from relay_pipelines.settings import Mirror
from relay_pipelines.sides import Sides
from relay_pipelines.snapshot.cluster_snapshot import ClusterSnapshot
from relay_pipelines.snapshot.read_clusters import take_snapshot

Look = Callable[[], None]
"""Raises if nothing may be claimed: another process has written a record of the move."""


@dataclass(slots=True)
class Steps:
    """The steps of a cut, in their order; each may be repeated."""

    sides: Sides
    request: MoveRequest
    record: MoveRecord
    session: Session
    say: Callable[[str], None]

    def copy_rest(self) -> None:
        """Copy up to the ends at which the source has stood still.

        Raises:
            RelayError: a topic is held back, or not all could be copied.
        """
        snapshot = self._snapshot()
        if not _has_moved(snapshot):
            self.say("copying the rest")
            self._run()
            snapshot = self._snapshot()
        for position in snapshot.positions:
            tp = position.topic_partition
            if not snapshot.blocker(tp, Blocker.MOVED) and (error := snapshot.held.get(tp)):
                raise error
            end, next_offset = self.record.ends.at(tp), position.next_offset
            if not self.record.ends.has(tp):
                raise came_late(self.record, tp)
            if max(next_offset or 0, position.begin) < end:
                raise DestinationError(
                    f"it is copied up to {count(next_offset or 0)} of {count(end)}",
                    remedy="repeat `relay move cut`",
                    topic_partition=tp,
                )

    def _snapshot(self) -> ClusterSnapshot:
        return snapshot_of(self.sides, self.request, self.record)

    def require_still(self) -> None:
        """See that nothing was written since the fence held.

        Raises:
            SourceError: a producer has written.
            RelayError: the source does not answer.
        """
        with open_upstreams(self.sides) as upstreams:
            if error := fence.written_since(upstreams, self.record):
                raise error

    def require_fenced(self) -> None:
        """Refuse topics and partitions that have come after the fence, while it can be repeated.

        Raises:
            ConfigError: there are some.
            RelayError: a cluster does not answer.
        """
        if self.record.state is not State.FENCED:
            return
        for position in self._snapshot().positions:
            if not self.record.ends.has(position.topic_partition):
                raise came_late(self.record, position.topic_partition)

    def _run(self) -> None:
        topics = frozenset(self.record.topics)

        def take() -> ClusterSnapshot:
            return take_snapshot(self.sides, belongs=topics.__contains__)

        copy_all(
            take,
            self.session,
            scope="" if self.record.is_whole else MOVE_SCOPE,
            again="relay move cut",
        )

    def look(self) -> Groups:
        """Look at the gates again, now that all is copied.

        Raises:
            RelayError: one does not hold, or could not be looked at.
        """
        self.say("looking at groups and schemas")
        snapshot = self._snapshot()
        groups = read_groups(self.request, snapshot)
        gates = [
            group_gate(groups),
            source_group_gate(groups, self.record),
            schema_gate(snapshot),
        ]
        if not _has_moved(snapshot):
            gates += [topic_gate(snapshot), destination_gate(groups)]
        if reasons := not_ready(gates):
            raise ConfigError(str(reasons[0]), remedy="repeat `relay move cut`, or take it back")
        return groups

    def audit(self) -> int:
        """Audit what was not audited yet.

        Returns:
            up to when what was committed is audited, in milliseconds since the Unix epoch.

        Raises:
            TamperedError: the copies are not what the source had.
            RelayError: they could not be audited.
        """
        until_ms = self.sides.clock.now_ms()
        since_ms = self.record.audited_until_ms or self.request.audited_ms
        if since_ms is not None:
            since_ms -= CLOCK_SKEW_MS  # entries have the time of other machines
        asked = AuditRequest(self.record.topics, since_ms=since_ms, level=self.request.level)
        self.say("auditing what was not audited yet")
        try:
            audit_all(self.sides, asked, self.session)
        except ConfigError:
            if not self._copied_nothing(since_ms):
                raise
        return until_ms

    def _copied_nothing(self, since_ms: int | None) -> bool:
        """Whether nothing was committed since."""
        snapshot = self._snapshot()
        return not any(
            known.committed_at_ms >= (since_ms or 0) and known.ledger_head.number
            for tp, known in snapshot.checkpoints.items()
            if tp.topic in self.record.topics
        )

    def take_topics(self, destination: ClusterClient, own: Look) -> list[CutPartition]:
        """Take the topics from the mirror: nobody copies them from then on.

        Raises:
            RelayError: the destination does not answer, or the source had moved.
        """
        self.say("taking the topics from the mirror")
        positions = taken(destination, self.sides.mirror, self.record, own)
        self.require_still()
        return positions

    def move_groups(
        self, destination: ClusterClient, groups: Groups
    ) -> tuple[tuple[str, ...], list[Finding]]:
        """Commit for the groups where they go on, and read it back.

        Returns:
            the groups that have moved; and why others have not.

        Raises:
            RelayError: the destination does not answer.
        """
        self.say(f"moving {plural(len(groups.positions), 'group')}")
        answers = [answer for position in groups.positions for answer in position.answers]
        applied = apply(destination, answers, Side.DESTINATION, execute=True, backwards=False)
        refused = not_moved(applied, "there", "relay move cut")
        names = {position.group.name for position in groups.positions}
        return tuple(sorted(names)), [*refused, *self._gone_on(groups)]

    def _gone_on(self, groups: Groups) -> Iterator[Finding]:
        """Yield which groups have committed something else at the source by now."""
        with group_client(self.sides, self.request) as source:
            names = [position.group.name for position in groups.positions]
            commits, errors = group_requests.settled_commits(source, names)
        for group, error in errors.items():
            yield Finding.of(error).inside(f"group {group}")
        for each in groups.positions:
            now = commits.get(each.group.name, {})
            for tp, offset in each.committed.items():
                if tp in now and now[tp].offset > offset:
                    yield fails(
                        f"group {each.group.name}: {tp}",
                        f"went on at the source, from {count(offset)} to {count(now[tp].offset)},"
                        " while it was moved",
                        "stop it there; then repeat `relay move cut`",
                    )


def came_late(record: MoveRecord, tp: TopicPartition) -> ConfigError:
    """Return the error for a topic-partition of which it is unknown where the fence has held."""
    return ConfigError(
        f"{tp} has come after the fence",
        remedy="repeat `relay move fence`"
        if allows(record, Action.FENCE)
        else "take the move back with `relay move back`, and begin again with `relay move fence`",
    )


def claim_all(client: ClusterClient, owners: Mapping[TopicPartition, str], look: Look) -> None:
    """Claim topic-partitions for the client's mirror, unless another process goes on with the move.

    Raises:
        FencedError: another process has.
        RelayError: the cluster does not answer, or one cannot be claimed now.
    """
    for why in claim_for(client, client.mirror, owners, look=look).values():
        raise why


def taken(
    destination: ClusterClient, mirror: Mirror, record: MoveRecord, own: Look
) -> list[CutPartition]:
    """Claim the topic-partitions of a move, and return where their copies end.

    Raises:
        RelayError: the destination does not answer, or one cannot be claimed now.
    """
    partitions = _partitions(record, read_own_checkpoints(destination))
    claim_all(destination, dict.fromkeys(partitions, moved_id(record.mirror)), own)
    known = read_own_checkpoints(destination)
    return _positions(destination, mirror, record, known, partitions)


def _partitions(record: MoveRecord, known: CheckpointSnapshot) -> list[TopicPartition]:
    """Return what a cut takes, also what nobody has copied."""
    partitions = {*record.ends.by_partition, *known.next_offsets, *known.owners}
    return sorted(tp for tp in partitions if tp.topic in record.topics)


def moved_partitions(destination: ClusterClient, record: MoveRecord) -> list[TopicPartition]:
    """Return what of a move is taken from the mirror: all of it, or nothing.

    Raises:
        RelayError: the destination does not answer.
    """
    return sorted(
        tp
        for tp, owner in read_own_checkpoints(destination).owners.items()
        if tp.topic in record.topics and owner == moved_id(record.mirror)
    )


class WrittenMeanwhileError(ConfigError):
    """A producer has written at the destination while a move was taken back (invariant M5)."""


def require_unwritten(destination: ClusterClient, mirror: Mirror, record: MoveRecord) -> None:
    """Refuse to give back what a producer has written to since the first look.

    Raises:
        WrittenMeanwhileError: it would stay at the destination without a word.
        RelayError: the destination does not answer.
    """
    for tp, offsets in written_beyond(destination, mirror, record).items():
        end = record.known_ends.at(tp)
        raise WrittenMeanwhileError(
            f"{tp}: offsets {count(end)} to {count(end + offsets)} were written at the destination"
            " while the move was taken back",
            remedy="nothing is given back: `relay move back` again brings them home",
        )


def hold(destination: ClusterClient, record: MoveRecord) -> None:
    """Fence whoever is about to give back or to take topics, and wait for what is committed.

    Raises:
        RelayError: the destination does not answer.
    """

    def take() -> None:
        held = {moved_id(record.mirror)}
        if record.may_be_half_cut:
            known = read_state(destination).of(record.mirror)
            held |= {
                present_owner(record.mirror, tp, known.owners, is_copied=tp in known.checkpoints)
                for tp in _partitions(record, known)
            }
        fencing.fence(destination, held, patient=False)
        wait_for_open_transactions(destination, checkpoint.homes(checkpoint.TOPIC))

    destination.retry(take)


def give_back(client: ClusterClient, moved: Collection[TopicPartition], look: Look) -> None:
    """Give topic-partitions that a move has taken back to their mirror.

    Raises:
        RelayError: of the look; or the cluster does not answer, or one cannot be claimed now.
    """
    claim_all(client, dict.fromkeys(moved, claimant_id(client.mirror)), look)


def _positions(
    destination: ClusterClient,
    mirror: Mirror,
    record: MoveRecord,
    known: CheckpointSnapshot,
    partitions: Sequence[TopicPartition],
) -> list[CutPartition]:
    copies = {tp: renamed_target(tp.topic, mirror.topics.rename).of(tp) for tp in partitions} | {
        tp: last.copies.topic_partition if last.copies else last.destination
        for tp in partitions
        if (last := known.checkpoints.get(tp))
    }
    ends = _ends(destination, set(copies.values()))
    next_offsets = known.next_offsets
    positions = []
    for tp in partitions:
        last = known.checkpoints.get(tp)
        source_end, end = next_offsets.get(tp, 0), record.ends.at(tp)
        if not record.is_without_source:  # of a topic-partition without a record, nothing is copied
            source_end = max(source_end, end)
        positions.append(
            CutPartition(
                tp,
                source_end,
                max(0, end - source_end) if record.ends.has(tp) else UNKNOWN,
                copies[tp],
                ends.get(copies[tp], 0),
                last.ledger_head.number if last else 0,
                last.ledger_head.hash if last else "",
            )
        )
    return positions


def written_beyond(
    destination: ClusterClient, mirror: Mirror, record: MoveRecord
) -> dict[TopicPartition, int]:
    """Return how many offsets each copy has beyond its known end; not those that have none.

    Also what an open transaction hides from readers, and partitions that came after the cut.

    Raises:
        RelayError: the destination does not answer.
    """
    known = record.known_ends
    # of a topic to which others are pinned, only what this one was copied to
    whole = {
        each.destination.topic
        for each in record.cut
        if renamed_target(each.source.topic, mirror.topics.rename).partition is None
    }

    def ask() -> dict[TopicPartition, int]:
        there = existing_partitions(destination, known)
        asked = sorted(tp for tp in there if known.has(tp) or tp.topic in whole)
        # also of open transactions: it is unknown what they will commit
        return destination.list_offsets(asked, LATEST, READ_UNCOMMITTED)

    ends = destination.retry(ask) if known else {}
    beyond = {tp: end - known.at(tp) for tp, end in ends.items()}
    return {tp: offsets for tp, offsets in beyond.items() if offsets > 0}


def _ends(
    destination: ClusterClient, partitions: Collection[TopicPartition]
) -> dict[TopicPartition, int]:
    def ask() -> dict[TopicPartition, int]:
        existing = existing_partitions(destination, {tp.topic for tp in partitions})
        there = sorted(existing.intersection(partitions))
        wait_for_open_transactions(destination, there)
        return destination.list_offsets(there, LATEST, READ_COMMITTED)

    return destination.retry(ask)


def groups_at_destination(destination: ClusterClient, record: MoveRecord) -> list[str]:
    """Say of a cut without the source where groups are that the mirror has followed."""
    listed = destination.retry(partial(group_requests.listed_groups, destination))
    names = [group.name for group in listed]
    commits, errors = group_requests.settled_commits(destination, names)
    copies = {each.destination for each in record.cut}
    lines = [f"group {group}: {error}" for group, error in errors.items()]
    for group, of_group in commits.items():
        marks = [
            mark
            for tp, commit in of_group.items()
            if tp in copies
            and (mark := mark_of(commit)) is not None
            and mark.mirror == record.mirror
        ]
        if marks:
            oldest = min(mark.at_ms for mark in marks)
            lines.append(
                f"group {group} is where it was at the source at {format_time(oldest)} or later, in"
                f" {plural(len(marks), 'topic-partition')}"
            )
    return lines or ["of no group is known how far it was at the source"]


def lines(record: MoveRecord) -> list[str]:
    """Return what a cut has decided, in words."""
    partitions = plural(len(record.cut), "topic-partition")
    if record.is_without_source:
        missing = sum(max(0, each.missing) for each in record.cut)
        unknown = sum(each.missing == UNKNOWN for each in record.cut)
        parts = [f"cut without the source: {partitions}, of which the copies end as the cut says"]
        parts += [f"{plural(missing, 'offset')} seen at the source are not here"] if missing else []
        if unknown:
            parts.append(f"of {count(unknown)} it is unknown what the source had besides")
        return ["; ".join(parts)]
    groups = plural(len(record.groups), "group")
    return [f"cut: all that was committed at the source is copied, {partitions}; {groups} moved"]


def findings(record: MoveRecord) -> list[Finding]:
    """Return what is not there, by topic-partition."""
    return [
        warning(
            Kind.NOT_READY,
            str(each.source),
            f"{plural(each.missing, 'offset')} from {count(each.source_end)} on are not copied"
            if each.missing > 0
            else f"copied up to offset {count(each.source_end)}; what came after is unknown",
        )
        for each in record.cut
        if each.missing
    ]


def _has_moved(snapshot: ClusterSnapshot) -> bool:
    return any(Blocker.MOVED in of_partition for of_partition in snapshot.blockers.values())
