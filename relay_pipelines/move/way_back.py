"""The way back: what was written at the destination since the cut comes home, exactly once.

A mirror of its own copies it (`way_back_mirror`), by the same tasks and with the same proof as any
other. docs/groups-and-moves.md argues why no record comes home twice, and none of the source's own.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field, replace
from functools import partial

from relay_pipelines.audit.request import AuditRequest
from relay_pipelines.errors import (
    ConfigError,
    DestinationError,
    FencedError,
    SourceError,
)
from relay_pipelines.finding import Finding
from relay_pipelines.ledger import checkpoint
from relay_pipelines.ledger.reader import read_checkpoints, read_own_checkpoints
from relay_pipelines.ledger.state_table import CheckpointSnapshot, read_state
from relay_pipelines.ledger.verified import VerifiedLedger, read_verified_ledger
from relay_pipelines.model import OffsetRange, Side, TopicPartition
from relay_pipelines.move import fence
from relay_pipelines.move.copying import audit_all, copy_all
from relay_pipelines.move.cut import Look, claim_all, give_back
from relay_pipelines.move.gates import not_moved
from relay_pipelines.move.inventory import existing_partitions, source_ends
from relay_pipelines.move.record import (
    CutPartition,
    Ends,
    Fence,
    MoveRecord,
    WayBack,
)
from relay_pipelines.move.rehearsal import schema_gate, snapshot_of
from relay_pipelines.move.request import MoveRequest
from relay_pipelines.move.states import FenceBy, State
from relay_pipelines.move.way_back_mirror import name_of, reversed_mirror
from relay_pipelines.offsets.apply import apply
from relay_pipelines.offsets.mark import mark_of, own_text
from relay_pipelines.offsets.positions import Answer, ConsumerPosition
from relay_pipelines.offsets.translate import read_translation, translation_of
from relay_pipelines.offsets.translation import Translation
from relay_pipelines.output.formatting import count, plural
from relay_pipelines.plan.blockers import Blocker, losses
from relay_pipelines.plan.owners import moved_id
from relay_pipelines.plan.positions import OnDataLoss
from relay_pipelines.prepare.checkpoint_moves import resume_at
from relay_pipelines.protocol import groups
from relay_pipelines.protocol.client import (
    EARLIEST,
    LATEST,
    READ_COMMITTED,
    READ_UNCOMMITTED,
    ClusterClient,
)
from relay_pipelines.protocol.groups import Commits
from relay_pipelines.protocol.reader import read
from relay_pipelines.replay.replay import require_copyable
from relay_pipelines.run.session import Session
from relay_pipelines.sides import Sides
from relay_pipelines.snapshot.cluster_snapshot import ClusterSnapshot
from relay_pipelines.snapshot.read_clusters import take_snapshot

_LOOK_BYTES = 64 << 10
THERE = "destination"
"""The one upstream of the destination, as `fence` names them."""
_AGAIN = "stop that producer, and repeat `relay move back`"


@dataclass(slots=True)
class WayBackSteps:
    """The steps of the way back, in their order; each may be repeated."""

    sides: Sides
    request: MoveRequest
    record: MoveRecord
    session: Session
    say: Callable[[str], None]
    own: Sides = field(init=False)
    """The mirror that copies."""

    def __post_init__(self) -> None:
        mirror = reversed_mirror(self.sides.mirror, self.record)
        self.own = Sides(name_of(self.record), mirror, self.sides.clock)

    def copy_to(self, source: ClusterClient) -> None:
        """Copy to the cluster that this client asks, whichever has its addresses later.

        Raises:
            RelayError: it does not answer.
        """
        source.retry(source.any_connection)
        self.own = self.own.at(source.cluster_id)

    def require_possible(self, source: ClusterClient, destination: ClusterClient) -> None:
        """Refuse what could not be finished. Changes nothing.

        Raises:
            ConfigError: records are where they cannot be told apart, or are gone.
            RelayError: a cluster refuses, or does not answer.
        """
        _require_alone(source, self.record)
        _require_kept(destination, self.record)
        _require_originals(destination, self.record)
        self._require_known()
        snapshot = self._snapshot()
        for error in snapshot.held.values():
            raise error
        require_copyable(snapshot, self.session)

    def require_unlost(self, destination: ClusterClient) -> ClusterSnapshot:
        """Refuse if something of what is still to be mirrored back cannot be. Changes nothing.

        Raises:
            ConfigError: retention was faster, and relay.yaml does not accept that.
            RelayError: a guard holds something back, or a cluster does not answer.
        """
        snapshot, accepts = self._snapshot(), self.own.mirror.on_data_loss is OnDataLoss.CONTINUE
        accepted = snapshot.held_for(Blocker.LOST) if accepts else {}
        for tp, error in snapshot.held.items():
            if not (snapshot.blocker(tp, Blocker.MOVED) or tp in accepted):
                raise error
        if not accepts:
            _require_kept(destination, self.record, snapshot.state)
        return snapshot

    def _require_known(self) -> None:
        """Refuse logs that are not those of the cut.

        Raises:
            ConfigError: a topic of either side was created again, or has lost its end.
        """
        snapshot = snapshot_of(self.sides, self.request, self.record)
        for position in snapshot.positions:
            for loss in losses(position):
                raise ConfigError(
                    f"{position.topic_partition}: {loss.what}",
                    remedy="nothing can be mirrored back exactly: go on at the destination",
                )

    def begun(self, destination: ClusterClient) -> MoveRecord:
        """Return the record that is written before anything is changed.

        Raises:
            ConfigError: the destination cannot be fenced so.
            RelayError: it does not answer, or refuses.
        """
        if self.record.way_back.mirror:
            held = self.record.way_back.fence
            if held.by is not self.request.by:
                raise ConfigError(
                    f"{self.record.where}, and the destination is fenced by {held.by}",
                    remedy=f"go on with --by {held.by}",
                )
            return replace(self.record, state=State.RETURNING)
        by, topics = self.request.by, {each.destination.topic for each in self.record.cut}
        acls = fence.denials({THERE: destination}, topics) if by is FenceBy.ACL else {}
        if before := self.record.way_back.fence.acls:  # that a cut was to lift
            acls = {THERE: tuple(dict.fromkeys((*acls.get(THERE, ()), *before[THERE])))}
        way_back = WayBack(self.own.name, Fence(by, acls))
        return replace(self.record, state=State.RETURNING, way_back=way_back)

    def take_on(self, own: Look) -> None:
        """Take on again what an attempt before has ended: more may have come since.

        Raises:
            FencedError: another process goes on with the move.
            RelayError: the source does not answer, or refuses.
        """
        with self.own.destination("move") as client:
            if not client.retry(partial(client.has_topic, checkpoint.TOPIC)):
                return
            owners = read_own_checkpoints(client).owners
            ended = [tp for tp, owner in owners.items() if owner == moved_id(self.own.name)]
            give_back(client, ended, own)

    def copy(self, destination: ClusterClient) -> None:
        """Copy up to where the destination ends now.

        Raises:
            RelayError: not all could be copied.
        """
        self.say("mirroring back what was written at the destination")
        self.require_unlost(destination)
        copy_all(self._snapshot, self.session, scope="", again="relay move back")

    def hold(self, destination: ClusterClient) -> MoveRecord:
        """Wait until the fence of the destination holds, and return the record that says so.

        Raises:
            SourceError: a producer writes there.
            RelayError: it does not answer.
        """
        still_ms = self.request.still_ms
        self.say(f"waiting {still_ms / 1000:g} s for the destination not to move")
        partitions = [position.topic_partition for position in self._snapshot().positions]
        try:
            ends = fence.verify({THERE: destination}, partitions, still_ms)
        except SourceError as error:
            error.remedy = _AGAIN
            raise
        held = replace(
            self.record.way_back.fence, still_ms=still_ms, held_at_ms=self.sides.clock.now_ms()
        )
        way_back = replace(self.record.way_back, fence=held, ends=ends)
        return replace(self.record, way_back=way_back)

    def copy_rest(self, destination: ClusterClient) -> None:
        """Copy up to the ends at which the destination has stood still.

        Raises:
            RelayError: not all could be copied.
        """
        snapshot = self._snapshot()
        ends = self.record.way_back.ends
        if any(each.begin < ends.at(each.topic_partition) for each in snapshot.positions):
            self.copy(destination)
        snapshot = self.require_unlost(destination)
        for position in snapshot.positions:
            end = ends.at(position.topic_partition)
            if position.begin < end:
                raise DestinationError(
                    f"it is mirrored back up to {count(position.begin)} of {count(end)}",
                    remedy="repeat `relay move back`",
                    topic_partition=position.topic_partition,
                )

    def audit(self) -> None:
        """Audit all that was mirrored back.

        Raises:
            TamperedError: it is not what the destination has, or another process has written to the
                source among it.
            RelayError: it could not be audited.
        """
        self.say("auditing what was mirrored back")
        asked = AuditRequest(level=self.request.level)
        known = read_checkpoints(self.own)
        if any(last.ledger_head.number for last in known.checkpoints.values()):
            audit_all(self.own, asked, self.session)

    def look(self, source: ClusterClient, destination: ClusterClient) -> list[Answer]:
        """Find where the groups of the destination go on at the source.

        Raises:
            ConfigError: a position has no answer, or a group has members at the source.
            RelayError: a cluster does not answer.
        """
        self.say("looking at groups and schemas")
        gate = schema_gate(self._snapshot())
        for reason in gate.reasons:
            raise ConfigError(
                f"gate schemas: {reason}",
                remedy="register it at the source's registry under the same id; then repeat"
                " `relay move back`",
            )
        answers = read_answers(self, source, destination)
        for answer in answers:
            if answer.offset is None:
                raise _without(
                    answer.position.group, f"{answer.position.topic_partition}: {answer.why}"
                )
        moving = {answer.position.group for answer in answers}
        for group in source.retry(partial(groups.listed_groups, source)):
            if group.name in moving and group.has_members:
                raise _without(group.name, "has members at the source")
        return answers

    def end(self, own: Look) -> MoveRecord:
        """See that nobody mirrors back anything from here on; return the record that says so.

        Raises:
            FencedError: another process goes on with the move.
            RelayError: the source does not answer, or refuses.
        """
        with self.own.destination("move") as client:
            begun = read_own_checkpoints(client).next_offsets
            claim_all(client, dict.fromkeys(begun, moved_id(self.own.name)), own)
            known = read_own_checkpoints(client).checkpoints.values()
        copies = [each.copies for each in known if each.copies is not None]
        ends = Ends.of({each.topic_partition: each.next_offset for each in copies})
        way_back = replace(self.record.way_back, source_ends=ends)
        return replace(self.record, state=State.LIFTING, way_back=way_back)

    def resume(self, destination: ClusterClient) -> None:
        """Let the mirror go on after what came home: the destination has the originals.

        Raises:
            RelayError: a cluster does not answer, or refuses.
        """
        way_back = self.record.way_back

        def go_on() -> None:
            snapshot = snapshot_of(self.sides, self.request, self.record)
            for position in snapshot.positions:
                end = way_back.source_ends.at(position.topic_partition)
                # one that was given back may be further
                if position.begin < end:
                    why = f"written at the destination, and brought home by {self.own.name}"
                    copies_end = way_back.ends.at(snapshot.destination_of(position.topic_partition))
                    resume_at(destination, snapshot, position, end, why, copies_end)

        # somebody who was overtaken may have moved one to an earlier end: it is looked at again
        destination.retry(go_on, also=(FencedError,))

    def require_still(self, destination: ClusterClient) -> None:
        """See that nothing was written at the destination since its fence held.

        Raises:
            SourceError: a producer has written.
            RelayError: it does not answer.
        """
        way_back = self.record.way_back
        there = {THERE: destination}
        if error := fence.moved_since(there, way_back.ends, way_back.fence.held_at_ms):
            error.remedy = _AGAIN
            raise error

    def _snapshot(self) -> ClusterSnapshot:
        # the loop guard is lifted: copying begins at the cut, and no copy is beyond it
        return take_snapshot(self.own, refuse_loops=False)

    def lines(self) -> list[str]:
        """Return what was mirrored back, in words."""
        ledger = read_verified_ledger(self.own)
        records = sum(entry.records for entry in ledger.entries)
        home = f"mirrored back by {self.own.name}: {plural(records, 'record')}"
        return [home, f"the destination stays fenced by {self.record.way_back.fence}"]


def _require_alone(source: ClusterClient, record: MoveRecord) -> None:
    """Refuse a source that has gone on by itself since the cut.

    Raises:
        ConfigError: its records are not at the destination, and would lie before those that come.
    """
    cut = record.cut_at_source
    there = source.retry(partial(existing_partitions, source, cut))
    existing = {tp.topic for tp in there}
    for topic in cut:
        if topic not in existing:
            raise ConfigError(
                f"the topic {topic} is no longer at the source",
                remedy="nothing can be mirrored back to it: go on at the destination",
            )
    # partitions that have come since, or of which nothing was copied
    ends_at_cut = cut.with_later(there)
    ends = source_ends(source, ends_at_cut)
    for tp, end in ends_at_cut.items():
        if ends.high[tp] < end:
            raise ConfigError(
                f"{tp}: the source ends at offset {count(ends.high[tp])}, before {count(end)}: it"
                " has lost records, or was created again",
                remedy="nothing can be mirrored back exactly: go on at the destination",
            )
        # behind the last record may be the marker of its transaction, which is no record
        if ends.high[tp] > end and (
            tp in ends.open or _holds_records(source, OffsetRange(tp, end, ends.high[tp]))
        ):
            raise ConfigError(
                f"{tp}: the source has offsets {count(end)} to {count(ends.high[tp])}, which were"
                " never copied: both sides have gone on from the cut",
                remedy="nothing is mirrored back into that: decide with the owners of the data"
                " which side goes on, and copy what they want of the other",
            )


def _holds_records(source: ClusterClient, offsets: OffsetRange) -> bool:
    def ask() -> bool:
        with closing(read(source, offsets, _LOOK_BYTES)) as fetches:
            return any(span.skipped is None for spans in fetches for span in spans)

    return source.retry(ask)


def _require_kept(
    destination: ClusterClient, record: MoveRecord, known: CheckpointSnapshot | None = None
) -> None:
    """Refuse if the destination has lost what was written beyond the cut.

    Args:
        known: of the way back: where it has started, retention may follow.

    Raises:
        ConfigError: retention, or somebody, has deleted it.
    """
    cut = record.cut_at_destination
    there = destination.retry(partial(existing_partitions, destination, cut))
    low = destination.retry(partial(destination.list_offsets, there, EARLIEST, READ_COMMITTED))
    end = destination.retry(partial(destination.list_offsets, there, LATEST, READ_UNCOMMITTED))
    begun = _starts(known) if known else {}
    for tp in sorted(there):
        cut_at = cut.at(tp)
        if begun.get(tp, low[tp]) > cut_at or end[tp] < cut_at:
            raise ConfigError(
                f"{tp} has offsets {count(low[tp])} to {count(end[tp])}, and the cut is at"
                f" {count(cut_at)}: records that were written after it may be gone",
                remedy="nothing can be mirrored back exactly: go on at the destination"
                if record.state is State.CUT
                else "set on_data_loss: continue, and repeat `relay move back`: it brings home"
                " what is left",
            )


def _require_originals(destination: ClusterClient, record: MoveRecord) -> None:
    """Refuse if a replay, or another mirror, has copied beyond the cut.

    Raises:
        ConfigError: one has: what the source has already would come to it again.
        TamperedError, UnsupportedError: one may have, as its checkpoint cannot be read.
    """
    cut = record.cut_at_destination
    every = destination.retry(lambda: read_state(destination))
    for hidden in every.hidden_in(destination, cut.keys()).values():
        raise hidden.error.of(hidden.source)
    for each in every.checkpoints:
        copies = each.copies
        if copies is None or each.mirror == record.mirror:
            continue
        tp = copies.topic_partition
        if (
            cut.has(tp)
            and copies.next_offset > cut.at(tp)
            and copies.topic_id in {"", destination.topic(tp.topic).topic_id}
        ):
            raise ConfigError(
                f"{tp} has copies of {each.mirror} beyond the cut: they would come home, too",
                remedy="nothing can be mirrored back exactly: go on at the destination",
            )


def _starts(known: CheckpointSnapshot) -> dict[TopicPartition, int]:
    """Return where a mirror has started, as it was decided."""
    return dict.fromkeys(known.checkpoints, 0) | {
        TopicPartition(start.topic, partition): offset
        for start in known.starts.values()
        for partition, offset in start.starts.items()
    }


def _without(group: str, why: str) -> ConfigError:
    return ConfigError(
        f"group {group}: {why}",
        remedy=f"leave it out with --without-group {group}, and move it by hand; then repeat"
        " `relay move back`",
    )


def read_answers(
    steps: WayBackSteps, source: ClusterClient, destination: ClusterClient
) -> list[Answer]:
    """Translate what groups have committed at the destination.

    Up to the cut by the ledger of the mirror, beyond it by that of the way back.

    Raises:
        RelayError: a cluster does not answer.
    """
    topics = {each.destination.topic for each in steps.record.cut}
    names = [
        group.name
        for group in destination.retry(partial(groups.listed_groups, destination))
        if group.type != "share" and group.name not in steps.request.without_groups
    ]
    there, errors = groups.settled_commits(destination, names)
    here, unread = groups.settled_commits(source, list(there))
    for group, error in (errors | unread).items():
        raise _without(group, error.what)
    positions = [
        position
        for group, commits in sorted(there.items())
        for position in _positions(group, commits, topics)
    ]
    with steps.own.destination("ledger") as home:
        beyond = read_translation(home)
    ledger = read_verified_ledger(steps.sides)
    upto = translation_of(_as_of_cut(ledger, steps.record), destination)
    cut_at = {each.destination: each for each in steps.record.cut}
    answers = [_answer(position, cut_at, upto, beyond) for position in positions]
    sources = {each.destination: each.source for each in steps.record.cut}
    return [
        answer
        for answer in answers
        if not _is_there(steps.sides.name, answer, there[answer.position.group], here, sources)
    ]


def _as_of_cut(ledger: VerifiedLedger, record: MoveRecord) -> VerifiedLedger:
    """Return the ledger without what has come since: an attempt before may have resumed."""
    chains, checkpoints = dict(ledger.chains), dict(ledger.checkpoints)
    for part in record.cut:
        if part.source not in checkpoints:
            continue
        chain = chains[part.source]
        records = [each for each in chain.records if each.entry.number <= part.ledger_number]
        chains[part.source] = replace(chain, records=records)
        known = replace(checkpoints[part.source], next_offset=part.source_end)
        if records:
            known = replace(known, generation=records[-1].entry.generation)
        checkpoints[part.source] = known
    return replace(ledger, chains=chains, checkpoints=checkpoints)


def _positions(group: str, commits: Commits, topics: set[str]) -> Iterator[ConsumerPosition]:
    for tp, commit in sorted(commits.items()):
        if tp.topic in topics:
            yield ConsumerPosition(tp, commit.offset, group, own_text(commit.metadata))


def _answer(
    position: ConsumerPosition,
    cut_at: Mapping[TopicPartition, CutPartition],
    upto: Translation,
    beyond: Translation,
) -> Answer:
    """Return where one position goes on at the source."""
    part = cut_at.get(position.topic_partition)
    if part is None or position.offset > part.destination_end:
        (answer,) = beyond.to_destination([position])
        return answer
    if position.offset == part.destination_end or not part.ledger_number:
        return Answer(position, part.source, part.source_end)
    (answer,) = upto.to_source([position])
    return answer


def _is_there(
    mirror: str,
    answer: Answer,
    commits: Commits,
    here: Mapping[str, Commits],
    sources: Mapping[TopicPartition, TopicPartition],
) -> bool:
    """Whether nobody has read at the destination, so that the source's own position stays.

    The mark says that the mirror has put the group there, from its position at the source: it
    needs no answer.
    """
    there = answer.position.topic_partition
    mark = mark_of(commits[there])
    if mark is None or mark.mirror != mirror or there not in sources:
        return False
    known = here.get(answer.position.group, {}).get(sources[there])
    return known is not None and (answer.offset is None or known.offset >= answer.offset)


def move_groups(source: ClusterClient, answers: Sequence[Answer]) -> list[Finding]:
    """Commit for the groups where they go on at the source, and read it back.

    Returns:
        why some have not moved.

    Raises:
        RelayError: the source does not answer.
    """
    applied = apply(source, answers, Side.SOURCE, execute=True, backwards=False)
    return not_moved(applied, "at the source", "relay move back")
