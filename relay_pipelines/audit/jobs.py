"""`audit`: what people audit from the UI; and the audits that a schedule repeats."""

import datetime as dt
from collections.abc import Collection, Generator, Iterator, Mapping
from dataclasses import replace
from typing import Any

import dagster as dg

from relay_pipelines.audit import checks as check
from relay_pipelines.audit import dagster_run
from relay_pipelines.audit.audit import Level, default_seed
from relay_pipelines.audit.dagster_run import AuditReport, AuditRequest
from relay_pipelines.audit.selection import Selection
from relay_pipelines.errors import RelayError, TamperedError
from relay_pipelines.orchestration import naming, turns
from relay_pipelines.orchestration.lane import lanes_of
from relay_pipelines.orchestration.stopping import Session, Stop, stoppable
from relay_pipelines.orchestration.topic_catalog import Catalog
from relay_pipelines.protocol.clock import moment_ms
from relay_pipelines.resources import KafkaResource, kafka_key, kafka_of, spark_key, spark_of
from relay_pipelines.settings import Mirror, Settings
from relay_pipelines.settings.validation_errors import nearest

Event = dg.AssetCheckEvaluation | dg.AssetMaterialization
_Config = Mapping[str, Any]

_TAGS = {
    # what fails here would fail again; what is to be copied goes first
    naming.TAG_MAX_RETRIES: "0",
    naming.TAG_PRIORITY: "-1",
}
_LEVEL = dg.Enum("AuditLevel", [dg.EnumValue(str(level)) for level in Level])
_ALL_PERCENT = 100.0
_SHOWN = 3
_PEOPLES_SHARE = 5.0  # as that of `relay audit`


def _depth(level: str, share_percent: float, *, strict: bool = False) -> dict[str, Any]:
    return {
        "level": dg.Field(
            _LEVEL,
            default_value=str(level),
            description="The ledger alone; a recount of the destination; both sides read in full;"
            " or a sample of them.",
        ),
        "share": dg.Field(
            float,
            default_value=share_percent,
            description="How much of each topic-partition a sample compares, in percent.",
        ),
        "seed": dg.Field(
            str,
            is_required=False,
            description="Chooses the sample. Without it the date does.",
        ),
        "strict": dg.Field(
            bool,
            default_value=strict,
            description="Whether whatever is noted, or not verified, fails the check, too.",
        ),
    }


def _selection(settings: Settings) -> dict[str, Any]:
    first = next(iter(settings.mirrors))
    time = "in ISO 8601: 2026-01-31 or 2026-01-31T12:00:00Z"
    return {
        "mirror": dg.Field(str, default_value=first, description="The mirror's name."),
        "topics": dg.Field(
            [str], default_value=[], description="Source topics; all if there are none."
        ),
        "windows": dg.Field(
            [str], default_value=[], description="Keys of windows; all that was copied if none."
        ),
        "from": dg.Field(
            str,
            is_required=False,
            description=f"Only what was committed then or later, {time}.",
        ),
        "to": dg.Field(
            str, is_required=False, description=f"Only what was committed before, {time}."
        ),
    }


def build(settings: Settings, catalog: Catalog, prefix: tuple[str, ...] = ()) -> dg.JobDefinition:
    """Build the job for all mirrors of these settings."""

    @dg.op(
        name=naming.job(prefix, "audit_selected"),
        config_schema=_selection(settings) | _depth(Level.RECOUNT, _PEOPLES_SHARE),
        out={},
        pool=naming.AUDITS_POOL,
        required_resource_keys={kafka_key(prefix), spark_key(prefix)},
    )
    def audit_selected(context: dg.OpExecutionContext) -> Iterator[Event]:
        kafka, pyspark = kafka_of(context, prefix), spark_of(context, prefix)
        config = context.op_config
        if config["mirror"] not in settings.mirrors:
            valid = ", ".join(settings.mirrors)
            raise _failure(f"no mirror is called {config['mirror']!r}; there are: {valid}")
        _require_known(config, settings.mirrors[config["mirror"]], catalog)
        path = naming.path(prefix, config["mirror"])
        turns.add_tags(context.instance, context.run_id, {naming.TAG_MIRROR: path})
        topics = tuple(config["topics"])
        requests = [
            _request(config, kafka, (config["mirror"], prefix), topics, selection)
            for selection in _selections(config)
        ]
        known = topics or _known(config["mirror"], settings.mirrors[config["mirror"]], catalog)

        def audit(stop: Stop, session: Session) -> Iterator[Event]:
            yield from _audit(context, kafka, session, stop, requests, known)

        dagster_run.give_way()
        yield from stoppable(context, pyspark, audit)

    @dg.job(
        name=naming.job(prefix, "audit"),
        description="Audits what was copied, as `relay audit` does, and reports the check `audit`"
        " of each topic.",
        tags=_TAGS,
        executor_def=dg.in_process_executor,
    )
    def audit_job() -> None:
        audit_selected()

    return audit_job


def scheduled(
    name: str,
    mirror: Mirror,
    catalog: Catalog,
    status: dg.DefaultScheduleStatus,
    prefix: tuple[str, ...] = (),
) -> dg.ScheduleDefinition | None:
    """Build the schedule of a mirror and its job; None if relay.yaml has none."""
    settings = mirror.audit
    if settings.schedule is None:
        return None
    path = naming.path(prefix, name)
    op_name = f"sample_{naming.group(path)}"

    @dg.op(
        name=op_name,
        config_schema=_depth(settings.level, settings.share * _ALL_PERCENT, strict=settings.strict),
        out={},
        pool=naming.AUDITS_POOL,
        required_resource_keys={kafka_key(prefix), spark_key(prefix)},
    )
    def audit_mirror(context: dg.OpExecutionContext) -> Iterator[Event]:
        kafka, pyspark = kafka_of(context, prefix), spark_of(context, prefix)
        request = _request(context.op_config, kafka, (name, prefix), (), Selection())
        known = _known(name, mirror, catalog)

        def audit(stop: Stop, session: Session) -> Iterator[Event]:
            (report,) = yield from _audit(context, kafka, session, stop, [request], known)
            yield _history(report)

        dagster_run.give_way()
        yield from stoppable(context, pyspark, audit)

    @dg.job(
        name=naming.sample_audit(path),
        description=f"Audits {name}: what its schedule repeats.",
        tags=_TAGS | {naming.TAG_MIRROR: path},
        executor_def=dg.in_process_executor,
    )
    def sample_audit() -> None:
        audit_mirror()

    @dg.schedule(
        name=naming.sample_audit(path),
        job=sample_audit,
        cron_schedule=settings.schedule,
        default_status=status,
        description=f"Audits {name}, each time another sample.",
    )
    def schedule(context: dg.ScheduleEvaluationContext) -> dg.RunRequest:
        # another one each time, also if that is more than once a day
        seed = context.scheduled_execution_time.astimezone(dt.UTC).isoformat(timespec="minutes")
        return dg.RunRequest(run_config={"ops": {op_name: {"config": {"seed": seed}}}})

    return schedule


def _request(
    config: _Config,
    kafka: KafkaResource,
    mirror: tuple[str, tuple[str, ...]],
    topics: tuple[str, ...],
    selection: Selection,
) -> AuditRequest:
    if not 0 <= config["share"] <= _ALL_PERCENT:
        raise _failure(f"share: expected 0 to 100 percent, got {config['share']}")
    name, prefix = mirror
    return AuditRequest(
        name,
        Level(config["level"]),
        config["share"] / _ALL_PERCENT,
        config.get("seed") or default_seed(kafka.clock),
        topics,
        selection,
        prefix,
        config["strict"],
    )


def _require_known(config: _Config, mirror: Mirror, catalog: Catalog) -> None:
    name = config["mirror"]
    known = _known(name, mirror, catalog)
    for topic in config["topics"]:
        if topic not in known:
            remedy = nearest(topic, known, "topics")
            raise _failure(f"{name} has no source topic {topic!r}; {remedy}")


def _known(name: str, mirror: Mirror, catalog: Catalog) -> set[str]:
    """Return the source topics that have a check."""
    return {t for lane in lanes_of(name, mirror, catalog.known(name, mirror)) for t in lane.topics}


def _selections(config: _Config) -> list[Selection]:
    since_ms, until_ms = (_time_ms(config.get(key)) for key in ("from", "to"))
    dated = since_ms is not None or until_ms is not None
    if config["windows"] and dated:
        raise _failure("windows and dates exclude each other; leave one of them out")
    if since_ms is not None and until_ms is not None and until_ms <= since_ms:
        raise _failure("the time span ends before it begins; give a `to` later than `from`")
    if config["windows"]:
        return [Selection(window=window) for window in config["windows"]]
    return [Selection(since_ms=since_ms, until_ms=until_ms)]


def _time_ms(text: str | None) -> int | None:
    try:
        return moment_ms(text) if text else None
    except ValueError:
        what = f"{text!r} is not a valid timestamp; write 2026-01-31 or 2026-01-31T12:00:00Z"
        raise _failure(what) from None


def _audit(
    context: dg.OpExecutionContext,
    kafka: KafkaResource,
    session: Session,
    stop: Stop,
    requests: list[AuditRequest],
    topics: Collection[str],
) -> Generator[Event, None, list[AuditReport]]:
    """Audit, and yield the result of each topic; a difference fails checks, and not the run.

    Args:
        topics: those of the requests; all of the mirror if they name none.

    Raises:
        dg.Failure: something could not be read, or the ledger does not have it.
    """
    reports: list[AuditReport] = []
    failures: list[str] = []
    for request in requests:
        try:
            reports.append(dagster_run.run(context, kafka, session, stop, request))
        except RelayError as error:
            if isinstance(error, TamperedError):
                yield from check.not_audited(replace(request, topics=topics), error, kafka.clock)
            failures.append(str(error))
    dagster_run.write_page(context, reports, kafka.clock.now_ms())
    for report in reports:
        yield from check.evaluations(report, kafka)
        failures += report.audit.errors
    if failures:
        raise _failure(f"{requests[0].mirror}: {'; '.join(failures[:_SHOWN])}")
    return reports


def _failure(what: str) -> dg.Failure:
    # the job's tag keeps Dagster from repeating the run
    return dg.Failure(what, allow_retries=False)


def _history(report: AuditReport) -> dg.AssetMaterialization:
    """Return what Dagster plots of the audits that a schedule repeats."""
    request, audit = report.request, report.audit
    metadata: dict[str, Any] = {
        **dagster_run.numbers(audit.partitions.values()),
        "seconds": round(audit.seconds, 3),
        "share (%)": _ALL_PERCENT * request.share,
        "seed": request.seed,
        "level": str(request.level),
    }
    if report.page is not None:
        metadata["page"] = dg.MetadataValue.path(report.page)
    return dg.AssetMaterialization(naming.sample_audit_asset(request.path), metadata=metadata)
