"""Dagster's definitions, built from relay.yaml without network calls.

The file is $RELAY_CONFIG, or else ./relay.yaml.
"""

import os
from pathlib import Path

import dagster as dg

from relay_pipelines import settings
from relay_pipelines.assets import external, mirrored
from relay_pipelines.checks import (
    audit,
    available,
    divergence,
    lag,
    lag_target,
    other_deployments,
    source_topics,
    topic_configs,
)
from relay_pipelines.errors import ConfigError
from relay_pipelines.jobs import audits, backfill_by_date, mirror_lane, mirror_once, replay
from relay_pipelines.lanes.lane import lanes_of
from relay_pipelines.lanes.topic_catalog import Catalog
from relay_pipelines.resources import KafkaResource, SparkResource
from relay_pipelines.sensors import health, planner
from relay_pipelines.settings import Mirror


def build(config: Path) -> dg.Definitions:
    """Build the definitions of a relay.yaml.

    Raises:
        ConfigError: relay.yaml is missing or invalid; Dagster shows the message in place of the
            code location.
    """
    loaded = settings.load(config)
    catalog = Catalog.beside(config)
    parts = [
        _mirror(name, mirror, catalog, automation=loaded.automation)
        for name, mirror in loaded.mirrors.items()
    ]
    kafka = KafkaResource(config_path=str(config.absolute()))

    shared = dg.Definitions(
        jobs=[
            mirror_once.build(loaded, catalog),
            backfill_by_date.build(loaded, catalog),
            replay.build(loaded, catalog),
            audits.build(loaded, catalog),
        ],
        resources={"kafka": kafka, "pyspark": SparkResource(kafka=kafka)},
        # a run is one op: a separate process for it would cost two seconds
        executor=dg.in_process_executor,
    )
    return dg.Definitions.merge(shared, *parts)


def _mirror(name: str, mirror: Mirror, catalog: Catalog, *, automation: bool) -> dg.Definitions:
    lanes = lanes_of(name, mirror, catalog.known(name, mirror))
    lane_jobs = {lane.name: mirror_lane.build(lane, catalog) for lane in lanes}
    status = dg.DefaultSensorStatus.RUNNING if automation else dg.DefaultSensorStatus.STOPPED
    schedule_status = dg.DefaultScheduleStatus(status.value)
    sample_audit = audits.scheduled(name, mirror, catalog, schedule_status)
    lane_checks = (lag, topic_configs, source_topics, other_deployments)
    node_checks = (available, divergence)
    return dg.Definitions(
        assets=[
            *(mirrored.build(lane, mirror) for lane in lanes if lane.topics),
            *(external.plan(lane) for lane in lanes),
            *external.sources(name, mirror, lanes),
            *external.nodes(name, mirror),
            *external.audits(name, mirror, lanes),
        ],
        asset_checks=[
            *(check.build(lane) for lane in lanes for check in lane_checks),
            *(lag_target.build(lane) for lane in lanes if lane.topics),
            *(audit.build(lane, mirror.audit) for lane in lanes if lane.topics),
            *(check.build(name, node) for node in mirror.nodes for check in node_checks),
        ],
        jobs=list(lane_jobs.values()),
        sensors=[
            *(planner.build(lane, lane_jobs[lane.name], catalog, status) for lane in lanes),
            health.build(name, mirror, status),
        ],
        schedules=[sample_audit] if sample_audit else [],
    )


@dg.definitions
def defs() -> dg.Definitions:
    """The definitions that Dagster loads from this module."""
    try:
        return build(Path(os.environ.get("RELAY_CONFIG", "relay.yaml")))
    except ConfigError as error:
        # of any other class, Dagster would show it below a message of its own
        raise dg.DagsterInvalidDefinitionError(str(error)) from None
