"""Looks at both sides after a cut: who still writes, and how the groups go on. Changes nothing."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace

from relay_pipelines.finding import Finding, Kind, Severity, warning
from relay_pipelines.model import Side
from relay_pipelines.move import cut, fence
from relay_pipelines.move.inventory import Groups, group_client, open_upstreams, read_groups
from relay_pipelines.move.record import MoveRecord, MoveResult
from relay_pipelines.move.rehearsal import snapshot_of
from relay_pipelines.move.request import MoveRequest
from relay_pipelines.offsets.positions import Answer, Outcome, State
from relay_pipelines.offsets.verify import verify as compare_records
from relay_pipelines.output.formatting import count, plural
from relay_pipelines.protocol.client import ClusterClient
from relay_pipelines.protocol.groups import Commits
from relay_pipelines.settings import Mirror
from relay_pipelines.sides import Sides


def verify(sides: Sides, request: MoveRequest, record: MoveRecord) -> MoveResult:
    """Compare where groups are with where the cut has put them, and the source with its ends.

    Raises:
        RelayError: the destination does not answer.
    """
    with sides.destination() as destination:
        lines = [record.where, _written_here(destination, sides.mirror, record)]
        if record.is_without_source:
            return MoveResult(record, lines, [])
        findings: list[Finding] = []
        with open_upstreams(sides) as upstreams, group_client(sides, request) as source:
            if error := fence.written_since(upstreams, record):
                findings.append(Finding.of(error))
            else:
                lines.append("nothing was written at the source since the fence held")
            now = read_groups(request, snapshot_of(sides, request, record))
            groups = {*record.groups}.difference(request.without_groups)
            seen = groups.difference(now.errors)
            moved = [position for position in now.positions if position.group.name in seen]
            answers = [answer for each in moved for answer in each.answers]
            compared = compare_records(
                now.translation, source, destination, answers, Side.DESTINATION
            )
        findings += [*_not_looked_at(groups, now), *_compared(compared)]
        for each in moved:
            findings += _gone_back(each.group.name, each.answers, each.there)
        went_on = [each for each in moved if _has_gone_on(each.answers, each.there)]
        lines.append(
            f"{plural(len(moved), 'group')} moved: {count(len(went_on))} went on since, and none"
            " misses a record"
            if not findings
            else f"{count(len(went_on))} went on since"
        )
    return MoveResult(record, lines, findings)


def _written_here(destination: ClusterClient, mirror: Mirror, record: MoveRecord) -> str:
    beyond = sum(cut.written_beyond(destination, mirror, record).values())
    return f"{plural(beyond, 'offset')} written at the destination beyond the cut"


def _not_looked_at(moved: Iterable[str], now: Groups) -> Iterator[Finding]:
    """Yield the groups that have moved, and of which it is unknown how they go on."""
    seen = {position.group.name for position in now.positions}
    for group in sorted(moved):
        where = f"group {group}"
        if error := now.errors.get(group):
            yield replace(Finding.of(error), where=where, text=f"not looked at: {error.what}")
        elif group not in seen:
            yield Finding(
                Kind.NOT_VERIFIED,
                where,
                Severity.ERROR,
                "not looked at: the source shows no position of it any more",
                f"see by hand how it goes on at the destination, and leave it out with"
                f" --without-group {group}",
            )


def _compared(compared: Sequence[Outcome]) -> Iterator[Finding]:
    """Yield what differs around the positions, and what could not be compared."""
    for each in compared:
        position = each.answer.position
        where = f"group {position.group}: {position.topic_partition}"
        if each.state is State.DIFFERS:
            yield Finding(
                Kind.OTHER_RECORDS, where, Severity.DIFFERENCE, f"the records differ: {each.why}"
            )
        elif each.state is State.NOT_COMPARED:
            yield warning(Kind.NOT_VERIFIED, where, f"not compared: {each.why}")


def _gone_back(group: str, answers: Sequence[Answer], there: Commits) -> Iterator[Finding]:
    """Yield where a group is before its position, or has none: it reads again, or misses."""
    for answer in answers:
        if answer.to is None or answer.offset is None:
            continue
        at = there.get(answer.to)
        where = f"group {group}: {answer.to}"
        if at is None:
            yield Finding(
                Kind.NOT_READY,
                where,
                Severity.ERROR,
                "it has no position at the destination",
                f"relay offsets apply --group {group} --execute commits it",
            )
        elif at.offset < answer.offset:
            yield warning(
                Kind.NOT_READY,
                where,
                f"it is at {count(at.offset)}, before {count(answer.offset)}: it reads some again",
            )


def _has_gone_on(answers: Sequence[Answer], there: Commits) -> bool:
    return any(
        answer.to in there and answer.offset is not None and there[answer.to].offset > answer.offset
        for answer in answers
        if answer.to is not None
    )
