"""`replay`: copies a range of a topic again, into another topic, exactly once.

A retry, or another run with the same configuration, continues where the last one stopped.
"""

from collections.abc import Iterator, Mapping
from typing import Any

import dagster as dg
from pydantic import Field

from relay_pipelines.audit.recount import Recount
from relay_pipelines.audit.window_recount import recount
from relay_pipelines.errors import RelayError
from relay_pipelines.model import TopicPartition
from relay_pipelines.orchestration import naming
from relay_pipelines.orchestration.job_builder import build_job, config_schema
from relay_pipelines.orchestration.run_log import RunLog
from relay_pipelines.orchestration.shortcuts import Batch
from relay_pipelines.orchestration.stopping import Session, Stop, final_failure, forbid_retries
from relay_pipelines.orchestration.topic_catalog import Catalog
from relay_pipelines.output.formatting import plural
from relay_pipelines.plan.owners import topic_scope
from relay_pipelines.plan.topic_selection import renamed_target, target
from relay_pipelines.replay.replay import Replay, plan_replay, start_replay
from relay_pipelines.replay.request import ReplayRequest
from relay_pipelines.request import filled
from relay_pipelines.resources import KafkaResource
from relay_pipelines.run.result import RunResult
from relay_pipelines.run.run import run
from relay_pipelines.settings import Settings


def _config(settings: Settings, catalog: Catalog) -> Any:
    """The schema; the launchpad opens with the first topic that is known, to be shown."""
    name, mirror = next(iter(settings.mirrors.items()))
    topic = next(iter(catalog.known(name, mirror)), "")
    return config_schema(
        ReplayRequest,
        {"topic": topic, "to": f"{topic}.replayed"},
        mirror=(str, Field(name, description="The mirror's name.")),
        execute=(bool, Field(default=False, description="Copy it, and not only log what.")),
    )


def build(settings: Settings, catalog: Catalog) -> dg.JobDefinition:
    """Build the job for all mirrors of these settings."""

    def copy(
        context: dg.OpExecutionContext, kafka: KafkaResource, stop: Stop, session: Session
    ) -> Iterator[Batch]:
        try:
            yield from _replay(context, kafka, stop, session, catalog.prefix)
        except RelayError as error:
            if error.needs_operator:
                raise final_failure(context, str(error)) from None
            raise dg.Failure(str(error)) from None

    return build_job(
        naming.job(catalog.prefix, "replay"),
        naming.job(catalog.prefix, "replay_range"),
        "Copies a range of a topic again, into another topic, exactly once; or only shows it.",
        copy,
        prefix=catalog.prefix,
        config=_config(settings, catalog),
    )


def _replay(
    context: dg.OpExecutionContext,
    kafka: KafkaResource,
    stop: Stop,
    session: Session,
    prefix: tuple[str, ...],
) -> Iterator[Batch]:
    config, clock, log = context.op_config, kafka.clock, context.log
    began = clock.monotonic()
    has_range = any(config.get(key) for key in ("offsets", "from", "until", "window"))
    given = config if has_range else {**config, "offsets": ":"}
    request = filled(ReplayRequest, given, folder=kafka.folder)
    sides = kafka.sides(config["mirror"])
    replay = plan_replay(sides, request, session, kafka.settings.mirrors)
    for finding in replay.findings:
        log.warning("%s", finding)
    for planned in replay.plan.ranges:
        log.info("%s: %s goes to %s", replay.name, planned.source, planned.destination)
    if not config["execute"]:
        left = plural(sum(len(planned.source) for planned in replay.plan.ranges), "offset")
        log.info("%s: nothing is copied; %s left to copy with execute: true", replay.name, left)
        _fail_for(context, [str(error) for error in replay.plan.held], needs_operator=True)
        return
    replay = start_replay(replay)
    result = run(
        replay.plan,
        session,
        [RunLog(log, clock.monotonic() - began)],
        stop=stop,
        run_id=context.run_id,
        scope=topic_scope(replay.start.topic),
    )
    if result.interrupted:
        raise dg.DagsterExecutionInterruptedError
    _fail_for(context, result.failures, needs_operator=result.needs_operator)
    with replay.plan.snapshot.destination_client("recount") as client:
        counted = recount(client, replay.start.ranges, replay.start.decided_at_ms)
    _fail_for(context, counted.problems, needs_operator=True)
    for error in counted.errors.values():
        raise error
    path = naming.path(prefix, config["mirror"])
    yield [_materialization(path, kafka, request, replay, result, counted.counted)]


def _fail_for(context: dg.OpExecutionContext, lines: list[str], *, needs_operator: bool) -> None:
    if lines and needs_operator:
        forbid_retries(context)
    if lines:
        raise dg.Failure("; ".join(lines), allow_retries=not needs_operator)


def _materialization(
    path: str,
    kafka: KafkaResource,
    request: ReplayRequest,
    replay: Replay,
    result: RunResult,
    counted: Mapping[TopicPartition, Recount],
) -> dg.AssetMaterialization:
    name, to = path.rpartition("/")[2], target(request.to).topic
    own = renamed_target(request.topic, kafka.mirror(name).topics.rename).topic
    return dg.AssetMaterialization(
        # a topic that the mirror writes has an asset
        naming.mirrored_asset(path, request.topic)
        if to == own
        else naming.replayed_asset(path, to),
        description=f"Replay {replay.id} of {request.topic}, from the {request.side}",
        metadata={
            "replay": replay.id,
            "records": sum(count.tally.records for count in counted.values()),
            "counted (records)": sum(count.tally.counted for count in counted.values()),
            "copied by this run (records)": result.records,
            "copied by this run (bytes)": result.size_bytes,
            "read from": request.side.value,
            "ranges": ", ".join(map(str, replay.start.ranges)),
            "target": to,
        },
    )
