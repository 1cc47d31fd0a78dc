"""Plans a replay: a range of a mirror's topic that is copied again, to an end that is frozen.

A replay is a mirror of its own, with its own checkpoints and ledger entries; docs/transactions.md
argues why it duplicates no record.

What can be wrong with a replay although its range is there. Writes nothing.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from relay_pipelines.copy import user_class
from relay_pipelines.errors import (
    CheckpointLostError,
    ConfigError,
    DataLossError,
    DestinationTopicLostError,
    FencedError,
    StalePlanError,
    TopicRecreatedError,
)
from relay_pipelines.finding import Finding, Kind, warning
from relay_pipelines.ledger import checkpoint
from relay_pipelines.ledger.checkpoint import ReplayRecord, StartRecord, replay_name
from relay_pipelines.ledger.reader import read_checkpoints
from relay_pipelines.ledger.state_table import read_any_state
from relay_pipelines.model import Checkpoint, OffsetRange, Side, TopicPartition
from relay_pipelines.output.formatting import count, format_time, plural
from relay_pipelines.plan.frozen_window import FrozenWindow
from relay_pipelines.plan.owners import moved_topics, topic_scope
from relay_pipelines.plan.positions import Position, copy_again
from relay_pipelines.plan.topic_selection import renamed_target, target
from relay_pipelines.prepare import permissions, topics
from relay_pipelines.prepare.prepared_snapshot import record_starts
from relay_pipelines.protocol.admin import CLEANUP_POLICY, topic_configs
from relay_pipelines.protocol.client import destination_client
from relay_pipelines.protocol.clock import Clock
from relay_pipelines.replay import replay_ranges
from relay_pipelines.replay.own_mirror import (
    as_mirror,
    at_node,
    copied_again,
    parameters,
    refuse_loops,
    request_of,
    require_same,
    selects,
    without_quarantined,
)
from relay_pipelines.replay.replay_ranges import ReplayedRanges
from relay_pipelines.replay.request import ReplayRequest
from relay_pipelines.run import run_plan
from relay_pipelines.run.result import RunResult
from relay_pipelines.run.run import Observer, run
from relay_pipelines.run.run_plan import RunPlan
from relay_pipelines.run.session import Session
from relay_pipelines.settings import Mirror
from relay_pipelines.settings.validation_errors import nearest
from relay_pipelines.sides import Sides
from relay_pipelines.snapshot import cluster_snapshot, shared_destinations, state_topics
from relay_pipelines.snapshot.cluster_snapshot import ClusterSnapshot
from relay_pipelines.user_sources import Sources

_RECORD_BYTES = 900_000  # brokers take a record of about 1 MB by default


@dataclass(frozen=True, slots=True)
class Replay:
    """A replay, and what it has left to copy.

    Args:
        id: as people name it.
        mirror: that it is.
        start: where it starts and ends.
        is_started: whether its start record is committed.
        plan: what is left.
        findings: what a person may not expect.
    """

    id: str
    mirror: Mirror
    start: StartRecord
    is_started: bool
    plan: RunPlan
    findings: Sequence[Finding] = ()

    @property
    def name(self) -> str:
        """The name of its checkpoints and ledger entries."""
        return self.start.mirror

    @property
    def is_complete(self) -> bool:
        """Whether nothing is left, and nothing is held back."""
        return self.is_started and not self.plan.windows and not self.plan.data_losses


@dataclass(frozen=True, slots=True)
class ReplayState:
    """How far a replay is.

    Args:
        offsets: how many it copies in all, records or not.
        left: how many of them it has left.
    """

    id: str
    topic: str
    to: str
    side: Side
    started_at_ms: int
    offsets: int
    left: int

    def __str__(self) -> str:
        done = self.offsets - self.left
        progress = f"{count(done)} of {plural(self.offsets, 'offset')}" if self.left else "complete"
        what = f"{self.topic} from the {self.side} to {self.to}"
        return f"replay {self.id} of {format_time(self.started_at_ms)}: {what}: {progress}"


def document(state: ReplayState) -> dict[str, Any]:
    """Return how far a replay is, for `relay status --json`."""
    return dataclasses.asdict(state) | {
        "side": str(state.side),
        "started_at": format_time(state.started_at_ms),
    }


def plan_replay(
    mirrors: Mapping[str, Mirror],
    name: str,
    request: ReplayRequest,
    session: Callable[[], Any],
    clock: Clock,
) -> Replay:
    """Find out what a replay copies, and whether it can. Writes nothing.

    An id belongs to its first start record for ever. So whatever can be known to be wrong is
    refused here, before there is one.

    Args:
        mirrors: those of relay.yaml by name.
        name: of the mirror to replay.
        session: returns the Spark session; called only if there is SQL to check.

    Raises:
        ConfigError: the replay cannot be done as it is asked for, or was started with other
            parameters.
        DataLossError: the range is not there any more.
        RelayError: a cluster does not answer, or refuses.
    """
    replay = _planned(mirrors, name, request, clock)
    if replay.plan.windows:
        require_copyable(replay.plan.snapshot, session)
    return replay


def _planned(
    mirrors: Mapping[str, Mirror], name: str, request: ReplayRequest, clock: Clock
) -> Replay:
    mirror = mirrors[name]
    refuse_loops(mirror, request, mirrors)
    _refuse_target(name, mirror, request, clock)
    start = _started(name, mirror, request, clock)
    if start is not None:
        own = as_mirror(mirror, request, start.topic)
        if request.side is Side.SOURCE:
            own = without_quarantined(own, _quarantined(name, mirror, clock), start.node)
        own = at_node(own, start.node)
        _require_same(start, own, request)
        left = _left(_snapshot(start.mirror, own, start.topic, clock), start)
        return Replay(request.id, own, start, is_started=True, plan=left)
    ranges, own, snapshot = _decide(name, mirror, request, clock)
    start = _start_record(name, request, own, ranges, snapshot, clock)
    left = _left(snapshot, start)
    return Replay(request.id, own, start, is_started=False, plan=left, findings=ranges.findings)


def start_replay(replay: Replay, clock: Clock) -> Replay:
    """Commit the start record, unless there is one, and plan what is left by it.

    Raises:
        ConfigError: another process has started the replay with other parameters.
        RelayError: a part of it cannot be copied, or a cluster does not answer, or refuses.
    """
    if replay.is_started:
        return replay
    state_topics.refuse(replay.plan.snapshot.state_topics)
    for error in replay.plan.data_losses:
        raise error
    start, snapshot = replay.start, replace(replay.plan.snapshot, new_starts=[replay.start])
    found: Mapping[str, StartRecord] = {}
    while not found:
        # fenced by another process that starts the same replay: its record is there the next time
        with suppress(FencedError):
            record_starts(snapshot)
        found = read_checkpoints(Sides(replay.name, replay.mirror, clock), settled=True).starts
    assert start.replay is not None
    for each in found.values():
        require_same(each, start.replay.parameters, replay.id)
    start = found[start.topic]
    if start.node != replay.start.node:
        raise StalePlanError(
            f"another process has started the replay {replay.id} with the offsets of node"
            f" {start.node}",
            remedy="run again to continue it",
        )
    left = _left(_snapshot(replay.name, replay.mirror, start.topic, clock), start)
    return replace(replay, start=start, is_started=True, plan=left)


def replays(name: str, mirror: Mirror, clock: Clock) -> list[ReplayState]:
    """Return the replays of a mirror, oldest first.

    Raises:
        RelayError: the destination does not answer, or refuses.
    """
    return [_state(name, start, found) for start, found in _read_replays(name, mirror, clock)]


def copy_replay(
    planned: Replay, session: Session, observers: Sequence[Observer], clock: Clock
) -> RunResult:
    """Copy what `plan_replay` has planned; failures while copying are in the result.

    Raises:
        RelayError: a cluster does not answer, or refuses.
    """
    if planned.plan.windows:
        planned = start_replay(planned, clock)
    with session.deferring():
        return run(
            planned.plan,
            session,
            observers,
            stop=session.stopped,
            scope=topic_scope(planned.start.topic),
        )


def mirror_of_replay(replay_id: str, sides: Sides) -> Sides:
    """Return the mirror that an earlier replay is, to audit it.

    Raises:
        ConfigError: there is no such replay.
        RelayError: the destination does not answer, or refuses.
    """
    name, mirror = sides.name, sides.mirror
    known = {start.mirror: start for start, _ in _read_replays(name, mirror, sides.clock)}
    start = known.get(replay_name(name, replay_id))
    if start is None:
        ids = [each.rpartition("@")[2] for each in known]
        raise ConfigError(
            f"the mirror {name!r} has no replay {replay_id!r}",
            remedy=nearest(replay_id, ids, "replays") if ids else "it has none",
        )
    return replace(
        sides, name=start.mirror, mirror=as_mirror(mirror, request_of(start), start.topic)
    )


def _read_replays(
    name: str, mirror: Mirror, clock: Clock
) -> list[tuple[StartRecord, Mapping[TopicPartition, Checkpoint]]]:
    options = mirror.copy_options
    with destination_client(name, mirror.destination_cluster, options, clock) as client:
        found = client.retry(partial(read_any_state, client)).replays(name)
    return [each for each in found if each[0].replay is not None]


def _state(
    name: str, start: StartRecord, checkpoints: Mapping[TopicPartition, Checkpoint]
) -> ReplayState:
    assert start.replay is not None
    asked, left = start.replay.parameters["asked"], 0
    for partition, end in start.replay.ends.items():
        checkpoint = checkpoints.get(TopicPartition(start.topic, partition))
        left += end - (start.starts[partition] if checkpoint is None else checkpoint.next_offset)
    return ReplayState(
        start.mirror.removeprefix(replay_name(name, "")),
        asked["topic"],
        asked["to"],
        Side(asked["side"]),
        start.decided_at_ms,
        sum(end - start.starts[partition] for partition, end in start.replay.ends.items()),
        left,
    )


def _started(name: str, mirror: Mirror, request: ReplayRequest, clock: Clock) -> StartRecord | None:
    """Return the start record of a replay; None if it was never started."""
    snapshot = read_checkpoints(Sides(replay_name(name, request.id), mirror, clock))
    if snapshot.checkpoints and not snapshot.starts:
        raise CheckpointLostError(
            f"the start record of the replay {request.id} is gone, and some of it was copied",
            remedy=f"restore the topic {checkpoint.TOPIC}, or give another --id to replay again",
        )
    return next(iter(snapshot.starts.values()), None)


def _require_same(start: StartRecord, own: Mirror, request: ReplayRequest) -> None:
    require_same(start, parameters(request, own.record_policy(start.topic)), request.id)


def _decide(
    name: str, mirror: Mirror, request: ReplayRequest, clock: Clock
) -> tuple[ReplayedRanges, Mirror, ClusterSnapshot]:
    """Turn what is asked for into offsets of the side that is read."""
    take = partial(_snapshot, replay_name(name, request.id), clock=clock)
    if request.side is Side.DESTINATION:
        ranges = replay_ranges.at_destination(name, mirror, request, clock)
        own = as_mirror(mirror, request, ranges.topic)
        return ranges, own, take(own, ranges.topic)
    if not selects(mirror, request.topic):
        raise ConfigError(
            f"the mirror {name!r} does not copy a topic {request.topic!r}",
            remedy="see `relay plan --why` for every topic and why",
        )
    own, quarantined = as_mirror(mirror, request, request.topic), _quarantined(name, mirror, clock)
    of_mirror = None
    if request.window and len(own.nodes) > 1:
        node = replay_ranges.node_of_window(name, mirror, request, clock)
        own = at_node(without_quarantined(own, quarantined, node), node)
    own = without_quarantined(own, quarantined)
    if not request.window:
        # the node that a run of the mirror would read: it holds what the mirror has copied
        of_mirror = _snapshot(name, mirror, request.topic, clock, configs=False)
        own = at_node(own, of_mirror.node.name)
    snapshot = replace(take(own, request.topic), other_nodes=())
    own = at_node(own, snapshot.node.name)
    ranges = replay_ranges.at_source(name, mirror, request, snapshot, clock)
    return _with_warning(ranges, of_mirror), own, snapshot


def _quarantined(name: str, mirror: Mirror, clock: Clock) -> Mapping[str, str]:
    """Return which nodes the mirror, and so its replays, must not read, and why."""
    return read_checkpoints(Sides(name, mirror, clock)).quarantined


def _with_warning(ranges: ReplayedRanges, of_mirror: ClusterSnapshot | None) -> ReplayedRanges:
    """Warn if a person names offsets or dates of a topic that was created again."""
    if of_mirror is None or not any(position.recreated for position in of_mirror.positions):
        return ranges
    recreated = warning(
        Kind.REPLAYED_RANGE,
        "",
        f"the topic {ranges.topic!r} was deleted and created again since it was copied",
        "these are offsets of the new one (the copies: --side destination)",
    )
    return replace(ranges, findings=[recreated, *ranges.findings])


def _snapshot(
    name: str, mirror: Mirror, topic: str, clock: Clock, *, configs: bool = True
) -> ClusterSnapshot:
    return cluster_snapshot.take_snapshot(
        Sides(name, mirror, clock), only_topic=topic, configs=configs, refuse_loops=False
    )


def _start_record(
    name: str,
    request: ReplayRequest,
    own: Mirror,
    ranges: ReplayedRanges,
    snapshot: ClusterSnapshot,
    clock: Clock,
) -> StartRecord:
    by_partition = {
        offset_range.topic_partition.partition: offset_range for offset_range in ranges.ranges
    }
    start = StartRecord(
        mirror=replay_name(name, request.id),
        topic=ranges.topic,
        starts={partition: offset_range.start for partition, offset_range in by_partition.items()},
        node=snapshot.node.name,
        topic_ids={snapshot.node.name: snapshot.source_topics[ranges.topic].topic_id},
        decided_at_ms=clock.now_ms(),
        replay=ReplayRecord(
            {partition: offset_range.end for partition, offset_range in by_partition.items()},
            {tp.partition: intervals for tp, intervals in ranges.kept.items()},
            parameters(request, own.record_policy(ranges.topic)),
        ),
    )
    if len(checkpoint.start_record(start).record[1]) > _RECORD_BYTES:
        raise ConfigError(
            "records of others lie between the copies in too many places for one replay",
            remedy="replay a part of the offsets, or read the source: --side source",
        )
    return start


def _left(snapshot: ClusterSnapshot, start: StartRecord) -> RunPlan:
    """Plan what is left of a replay; ranges that have ended no longer count."""
    assert start.replay is not None
    if gone := [_copies_gone(each) for each in snapshot.positions if each.destination_lost]:
        return RunPlan(replace(snapshot, positions=[]), (), gone[:1], {})
    _refuse_recreated(snapshot, start)
    positions, ranges = [], []
    for position in snapshot.positions:
        tp = position.topic_partition
        end = start.replay.ends.get(tp.partition, -1)
        next_offset = _next_offset(snapshot, start, tp)
        if tp not in snapshot.checkpoints and position.ledger_end is None:
            # it does not begin where the log does, so older records of other nodes do not matter
            position = replace(position, next_offset=next_offset, elsewhere=None)  # noqa: PLW2901 - the same one
        if next_offset < end:
            positions.append(position)
            ranges.append(OffsetRange(tp, next_offset, end))
    unreadable = {
        tp: error
        for tp, error in snapshot.unreadable.items()
        if start.replay.ends.get(tp.partition, -1) > _next_offset(snapshot, start, tp)
    }
    own = replace(snapshot, positions=positions, unreadable=unreadable)
    frozen = FrozenWindow("", tuple(ranges), start.node, start.decided_at_ms)
    planned = run_plan.plan_frozen(own, frozen)
    kept = {
        TopicPartition(start.topic, partition): intervals
        for partition, intervals in start.replay.kept.items()
    }
    losses = [
        type(lost)(
            lost.what,
            remedy="replay what is there under another --id, perhaps from the other --side",
            topic_partition=lost.topic_partition,
            offset=lost.offset,
        )
        if isinstance(lost, DataLossError)
        else lost
        for lost in planned.data_losses
    ]
    return replace(planned, data_losses=losses, kept=kept)


def _next_offset(snapshot: ClusterSnapshot, start: StartRecord, tp: TopicPartition) -> int:
    """Return up to where a replay is; -1 for a partition that it does not copy."""
    committed = snapshot.checkpoints.get(tp)
    return start.starts.get(tp.partition, -1) if committed is None else committed.next_offset


def _copies_gone(position: Position) -> DestinationTopicLostError:
    """Return the error for a replay whose target is gone, complete or not."""
    tp = position.topic_partition
    return DestinationTopicLostError(
        position.destination_lost, remedy=copy_again(position.mirror, tp.topic), topic_partition=tp
    )


def _refuse_recreated(snapshot: ClusterSnapshot, start: StartRecord) -> None:
    topic_id, known = snapshot.source_topics[start.topic].topic_id, start.topic_ids[start.node]
    if topic_id and known and topic_id != known:
        raise TopicRecreatedError(
            f"the topic {start.topic!r} was deleted and created again since the replay began",
            remedy="give another --id to replay its new records",
        )


def _refuse_target(name: str, mirror: Mirror, request: ReplayRequest, clock: Clock) -> None:
    """Refuse a target that the mirror reads, and one that it writes, unless that is asked for."""
    to = target(request.to).topic
    known = read_checkpoints(Sides(name, mirror, clock))
    copies = known.checkpoints.values()
    written = {copied.destination.topic for copied in copies}
    written.add(renamed_target(request.topic, mirror.topics.rename).topic)
    if to in written and not request.into_itself:
        raise ConfigError(
            f"the mirror {name!r} writes to the topic {to!r}, whose readers would get the replayed"
            " records a second time",
            remedy="replay into another topic, or add --into-itself if they should",
        )
    moved = moved_topics(name, known.owners)
    if to in {copied.destination.topic for copied in copies if copied.source.topic in moved}:
        raise ConfigError(
            f"the topic {to!r} has moved to the destination, and `relay move back` would bring the"
            " replayed records to the source again",
            remedy="replay into another topic",
        )
    options = mirror.copy_options
    sources = {cluster_id for copied in copies for cluster_id in copied.cluster_ids.values()}
    with destination_client(name, mirror.destination_cluster, options, clock) as client:

        def ask() -> str:
            exists = client.has_topic(to)  # asks for the id of the cluster, too
            if client.cluster_id in sources and selects(mirror, to):
                raise copied_again(name, to)
            if not exists or to not in written:
                return ""
            return topic_configs(client, [to], [CLEANUP_POLICY])[to][CLEANUP_POLICY].value

        policy = client.retry(ask)

        def read() -> dict[str, shared_destinations.Other]:
            there = client.topic(to).topic_partitions if client.has_topic(to) else ()
            others = shared_destinations.other_mirrors(client, name, there)
            return {tp.topic: other for tp, other in others.items()}

        others = client.retry(read)
    if to in others:
        raise ConfigError(
            f"the topic {to!r} {others[to].holds}: replayed records would be foreign to it",
            remedy="replay into another topic",
        )
    if "compact" in policy:
        raise ConfigError(
            f"the topic {to!r}, to which the mirror {name!r} writes, is compacted: replayed records"
            " would replace newer ones",
            remedy="replay into another topic",
        )


def require_copyable(snapshot: ClusterSnapshot, session: Callable[[], Any]) -> None:
    """Refuse a replay whose target, permissions, classes or SQL would fail it.

    Args:
        session: as of `plan_replay`.

    Raises:
        ConfigError: a class or the SQL is wrong.
        RelayError: the target has too few partitions, or a cluster refuses or does not answer.
    """
    policies, sources = set(snapshot.record_policy.values()), Sources()
    for policy in policies:
        user_class.construct_all(sources.fix(policy))
    problems = [
        *topics.too_small(snapshot).values(),
        *permissions.missing_permissions(snapshot),
    ]
    for error in problems:
        raise error
    for policy in policies:
        if policy.where or policy.select:
            from relay_pipelines.spark import sql_rows  # Arrow and Spark are slow to import

            sql_rows.check(session(), policy.sql)
