"""Plans a replay: a range of a mirror's topic that is copied again, to an end that is frozen.

A replay is a mirror of its own, with its own checkpoints and ledger entries; docs/transactions.md
argues why it duplicates no record.
"""

from __future__ import annotations

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
from relay_pipelines.ledger.state_table import CheckpointSnapshot, read_any_state
from relay_pipelines.model import (
    Checkpoint,
    OffsetRange,
    Side,
    TopicPartition,
    UpstreamIdentity,
)
from relay_pipelines.output.formatting import count, format_time, plural
from relay_pipelines.plan.blockers import copy_again
from relay_pipelines.plan.frozen_window import FrozenWindow
from relay_pipelines.plan.owners import moved_topics, topic_scope
from relay_pipelines.plan.topic_selection import renamed_target, target
from relay_pipelines.prepare import permissions, topics
from relay_pipelines.prepare.prepared_snapshot import record_starts
from relay_pipelines.protocol.admin import is_compacted
from relay_pipelines.replay import replay_ranges
from relay_pipelines.replay.own_mirror import (
    as_mirror,
    copied_again,
    parameters,
    reading,
    refuse_loops,
    request_of,
    require_same,
    selects,
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
from relay_pipelines.snapshot import read_clusters, shared_destinations, state_topics
from relay_pipelines.snapshot.cluster_snapshot import ClusterSnapshot
from relay_pipelines.user_sources import Sources

_RECORD_BYTES = 900_000  # brokers take a record of about 1 MB by default


@dataclass(frozen=True, slots=True)
class Replay:
    """A replay, and what it has left to copy.

    Args:
        start: where it starts and ends.
        is_started: whether its start record is committed.
        plan: what is left, of the mirror that it is.
        findings: what the operator may not expect.
    """

    start: StartRecord
    is_started: bool
    plan: RunPlan
    findings: Sequence[Finding] = ()

    @property
    def id(self) -> str:
        """As people name it."""
        return self.start.replay_id

    @property
    def name(self) -> str:
        """The name of its checkpoints and ledger entries."""
        return self.start.mirror

    @property
    def is_complete(self) -> bool:
        """Whether nothing is left, and nothing is held back."""
        return self.is_started and not self.plan.planned and not self.plan.held


def line(state: Mapping[str, Any]) -> str:
    """Return how far a replay is, in words, from its document."""
    done, offsets = state["offsets"] - state["left"], plural(state["offsets"], "offset")
    progress = f"{count(done)} of {offsets}" if state["left"] else "complete"
    what = f"{state['topic']} from the {state['side']} to {state['to']}"
    return f"replay {state['id']} of {state['started_at']}: {what}: {progress}"


def plan_replay(
    sides: Sides, request: ReplayRequest, session: Callable[[], Any], mirrors: Mapping[str, Mirror]
) -> Replay:
    """Find out what a replay copies, and whether it can. Writes nothing.

    An id belongs to its first start record for ever. So whatever can be known to be wrong is
    refused here, before there is one.

    Args:
        sides: of the mirror to replay.
        session: returns the Spark session; called only if there is SQL to check.
        mirrors: those of relay.yaml by name.

    Raises:
        ConfigError: the replay cannot be done as it is asked for, or was started with other
            parameters.
        DataLossError: the range is not there any more.
    """
    refuse_loops(sides.mirror, request, mirrors)
    with sides.destination() as client:
        state = client.retry(partial(read_any_state, client))
    sides = sides.at(client.cluster_id)
    known, of_replay = state.of(sides.name), state.of(replay_name(sides.name, request.id))
    _refuse_target(sides, request, known)
    # upstreams that the mirror, and so its replays, must not read
    quarantined = known.quarantined if request.side is Side.SOURCE else {}
    start = _started(request, of_replay)
    if start is None:
        replay = _decided(sides, request, known, quarantined)
    else:
        own = reading(as_mirror(sides.mirror, request, start.topic), quarantined, start.upstream)
        require_same(start, parameters(request, own.record_policy(start.topic)), request.id)
        left = _left(_snapshot(replace(sides, name=start.mirror, mirror=own), start.topic), start)
        replay = Replay(start, is_started=True, plan=left)
    if replay.plan.planned:
        require_copyable(replay.plan.snapshot, session)
    return replay


def start_replay(replay: Replay) -> Replay:
    """Commit the start record, unless there is one, and plan what is left by it.

    Raises:
        ConfigError: another process has started the replay with other parameters.
        RelayError: a part of it cannot be copied, or a cluster does not answer, or refuses.
    """
    if replay.is_started:
        return replay
    start, snapshot = replay.start, replace(replay.plan.snapshot, new_starts=[replay.start])
    starts: Mapping[str, StartRecord] = {}
    with snapshot.destination_client() as client:
        state_topics.refuse(client, snapshot)
        for error in replay.plan.held:
            raise error
        while not starts:
            # fenced by another process that starts the same replay: its record is there by then
            with suppress(FencedError):
                record_starts(client, snapshot)
            state = client.retry(partial(read_any_state, client, settled=True))
            starts = state.of(snapshot.name).starts
    assert start.replay is not None
    for each in starts.values():
        require_same(each, start.replay.parameters, replay.id)
    start = starts[start.topic]
    if start.upstream != replay.start.upstream:
        raise StalePlanError(
            f"another process has started the replay {replay.id} with the offsets of upstream"
            f" {start.upstream}",
            remedy="run again to continue it",
        )
    left = _left(_snapshot(snapshot.sides, start.topic), start)
    return replace(replay, start=start, is_started=True, plan=left)


def replays(sides: Sides) -> list[dict[str, Any]]:
    """Return how far the replays of a mirror are as JSON, oldest first."""
    return [_state(start, checkpoints) for start, checkpoints in _read_replays(sides)]


def copy_replay(planned: Replay, session: Session, observers: Sequence[Observer]) -> RunResult:
    """Copy what `plan_replay` has planned; failures while copying are in the result."""
    if planned.plan.planned:
        planned = start_replay(planned)
    scope = topic_scope(planned.start.topic)
    with session.deferring():
        return run(planned.plan, session, observers, stop=session.stopped, scope=scope)


def mirror_of_replay(replay_id: str, sides: Sides) -> Sides:
    """Return the mirror that an earlier replay is, to audit it.

    Raises:
        ConfigError: there is no such replay.
    """
    known = {start.mirror: start for start, _ in _read_replays(sides)}
    start = known.get(replay_name(sides.name, replay_id))
    if start is None:
        ids = [each.rpartition("@")[2] for each in known]
        raise ConfigError(
            f"the mirror {sides.name!r} has no replay {replay_id!r}",
            remedy=nearest(replay_id, ids, "replays") if ids else "it has none",
        )
    own = as_mirror(sides.mirror, request_of(start), start.topic)
    return replace(sides, name=start.mirror, mirror=own)


def _read_replays(sides: Sides) -> list[tuple[StartRecord, Mapping[TopicPartition, Checkpoint]]]:
    with sides.destination() as client:
        replays = client.retry(partial(read_any_state, client)).replays(sides.name)
    return [replay for replay in replays if replay[0].replay is not None]


def _state(start: StartRecord, checkpoints: Mapping[TopicPartition, Checkpoint]) -> dict[str, Any]:
    assert start.replay is not None
    asked = start.replay.parameters["asked"]
    return {
        "id": start.replay_id,
        **{key: asked[key] for key in ("topic", "to", "side")},
        "started_at_ms": start.decided_at_ms,
        # records or not
        "offsets": sum(map(len, start.ranges)),
        "left": sum(map(len, _rest(start, checkpoints))),
        "started_at": format_time(start.decided_at_ms),
    }


def _rest(
    start: StartRecord, checkpoints: Mapping[TopicPartition, Checkpoint]
) -> list[OffsetRange]:
    """Return what is not copied yet; no range is empty."""
    next_offsets = {tp: committed.next_offset for tp, committed in checkpoints.items()}
    rest = [
        replace(each, start=next_offsets.get(each.topic_partition, each.start))
        for each in start.ranges
    ]
    return [each for each in rest if len(each)]


def _started(request: ReplayRequest, state: CheckpointSnapshot) -> StartRecord | None:
    """Return the start record of a replay; None if it was never started."""
    if state.checkpoints and not state.starts:
        raise CheckpointLostError(
            f"the start record of the replay {request.id} is gone, and some of it was copied",
            remedy=f"restore the topic {checkpoint.TOPIC}, or give another --id to replay again",
        )
    return next(iter(state.starts.values()), None)


def _decided(
    sides: Sides, request: ReplayRequest, known: CheckpointSnapshot, quarantined: Mapping[str, str]
) -> Replay:
    """Turn what is asked for into offsets of the side that is read."""
    name = replay_name(sides.name, request.id)
    if request.side is Side.DESTINATION:
        ranges = replay_ranges.at_destination(sides, request)
        own = as_mirror(sides.mirror, request, ranges.topic)
        snapshot = _snapshot(replace(sides, name=name, mirror=own), ranges.topic)
    else:
        own, again = _at_one_upstream(sides, request, quarantined)
        snapshot = _snapshot(replace(sides, name=name, mirror=own), request.topic)
        ranges = replay_ranges.at_source(sides, request, snapshot, known)
        ranges = replace(ranges, findings=[*again, *ranges.findings])
    start = _start_record(request, ranges, snapshot)
    left = _left(snapshot, start)
    return Replay(start, is_started=False, plan=left, findings=ranges.findings)


def _at_one_upstream(
    sides: Sides, request: ReplayRequest, quarantined: Mapping[str, str]
) -> tuple[Mirror, list[Finding]]:
    """Return the mirror that a replay from the source is, and whether its topic is another one."""
    of_mirror = _snapshot(sides, request.topic)
    own = as_mirror(sides.mirror, request, request.topic)
    if request.window:
        upstream = (
            replay_ranges.upstream_of_window(sides, request) if len(own.upstreams) > 1 else ""
        )
        return reading(own, quarantined, upstream), []
    reading(own, quarantined)  # there is one
    # the upstream that a run of the mirror would read: it holds what the mirror has copied
    own = reading(own, quarantined, of_mirror.upstream.name)
    if not any(position.recreated for position in of_mirror.positions):
        return own, []
    recreated = warning(
        Kind.REPLAYED_RANGE,
        "",
        f"the topic {request.topic!r} was deleted and created again since it was copied",
        "these are offsets of the new one (the copies: --side destination)",
    )
    return own, [recreated]


def _snapshot(sides: Sides, topic: str) -> ClusterSnapshot:
    return read_clusters.take_snapshot(sides, topic, refuse_loops=False)


def _start_record(
    request: ReplayRequest, ranges: ReplayedRanges, snapshot: ClusterSnapshot
) -> StartRecord:
    log = _log(snapshot, ranges.topic)
    policy = snapshot.sides.mirror.record_policy(ranges.topic)
    start = StartRecord(
        mirror=snapshot.name,
        topic=ranges.topic,
        starts={each.topic_partition.partition: each.start for each in ranges.ranges},
        upstream=log.upstream,
        topic_ids={log.upstream: log.topic_id},
        cluster_ids={log.upstream: log.cluster_id},
        decided_at_ms=snapshot.sides.clock.now_ms(),
        replay=ReplayRecord(
            {each.topic_partition.partition: each.end for each in ranges.ranges},
            {tp.partition: intervals for tp, intervals in ranges.kept.items()},
            parameters(request, policy),
        ),
    )
    if len(checkpoint.start_record(start).record[1]) > _RECORD_BYTES:
        raise ConfigError(
            "records of others lie between the copies in too many places for one replay",
            remedy="replay a part of the offsets, or read the source: --side source",
        )
    return start


def _log(snapshot: ClusterSnapshot, topic: str) -> UpstreamIdentity:
    topic_id = snapshot.topics[topic].metadata.topic_id
    return UpstreamIdentity(snapshot.upstream.name, topic_id, snapshot.upstream.id)


def _left(snapshot: ClusterSnapshot, start: StartRecord) -> RunPlan:
    """Plan what is left of a replay; ranges that have ended no longer count."""
    assert start.replay is not None
    for position in snapshot.positions:
        if position.destination_lost:  # complete or not
            tp = position.topic_partition
            remedy = copy_again(snapshot.name, tp.topic)
            gone = DestinationTopicLostError(
                position.destination_lost, remedy=remedy, topic_partition=tp
            )
            return RunPlan(replace(snapshot, positions=[]), (), [gone], {})
    if start.is_of_another(_log(snapshot, start.topic)):
        raise TopicRecreatedError(
            f"the topic {start.topic!r} was deleted and created again since the replay began",
            remedy="give another --id to replay its new records",
        )
    rest = {each.topic_partition: each for each in _rest(start, snapshot.checkpoints)}
    positions = [
        position
        if tp in snapshot.checkpoints or position.ledger_end is not None
        # it does not begin where the log does, so older records of other upstreams do not matter
        else replace(position, next_offset=rest[tp].start, elsewhere=None)
        for position in snapshot.positions
        if (tp := position.topic_partition) in rest
    ]
    frozen = FrozenWindow("", tuple(sorted(rest.values())), start.upstream, start.decided_at_ms)
    planned = run_plan.plan_frozen(replace(snapshot, positions=positions), frozen)
    losses = [
        type(lost)(
            lost.what,
            remedy="replay what is there under another --id, perhaps from the other --side",
            topic_partition=lost.topic_partition,
            offset=lost.offset,
        )
        if isinstance(lost, DataLossError)
        else lost
        for lost in planned.held
    ]
    kept = {
        TopicPartition(start.topic, partition): intervals
        for partition, intervals in start.replay.kept.items()
    }
    return replace(planned, held=losses, kept=kept)


def _refuse_target(sides: Sides, request: ReplayRequest, known: CheckpointSnapshot) -> None:
    """Refuse a target that the mirror reads, and one that it writes, unless that is asked for."""
    name, to, elsewhere = sides.name, target(request.to).topic, "replay into another topic"
    copies = known.checkpoints.values()
    written = {copied.destination.topic for copied in copies}
    written.add(renamed_target(request.topic, sides.mirror.topics.rename).topic)
    if to in written and not request.into_itself:
        raise ConfigError(
            f"the mirror {name!r} writes to the topic {to!r}, whose readers would get the replayed"
            " records a second time",
            remedy=f"{elsewhere}, or add --into-itself if they should",
        )
    moved = moved_topics(name, known.owners)
    if to in {copied.destination.topic for copied in copies if copied.source.topic in moved}:
        raise ConfigError(
            f"the topic {to!r} has moved to the destination, and `relay move back` would bring the"
            " replayed records to the source again",
            remedy=elsewhere,
        )
    sources = {cluster_id for copied in copies for cluster_id in copied.cluster_ids.values()}
    with sides.destination() as client:

        def ask() -> None:
            exists = client.has_topic(to)  # asks for the id of the cluster, too
            if client.cluster_id in sources and selects(sides.mirror, to):
                raise copied_again(name, to)
            if not exists:
                return
            there = client.topic(to).topic_partitions
            for tp, other in shared_destinations.other_mirrors(client, name, there).items():
                if tp.topic == to:
                    raise ConfigError(
                        f"the topic {to!r} {other.holds}: replayed records would be foreign to it",
                        remedy=elsewhere,
                    )
            if to in written and is_compacted(client, to):
                raise ConfigError(
                    f"the topic {to!r}, to which the mirror {name!r} writes, is compacted: replayed"
                    " records would replace newer ones",
                    remedy=elsewhere,
                )

        client.retry(ask)


def require_copyable(snapshot: ClusterSnapshot, session: Callable[[], Any]) -> None:
    """Refuse a replay whose target, permissions, classes or SQL would fail it.

    Raises:
        ConfigError: a class or the SQL is wrong.
        RelayError: the target has too few partitions, or a cluster refuses or does not answer.
    """
    policies, sources = {topic.policy for topic in snapshot.topics.values()}, Sources()
    for policy in policies:
        user_class.construct_all(sources.fix(policy))
    problems = [*topics.too_small(snapshot).values(), *permissions.missing_permissions(snapshot)]
    for error in problems:
        raise error
    for policy in policies:
        if policy.where or policy.select:
            from relay_pipelines.spark import sql_rows  # Arrow and Spark are slow to import

            sql_rows.check(session(), policy.sql)
