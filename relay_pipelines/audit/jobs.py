"""`audit`: what people audit from the UI; and the audits that a schedule repeats."""

import datetime as dt
from collections.abc import Collection, Generator, Iterator
from dataclasses import replace
from typing import Any

import dagster as dg
from pydantic import Field

from relay_pipelines.audit import checks
from relay_pipelines.audit.request import AuditRequest
from relay_pipelines.errors import ConfigError, RelayError, TamperedError
from relay_pipelines.finding import Severity, texts
from relay_pipelines.orchestration import naming, run_tags
from relay_pipelines.orchestration.job_builder import build_job, config_schema
from relay_pipelines.orchestration.shortcuts import Batch
from relay_pipelines.orchestration.stopping import Session, Stop
from relay_pipelines.orchestration.topic_catalog import Catalog
from relay_pipelines.request import filled
from relay_pipelines.resources import KafkaResource
from relay_pipelines.settings import Mirror, Settings
from relay_pipelines.settings.validation_errors import nearest

_TAGS = {
    # what fails here would fail again; what is to be copied goes first
    naming.TAG_MAX_RETRIES: "0",
    naming.TAG_PRIORITY: "-1",
}
_SHOWN = 3


def build(settings: Settings, catalog: Catalog) -> dg.JobDefinition:
    """Build the job for all mirrors of these settings."""

    def audit(
        context: dg.OpExecutionContext, kafka: KafkaResource, stop: Stop, session: Session
    ) -> Iterator[Batch]:
        name = context.op_config["mirror"]
        try:
            mirror, request = settings.mirror(name), filled(AuditRequest, context.op_config)
        except ConfigError as error:
            raise _failure(str(error)) from None
        known = _known(name, mirror, catalog)
        for topic in request.topics:
            if topic not in known:
                remedy = nearest(topic, known, "topics")
                raise _failure(f"{name} has no source topic {topic!r}; {remedy}")
        path = naming.path(catalog.prefix, name)
        run_tags.add(context.instance, context.run_id, {naming.TAG_MIRROR: path})
        yield from _audit(context, kafka, session, stop, path, request, known)

    first = next(iter(settings.mirrors))
    return build_job(
        naming.job(catalog.prefix, "audit"),
        naming.job(catalog.prefix, "audit_selected"),
        "Audits what was copied, as `relay audit` does, and reports the check `audit` of each"
        " topic.",
        audit,
        prefix=catalog.prefix,
        config=config_schema(
            AuditRequest, mirror=(str, Field(first, description="The mirror's name."))
        ),
        tags=_TAGS,
        pool=naming.AUDITS_POOL,
    )


def scheduled(
    name: str,
    mirror: Mirror,
    catalog: Catalog,
    status: dg.DefaultScheduleStatus,
) -> dg.ScheduleDefinition | None:
    """Build the schedule of a mirror and its job; None if relay.yaml has none."""
    settings = mirror.audit
    if settings.schedule is None:
        return None
    path, by_itself = naming.path(catalog.prefix, name), checks.scheduled_request(settings)
    op_name = f"sample_{naming.group(path)}"

    def audit(
        context: dg.OpExecutionContext, kafka: KafkaResource, stop: Stop, session: Session
    ) -> Iterator[Batch]:
        request, known = filled(AuditRequest, context.op_config), _known(name, mirror, catalog)
        metadata = yield from _audit(context, kafka, session, stop, path, request, known)
        yield [dg.AssetMaterialization(naming.sample_audit_asset(path), metadata=metadata)]

    defaults = {"level": by_itself.level, "share": by_itself.share, "strict": by_itself.strict}
    sample_audit = build_job(
        naming.sample_audit(path),
        op_name,
        f"Audits {name}: what its schedule repeats.",
        audit,
        prefix=catalog.prefix,
        config=config_schema(AuditRequest, defaults),
        tags=_TAGS | {naming.TAG_MIRROR: path},
        pool=naming.AUDITS_POOL,
    )

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


def _known(name: str, mirror: Mirror, catalog: Catalog) -> set[str]:
    """Return the source topics that have a check."""
    return {t for lane in catalog.lanes(name, mirror) for t in lane.topics}


def _audit(
    context: dg.OpExecutionContext,
    kafka: KafkaResource,
    session: Session,
    stop: Stop,
    path: str,
    request: AuditRequest,
    known: Collection[str],
) -> Generator[Batch, None, dict[str, Any]]:
    """Audit, and yield the result of each topic; a difference fails checks, and not the run.

    Args:
        known: all topics of the mirror.

    Returns:
        what Dagster plots of it.

    Raises:
        dg.Failure: something could not be read, or the ledger does not have it.
    """
    mirror = path.rpartition("/")[2]
    try:
        audit = checks.run(context, kafka, session, stop, path, request)
    except RelayError as error:
        if isinstance(error, TamperedError):
            named = replace(request, topics=request.topics or tuple(sorted(known)))
            yield list(checks.not_audited(path, named, error, kafka.clock))
        raise _failure(f"{mirror}: {error}") from None
    page = checks.write_page(context, audit, kafka.clock.now_ms())
    yield list(checks.evaluations(path, audit, page, kafka))
    if failures := texts(audit.findings, Severity.ERROR):
        raise _failure(f"{mirror}: {'; '.join(failures[:_SHOWN])}")
    more = {"share (%)": audit.request.share, "seed": audit.request.seed}
    return checks.numbers(audit, page) | more


def _failure(what: str) -> dg.Failure:
    # the job's tag keeps Dagster from repeating the run
    return dg.Failure(what, allow_retries=False)
