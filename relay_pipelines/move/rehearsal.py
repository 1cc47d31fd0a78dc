"""Every gate of a move, on live data, and what the cut would do now. Changes nothing."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial

from relay_pipelines.errors import ConfigError
from relay_pipelines.finding import Finding, Kind, Severity, of_errors, warning
from relay_pipelines.model import TopicPartition
from relay_pipelines.move.fence import denials
from relay_pipelines.move.gates import Gate, fails, looked
from relay_pipelines.move.inventory import (
    GroupPosition,
    Groups,
    UpstreamLook,
    Writers,
    look_at_upstream,
    open_upstreams,
    read_groups,
)
from relay_pipelines.move.record import MoveRecord, acl_count
from relay_pipelines.move.request import MoveRequest
from relay_pipelines.move.states import FenceBy
from relay_pipelines.offsets.positions import Answer, Exactness
from relay_pipelines.output.formatting import count, format_time, plural, seconds
from relay_pipelines.prepare import permissions, topics
from relay_pipelines.schemas.request import SchemasRequest
from relay_pipelines.schemas.verdict import State as SchemaState
from relay_pipelines.schemas.verdict import total
from relay_pipelines.schemas.verify import verify as verify_schemas
from relay_pipelines.sides import Sides
from relay_pipelines.snapshot.cluster_snapshot import ClusterSnapshot
from relay_pipelines.snapshot.read_clusters import not_mirrored, take_snapshot

_SHOWN = 5
_LEAST_SECONDS = 1.0
"""Between two looks at the ends of the source."""


@dataclass(frozen=True, slots=True)
class Rehearsal:
    """What a look at both sides has found.

    Args:
        waiting: offsets that are not copied yet.
        writers: by upstream.
    """

    record: MoveRecord
    topics: Sequence[str]
    partitions: Sequence[TopicPartition]
    waiting: int
    gates: Sequence[Gate]
    writers: Mapping[str, Writers]
    groups: Groups

    @property
    def summary(self) -> str:
        """What would happen now, in a line."""
        if self.record.is_cut:
            return f"now: {self.gates[-1].saw or self.gates[-1].state}"
        answers = [answer for position in self.groups.positions for answer in position.answers]
        exact = sum(
            all(a.exactness is Exactness.EXACT for a in position.answers)
            for position in self.groups.positions
        )
        rereads = [
            position
            for position in self.groups.positions
            if any(a.rereads for a in position.answers)
        ]
        most = max((a.rereads for a in answers), default=0)
        parts = [f"{plural(exact, 'group')} exact"]
        parts += [f"{len(rereads)} re-read at most {plural(most, 'record')}"] if rereads else []
        without = len(self.groups.positions) - exact - len(rereads)
        parts += [f"{without} without an answer"] if without > 0 else []
        parts.append(f"{plural(self.waiting, 'offset')} to copy")
        return f"now: {', '.join(parts)}"


def rehearse(sides: Sides, request: MoveRequest, record: MoveRecord) -> Rehearsal:
    """Look at everything that a cut depends on.

    Raises:
        RelayError: a cluster does not answer, so that there is nothing to say.
    """
    clock = sides.clock
    began = clock.monotonic()
    snapshot = snapshot_of(sides, request, record, patient=False)
    partitions = [position.topic_partition for position in snapshot.positions]
    groups = Groups()

    def look_at_groups() -> Gate:
        nonlocal groups
        groups = read_groups(request, snapshot)
        return group_gate(groups)

    with open_upstreams(sides) as upstreams:
        looks = {
            upstream: look_at_upstream(source, partitions) for upstream, source in upstreams.items()
        }
        of_groups = looked("groups", look_at_groups)
        gates = [
            topic_gate(snapshot),
            of_groups,
            *(
                (source_group_gate(groups, record), destination_gate(groups))
                if of_groups.is_seen
                else (
                    Gate(gate, findings=of_groups.findings, is_seen=False)
                    for gate in ("source groups", "destination groups")
                )
            ),
            looked("schemas", partial(schema_gate, snapshot)),
            looked("fence", partial(_fence_gate, request, snapshot)),
            looked("acls", partial(_acl_gate, snapshot)),
        ]
        # the last look of all: what has moved meanwhile, a producer has written
        clock.sleep(max(0.0, _LEAST_SECONDS - (clock.monotonic() - began)))
        since_ms = clock.now_ms() - request.recent_ms
        looks = {
            upstream: look_at_upstream(source, partitions, since_ms, looks[upstream])
            for upstream, source in upstreams.items()
        }
    gates.insert(1, writer_gate(looks, request.recent_ms))
    return Rehearsal(
        record,
        sorted({tp.topic for tp in partitions}),
        partitions,
        sum(position.lag for position in snapshot.positions),
        gates,
        {upstream: look.writers for upstream, look in looks.items()},
        groups,
    )


def snapshot_of(
    sides: Sides, request: MoveRequest, record: MoveRecord, *, patient: bool = True
) -> ClusterSnapshot:
    """Look at the topics that move.

    Raises:
        ConfigError: the mirror does not copy one that was asked for.
        RelayError: a cluster does not answer.
    """
    chosen = frozenset(request.topics)
    if record.is_under_way:
        chosen = frozenset(() if record.is_whole else record.topics)
    snapshot = take_snapshot(
        sides,
        belongs=(lambda topic: topic in chosen) if chosen else (lambda _: True),
        patient=patient,
    )
    if missing := chosen - {position.topic_partition.topic for position in snapshot.positions}:
        raise not_mirrored(min(missing), snapshot.selected.decisions)
    if not snapshot.positions:
        raise ConfigError(
            f"{sides.name} copies no topic",
            remedy="`relay plan --why` says which topics it copies",
        )
    return snapshot


def topic_gate(snapshot: ClusterSnapshot) -> Gate:
    """Nothing of the topics is held back, and a key keeps its partition."""
    held = list(dict.fromkeys(snapshot.held.values()))
    deleted = [
        fails(
            "",
            f"{topic} is no longer at the source",
            "leave it out, with topics.deny, or restore it",
        )
        for topic in snapshot.selected.deleted
    ]
    saw = (
        f"{plural(len(snapshot.positions), 'topic-partition')} of"
        f" {plural(len(snapshot.targets), 'topic')}"
    )
    more = [
        fails(more_partition.where, more_partition.text, more_partition.remedy)
        for more_partition in topics.more_partitions(snapshot)
    ]
    return Gate("topics", saw, [*of_errors(held), *deleted, *more])


def writer_gate(looks: Mapping[str, UpstreamLook], recent_ms: int) -> Gate:
    """No transaction is open. It says who has written, as far as brokers can tell.

    Args:
        looks: by upstream, the later of two.
        recent_ms: the milliseconds within which timestamps are recent.
    """
    findings = [
        fails(
            f"{tp} at upstream {upstream}",
            f"a transaction is open: {look.writers.holder(tp) or 'by an unknown producer'}",
            "end that producer",
        )
        for upstream, look in looks.items()
        for tp in look.ends.open[:_SHOWN]
    ]
    errors = {
        upstream: look.writers.error for upstream, look in looks.items() if look.writers.error
    }
    findings += [
        Finding.of(error, Severity.WARNING).inside(f"upstream {upstream}")
        for upstream, error in errors.items()
    ]
    opened = max((len(look.ends.open) for look in looks.values()), default=0)
    parts = [plural(opened, "open transaction"), _known_producers(looks, recent_ms)]
    if len(errors) == len(looks):
        parts[1] = "it is unknown which producers write"
    return Gate("writers", "; ".join([*parts, _moved_ends(looks)]), findings)


def _known_producers(looks: Mapping[str, UpstreamLook], recent_ms: int) -> str:
    """Say who has written of those that brokers know, by the timestamps that they have chosen."""
    active = [some for look in looks.values() for some in look.writers.producers.values()]
    last_ms = max((each.last_ms for some in active for each in some), default=-1)
    last = f", the last at {format_time(last_ms)}" if last_ms >= 0 else ""
    number, recent = plural(len(active), "idempotent producer"), seconds(recent_ms / 1000)
    return f"{number} wrote with timestamps of the last {recent}{last}"


def _moved_ends(looks: Mapping[str, UpstreamLook]) -> str:
    """Say what has moved between both looks: also producers without an id move ends."""
    moved = {tp for look in looks.values() for tp in look.moved}
    within = seconds(max((look.seconds for look in looks.values()), default=0.0))
    if not moved:
        return f"no end moved within {within}, which alone shows other producers"
    more = "" if len(moved) == 1 else f" and {plural(len(moved) - 1, 'more topic-partition')}"
    return f"the end of {min(moved)}{more} moved within {within}: a producer writes"


def group_gate(groups: Groups) -> Gate:
    """Each position has an answer."""
    findings = [Finding.of(error).inside(f"group {name}") for name, error in groups.errors.items()]
    for position in groups.positions:
        findings += _group_findings(position)
    saw = f"{plural(len(groups.positions), 'group')} with commits in these topics"
    return Gate("groups", saw, findings)


def _group_findings(each: GroupPosition) -> Iterator[Finding]:
    name = each.group.name
    without = [answer for answer in each.answers if answer.offset is None]
    if without:
        yield fails(
            f"group {name}",
            f"{_first(without)}: {without[0].why}",
            f"leave it out with --without-group {name}, and move it by hand",
        )
    rereads = [answer for answer in each.answers if answer.rereads]
    if rereads:
        most = max(answer.rereads for answer in rereads)
        yield warning(
            Kind.NOT_READY,
            f"group {name}",
            f"re-reads at most {plural(most, 'record')} of {_first(rereads)}: {rereads[0].why}",
        )


def _first(answers: Sequence[Answer]) -> str:
    more = f" and {plural(len(answers) - 1, 'more topic-partition')}" if len(answers) > 1 else ""
    return f"{answers[0].position.topic_partition}{more}"


def source_group_gate(groups: Groups, record: MoveRecord) -> Gate:
    """Nobody commits at the source any more what the destination would not know.

    Before producers are stopped, it is only said. A group that has read everything may stay.
    """
    findings = [
        Finding(
            Kind.NOT_READY,
            f"group {each.group.name}",
            Severity.ERROR if record.ends and each.group.state else Severity.WARNING,
            ("has members at the source" if each.group.state else "may have members at the source")
            + f", and at most {plural(each.unread, 'offset')} to read",
            "let it read to the end once producers are stopped, or stop it",
        )
        for each in groups.positions
        if each.may_commit
    ]
    members = sum(position.group.has_members for position in groups.positions)
    saw = f"{plural(len(groups.positions), 'group')}, {count(members)} with members at the source"
    return Gate("source groups", saw, findings)


def destination_gate(groups: Groups) -> Gate:
    """No group has been started at the destination."""
    findings = []
    for each in groups.positions:
        further = [
            answer
            for answer in each.answers
            if answer.to in each.there
            and answer.offset is not None
            and each.there[answer.to].offset > answer.offset
        ]
        stop = f"stop it there, or leave it out with --without-group {each.group.name}"
        if each.members_there:
            findings.append(
                fails(f"group {each.group.name}", "has members at the destination", stop)
            )
        elif further:
            where = further[0].to
            assert where is not None, "it has a commit there"
            text = (
                f"is at {count(each.there[where].offset)} in {where} of the destination, which is"
                " further"
            )
            findings.append(fails(f"group {each.group.name}", text, stop))
    return Gate("destination groups", plural(len(groups.positions), "group"), findings)


def schema_gate(snapshot: ClusterSnapshot) -> Gate:
    """All ids in the copies mean the same at both registries.

    Raises:
        RelayError: the destination does not answer.
    """
    sides = snapshot.sides
    mirror = sides.mirror
    registries = mirror.source.schema_registry, mirror.destination.schema_registry
    if None in registries:
        declared = "one registry alone is" if any(registries) else "no registry is"
        return Gate("schemas", f"{declared} declared: nothing to compare")
    copied = {tp.topic for tp, known in snapshot.checkpoints.items() if known.copies}
    topics = sorted(copied & snapshot.targets.keys())
    if not topics:
        return Gate("schemas", "no record was copied")
    verdict = total(sides.name, list(verify_schemas(sides, SchemasRequest(tuple(topics)))))
    remedy = "register them at the destination's registry under the same ids; then repeat"
    if verdict.state is SchemaState.DIFFERS:
        return Gate("schemas", str(verdict), [fails("", str(verdict), remedy)])
    if verdict.state is SchemaState.NOT_VERIFIED:
        finding = fails("", str(verdict), "see that both registries answer, and repeat it")
        return Gate("schemas", str(verdict), [finding], is_seen=False)
    return Gate("schemas", str(verdict))


def _fence_gate(request: MoveRequest, snapshot: ClusterSnapshot) -> Gate:
    if request.by is not FenceBy.ACL:
        return Gate("fence", f"by {request.by}: it is verified when it stands")
    with open_upstreams(snapshot.sides) as upstreams:
        acls = denials(upstreams, sorted(snapshot.targets))
    return Gate("fence", f"{plural(acl_count(acls), 'ACL')} would be created")


def _acl_gate(snapshot: ClusterSnapshot) -> Gate:
    report = permissions.report(snapshot.sides)
    if report.unsecured:
        return Gate("acls", f"{', '.join(report.unsecured)} has no authorizer")
    missing = [
        acl for acl in report.missing if any(map(acl.covers, snapshot.destinations.values()))
    ]
    text = f"{plural(len(missing), 'ACL')} of readers missing at the destination"
    remedy = "relay acls --execute creates them"
    return Gate("acls", text, [warning(Kind.NOT_READY, "", text, remedy)] if missing else [])


def not_ready(gates: Iterable[Gate]) -> list[Finding]:
    """Return why gates do not hold, with their names."""
    return [finding.inside(f"gate {gate.name}") for gate in gates for finding in gate.reasons]
