"""A move, step by step: each command reads the record, does what is left, and writes the next one.

docs/groups-and-moves.md says why, and what a kill between any two steps leaves.
"""

from __future__ import annotations

import getpass
import socket
import uuid
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from operator import attrgetter

from relay_pipelines.errors import ConfigError, MovedError, RelayError
from relay_pipelines.finding import Finding, Severity
from relay_pipelines.ledger.reader import read_own_checkpoints
from relay_pipelines.model import TopicPartition
from relay_pipelines.move import cut, fence, way_back
from relay_pipelines.move.gates import GATES, WAY_BACK, Gate, fails, looked
from relay_pipelines.move.inventory import Groups, Upstreams, group_client, open_upstreams
from relay_pipelines.move.record import (
    REMEDIES,
    Fence,
    MoveRecord,
    MoveRecords,
    MoveResult,
    WayBack,
    acl_count,
    allows,
    require,
)
from relay_pipelines.move.rehearsal import Rehearsal, rehearse, snapshot_of
from relay_pipelines.move.request import MoveRequest, MoveStep
from relay_pipelines.move.states import Action, FenceBy, State
from relay_pipelines.move.verify import verify
from relay_pipelines.move.way_back import THERE, WayBackSteps
from relay_pipelines.output.formatting import plural
from relay_pipelines.output.messages import Say, say_nothing
from relay_pipelines.prepare.topics import create_state_topics
from relay_pipelines.protocol.client import ClusterClient
from relay_pipelines.run.session import Session
from relay_pipelines.sides import Sides

_AT_SOURCE = attrgetter("source_acls")
_AT_DESTINATION = attrgetter("destination_acls")


def who_am_i() -> str:
    """Return who runs a command, for people."""
    try:
        user = getpass.getuser()
    except (KeyError, OSError):  # a container may have no name for it
        user = "unknown"
    return f"{user}@{socket.gethostname()}"


@dataclass(slots=True)
class Move:
    """The move of a mirror to its destination.

    Args:
        session: Spark's, of which the last run and an audit of much make use.
        by: who it is, for people.
        say: gets a line before each step that may take long.
    """

    sides: Sides
    request: MoveRequest
    session: Session
    by: str = field(default_factory=who_am_i)
    say: Say = say_nothing
    _writer: str = field(default_factory=lambda: uuid.uuid4().hex, init=False)

    def do(self, step: MoveStep) -> MoveResult:
        """Do a step that is no rehearsal; its method says what it raises."""
        steps: dict[MoveStep, Callable[[], MoveResult]] = {
            MoveStep.FENCE: self.fence,
            MoveStep.CUT: self.cut,
            MoveStep.VERIFY: self.verify,
            MoveStep.BACK: self.back,
            MoveStep.STATUS: self.status,
        }
        return steps[step]()

    def record(self) -> MoveRecord:
        """Return where the move stands.

        Raises:
            RelayError: the destination does not answer, or refuses.
        """
        with self._records() as (records, _):
            return records.read()

    def rehearse(self) -> Rehearsal:
        """Look at every gate of the step that comes next; changes nothing.

        Raises:
            RelayError: a cluster does not answer.
        """
        record = self.record()
        if not record.is_cut:
            rehearsed = rehearse(self.sides, self.request, record)
            return replace(rehearsed, gates=[*rehearsed.gates, Gate(WAY_BACK, "nothing is cut")])
        asked = not record.is_without_source
        saw = "held when it was cut" if asked else "it was cut without the source"
        behind = [Gate(gate, saw, is_seen=asked) for gate in GATES if gate != WAY_BACK]
        gates = [*behind, looked(WAY_BACK, self._way_back_gate)]
        partitions = [each.source for each in record.cut]
        return Rehearsal(record, record.topics, partitions, 0, gates, {}, Groups())

    def _way_back_gate(self) -> Gate:
        """Say what `back` would bring home now; changes nothing."""
        with (
            self._records() as (records, destination),
            group_client(self.sides, self.request) as source,
        ):
            record = records.read()
            beyond = sum(cut.written_beyond(destination, self.sides.mirror, record).values())
            if record.state is State.RETURNING:
                self._way_back(record).require_unlost(destination)
            elif beyond:
                self._way_back(record).require_possible(source, destination)
        text = f"{plural(beyond, 'offset')} written at the destination since the cut"
        return Gate(WAY_BACK, text)

    def fence(self) -> MoveResult:
        """Stop the producers of the source, and see that no producer writes.

        Raises:
            ConfigError: the state does not allow it, or it cannot be done so.
            FencedError: another process goes on with the move.
            SourceError: a producer writes.
            RelayError: a cluster does not answer, or refuses.
        """
        with self._records() as (records, _), open_upstreams(self.sides) as upstreams:
            record = records.read()
            require(record, Action.FENCE, self.request.topics)
            snapshot = snapshot_of(self.sides, self.request, record)
            partitions = [position.topic_partition for position in snapshot.positions]
            with snapshot.destination_client() as client:
                create_state_topics(client, snapshot)
            if not record.is_under_way:  # of the move before
                left = {n: acls for n, acls in record.fence.acls.items() if n in upstreams}
                fence.settle(records, upstreams, left, _AT_SOURCE)
            record = records.write(record, self._fencing(record, upstreams, snapshot.targets))
            if record.fence.by is FenceBy.ACL:
                fence.settle(records, upstreams, record.fence.acls, _AT_SOURCE)
                records.require_own(record)
            self.say(f"waiting {self.request.still_ms / 1000:g} s for the source not to move")
            ends = fence.verify(upstreams, partitions, self.request.still_ms)
            held = replace(
                record.fence, still_ms=self.request.still_ms, held_at_ms=self.sides.clock.now_ms()
            )
            record = records.write(
                record,
                replace(record, state=State.FENCED, fence=held, ends=ends),
            )
        return MoveResult(record, [_fenced(record)])

    def _fencing(
        self, record: MoveRecord, upstreams: Upstreams, topics: Collection[str]
    ) -> MoveRecord:
        """Return the record that is written before anything is changed."""
        if record.is_under_way:
            if record.fence.by is not self.request.by:
                raise ConfigError(
                    f"{record.where}, by {record.fence.by}",
                    remedy=f"go on with --by {record.fence.by}, or take it back first",
                )
            new = set(topics) - set(record.topics)  # that have come since, of a whole mirror
            acls = dict(record.fence.acls)
            for name, upstream in upstreams.items() if record.fence.by is FenceBy.ACL else ():
                not_fenced = new if name in acls else {*record.topics, *new}
                acls[name] = (*acls.get(name, ()), *fence.acls_to_deny(upstream, not_fenced))
            return replace(
                record,
                state=State.FENCING,
                topics=tuple(sorted({*record.topics, *new})),
                fence=replace(record.fence, acls=acls),
            )
        by, own = self.request.by, record.fence.acls
        denied = fence.denials(upstreams, topics, own) if by is FenceBy.ACL else {}
        return MoveRecord(
            self.sides.name,
            number=record.number,
            state=State.FENCING,
            topics=tuple(sorted(topics)),
            is_whole=not self.request.topics,
            fence=Fence(by, denied),
            way_back=WayBack(fence=record.way_back.fence),  # of the destination, until the cut
        )

    def cut(self) -> MoveResult:
        """Copy the rest, take the topics from the mirror, and move the groups.

        Raises:
            ConfigError: the state does not allow it, or a gate does not hold.
            FencedError: another process goes on with the move.
            RelayError: a cluster does not answer, or refuses.
        """
        with self._records() as (records, destination):
            record = records.read()
            action = Action.CUT_WITHOUT_SOURCE if self.request.is_without_source else Action.CUT
            require(record, action, self.request.topics)
            if record.state is State.CUT:
                record = self._open_destination(records, record, destination)
                return MoveResult(record, [record.where, *cut.lines(record)], cut.findings(record))
            if self.request.is_without_source:
                return self._cut_without_source(records, record, destination)
            steps = cut.Steps(self.sides, self.request, record, self.session, self.say)
            steps.require_still()
            steps.require_fenced()
            record = steps.record = records.write(record, replace(record, state=State.CUTTING))
            steps.copy_rest()
            groups = steps.look()
            record = records.write(record, replace(record, audited_until_ms=steps.audit()))
            positions = steps.take_topics(destination, partial(records.require_own, record))
            moved, refused = steps.move_groups(destination, groups)
            if refused:
                return MoveResult(record, [record.where], refused)
            done = replace(record, state=State.CUT, cut=tuple(positions), groups=moved)
            record = self._open_destination(records, records.write(record, done), destination)
        return MoveResult(record, cut.lines(record), cut.findings(record))

    def _open_destination(
        self, records: MoveRecords, record: MoveRecord, destination: ClusterClient
    ) -> MoveRecord:
        """Let producers come to the destination, which the way back before has fenced."""
        held = record.way_back.fence.acls
        if not any(held.values()):
            return record
        fence.settle(records, {THERE: destination}, held, _AT_DESTINATION)
        return records.write(record, replace(record, way_back=WayBack()))

    def _cut_without_source(
        self, records: MoveRecords, record: MoveRecord, destination: ClusterClient
    ) -> MoveResult:
        known = read_own_checkpoints(destination)
        copied = {tp.topic for tp in known.next_offsets}
        topics = set(self.request.topics or (record.topics if record.is_under_way else copied))
        if not topics or (unknown := topics - copied):
            raise ConfigError(
                f"{record.mirror} has copied nothing of {min(unknown) if topics else 'any topic'}",
                remedy="`relay status --all` says what it has copied",
            )
        begun = record
        if not record.is_under_way:
            held, is_whole = WayBack(fence=record.way_back.fence), not self.request.topics
            begun = MoveRecord(
                record.mirror, number=record.number, is_whole=is_whole, way_back=held
            )
        begun = replace(
            begun,
            state=State.CUTTING,
            topics=tuple(sorted(topics)),
            is_without_source=True,
        )
        record = records.write(record, begun)
        own = partial(records.require_own, record)
        positions = cut.taken(destination, self.sides.mirror, record, own)
        record = records.write(record, replace(record, state=State.CUT, cut=tuple(positions)))
        record = self._open_destination(records, record, destination)
        groups = cut.groups_at_destination(destination, record)
        return MoveResult(record, [*cut.lines(record), *groups], cut.findings(record))

    def verify(self) -> MoveResult:
        """Look at both sides after the cut; changes nothing.

        Raises:
            ConfigError: nothing is cut.
            RelayError: a cluster does not answer, or refuses.
        """
        record = self.record()
        if record.state is not State.CUT:
            raise ConfigError(
                f"{record.where}: there is nothing to verify", remedy=REMEDIES[record.state]
            )
        return verify(self.sides, self.request, record)

    def back(self) -> MoveResult:
        """Give the topics back to the mirror, and lift the fence.

        What was written at the destination since the cut is mirrored back before.

        Raises:
            ConfigError: there is nothing to take back, or it cannot be mirrored back.
            FencedError: another process goes on with the move.
            RelayError: a cluster does not answer, or refuses.
        """
        lines: list[str] = []
        with self._records() as (records, destination):
            record = records.read()
            require(record, Action.BACK, self.request.topics)
            if self._comes_home(record, destination):
                record, refused = self._mirror_back(records, record, destination)
                if refused:
                    return MoveResult(record, [record.where], refused)
            if record.state is not State.BACK:
                record = records.write(record, replace(record, state=State.LIFTING))
            given = self._give_back(records, record, destination)
            with open_upstreams(self.sides) as upstreams:
                lifted = fence.settle(records, upstreams, record.fence.acls, _AT_SOURCE)
            if record.way_back.mirror:
                lines = self._way_back(record).lines()
            if record.state is not State.BACK:
                record = records.write(record, replace(record, state=State.BACK))
        acls, topics = plural(lifted, "ACL"), plural(len(given), "topic-partition")
        lines.insert(0, f"taken back: {acls} lifted, {topics} given back to the mirror")
        if record.fence.by is not FenceBy.ACL:
            lines.append("start the producers at the source again")
        return MoveResult(record, lines)

    def _give_back(
        self, records: MoveRecords, record: MoveRecord, destination: ClusterClient
    ) -> list[TopicPartition]:
        """Let the mirror go on, unless a producer has written meanwhile; return what it gets."""

        def look() -> None:
            records.require_own(record)
            cut.require_unwritten(destination, self.sides.mirror, record)

        cut.hold(destination, record)
        moved = cut.moved_partitions(destination, record)
        if not moved:  # the mirror may have copied beyond the cut
            return moved
        try:
            look()
            if record.way_back.mirror:  # from here on, positions before the cut have no answer
                self._way_back(record).resume(destination)
            cut.give_back(destination, moved, look)
        except cut.WrittenMeanwhileError:
            # nothing is given back, and no other process can any more
            state = State.RETURNING if record.way_back.mirror else State.CUT
            records.write(record, replace(record, state=state))
            raise
        return moved

    def _comes_home(self, record: MoveRecord, destination: ClusterClient) -> bool:
        """Whether something was written at the destination that has to come home."""
        return record.state is State.RETURNING or (
            record.state is State.CUT
            and bool(cut.written_beyond(destination, self.sides.mirror, record))
        )

    def _way_back(self, record: MoveRecord) -> WayBackSteps:
        return WayBackSteps(self.sides, self.request, record, self.session, self.say)

    def _mirror_back(
        self, records: MoveRecords, record: MoveRecord, destination: ClusterClient
    ) -> tuple[MoveRecord, list[Finding]]:
        """Bring home what was written at the destination; return why groups have not moved."""
        steps = self._way_back(record)
        with group_client(self.sides, self.request) as source:
            steps.copy_to(source)
            if not record.way_back.mirror:
                steps.require_possible(source, destination)
            steps.record = records.write(record, steps.begun(destination))

            def own() -> None:
                records.require_own(steps.record)

            steps.take_on(own)
            try:
                # while producers may still write, so that the rest is short
                steps.copy(destination)
            except MovedError:
                own()  # another process has ended it
                raise
            held = steps.record.way_back.fence
            if held.by is FenceBy.ACL:
                fence.settle(records, {THERE: destination}, held.acls, _AT_DESTINATION)
                own()
            steps.record = records.write(steps.record, steps.hold(destination))
            steps.copy_rest(destination)
            steps.audit()
            answers = steps.look(source, destination)
            steps.require_still(destination)
            ended = steps.end(own)
            if refused := way_back.move_groups(source, answers):
                return steps.record, refused
            return records.write(steps.record, ended), []

    def status(self) -> MoveResult:
        """Say where the move stands, and what of it still holds; changes nothing.

        Raises:
            RelayError: the destination does not answer, or refuses.
        """
        record = self.record()
        findings: list[Finding] = []
        lines = [record.where]
        if record.topics and record.is_under_way:
            lines.append(f"topics: {', '.join(record.topics)}")
        if record.state is State.CUT:
            lines += cut.lines(record)
        if record.way_back.mirror or record.way_back.fence.acls:
            lines.append(self._fenced_there(record.way_back.fence))
        try:
            findings += self._held(record)
        except RelayError as error:
            findings.append(Finding.of(error, Severity.WARNING))
            lines.append("the source could not be looked at")
        return MoveResult(record, lines, findings)

    def _fenced_there(self, held: Fence) -> str:
        if held.by is not FenceBy.ACL:
            return f"the destination is fenced by {held.by}"
        with self._records() as (_, destination):
            there = fence.present({THERE: destination}, held.acls)
        acls = plural(acl_count(held.acls), "ACL")
        return f"the destination is fenced by acl: {acl_count(there)} of {acls} there"

    def _held(self, record: MoveRecord) -> Iterator[Finding]:
        """Yield what of the fence does not hold, or was not lifted."""
        if record.state in {State.NONE, State.LIFTING} or record.is_without_source:
            return
        with open_upstreams(self.sides) as upstreams:
            there = fence.present(upstreams, record.fence.acls)
            for name, acls in record.fence.acls.items():
                for acl in acls:
                    if record.state is State.BACK and acl in there[name]:
                        text = f"the fence is still there: {acl}"
                        yield fails(f"upstream {name}", text, "`relay move back` lifts it")
                    elif record.state is not State.BACK and acl not in there[name]:
                        text = f"the fence is not there: {acl}"
                        remedy = f"create it with kafka-acls.sh; {REMEDIES[record.state]}"
                        if allows(record, Action.FENCE):
                            remedy = "`relay move fence` creates it"
                        yield fails(f"upstream {name}", text, remedy)
            if record.state is State.BACK:
                return
            # what is mirrored back is written at the source, too
            if (
                record.ends
                and not record.way_back.mirror
                and (error := fence.written_since(upstreams, record))
            ):
                yield Finding.of(error)

    @contextmanager
    def _records(self) -> Iterator[tuple[MoveRecords, ClusterClient]]:
        self.sides = self.sides.seen()  # all steps ask the cluster that has the record
        with self.sides.destination("move") as client:
            yield MoveRecords(client, self._writer, self.by), client


def _fenced(record: MoveRecord) -> str:
    held = record.fence
    partitions = plural(sum(map(len, record.ends.values())), "topic-partition")
    return (
        f"fenced by {held}: {partitions} did not move for {held.still_ms / 1000:g} s, and"
        " no transaction is open"
    )
