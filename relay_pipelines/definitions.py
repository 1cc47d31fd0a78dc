"""Dagster's definitions, built from relay.yaml.

Dagster loads this module as a code location of its own; the file is then $RELAY_CONFIG, or else
./relay.yaml. `relay_pipelines.definitions(path)` returns the same for a project of one's own.
"""

import os
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from types import ModuleType

import dagster as dg

from relay_pipelines import settings
from relay_pipelines.assets import external, mirrored
from relay_pipelines.audit import checks, jobs
from relay_pipelines.checks import (
    lag,
    lag_target,
    other_deployments,
    source_topics,
    topic_configs,
    upstreams,
)
from relay_pipelines.errors import ConfigError
from relay_pipelines.jobs import backfill_by_date, mirror_lane, mirror_once
from relay_pipelines.move import jobs as move_jobs
from relay_pipelines.offsets import checks as group_checks
from relay_pipelines.orchestration import naming, shortcuts
from relay_pipelines.orchestration.topic_catalog import Catalog, discover
from relay_pipelines.protocol.clock import SystemClock
from relay_pipelines.replay import job
from relay_pipelines.resources import KafkaResource, SparkResource, kafka_key, spark_key
from relay_pipelines.sensors import health, planner
from relay_pipelines.settings import Mirror

Change = Callable[[dg.AssetSpec], dg.AssetSpec]


def unchanged(spec: dg.AssetSpec) -> dg.AssetSpec:
    """Leave a spec as it is."""
    return spec


def build(config: Path, prefix: tuple[str, ...] = (), change: Change = unchanged) -> dg.Definitions:
    """Build the definitions of a relay.yaml; they have no executor, so that they can be merged.

    The first loading asks the sources for the topics that patterns select; a source that does not
    answer is left to its planner. Later ones make no network calls.

    Args:
        prefix: the key prefix: the first parts of all asset keys, and of all other names.
        change: returns the specs of mirrored topics as a user wants them, with their keys.

    Raises:
        ConfigError: relay.yaml is missing or invalid; Dagster shows the message in place of the
            code location.
    """
    shortcuts.spare_code_server()
    loaded = settings.load(config)
    catalog = Catalog.beside(config, prefix)
    discover(catalog, loaded.mirrors, SystemClock())
    move = move_jobs.build(loaded, prefix)
    parts = [
        _mirror(name, mirror, catalog, change, move, automation=loaded.automation)
        for name, mirror in loaded.mirrors.items()
    ]
    kafka = KafkaResource(config_path=str(config.absolute()))

    shared = dg.Definitions(
        jobs=[
            mirror_once.build(loaded, catalog),
            backfill_by_date.build(loaded, catalog),
            job.build(loaded, catalog),
            jobs.build(loaded, catalog),
            move,
        ],
        resources={kafka_key(prefix): kafka, spark_key(prefix): SparkResource(kafka=kafka)},
    )
    return dg.Definitions.merge(shared, *parts)


def _mirror(
    name: str,
    mirror: Mirror,
    catalog: Catalog,
    change: Change,
    move: dg.JobDefinition,
    *,
    automation: bool,
) -> dg.Definitions:
    path, prefix = naming.path(catalog.prefix, name), catalog.prefix
    lanes = catalog.lanes(name, mirror)
    lane_jobs = {lane.name: mirror_lane.build(lane, catalog) for lane in lanes}
    status = dg.DefaultSensorStatus.RUNNING if automation else dg.DefaultSensorStatus.STOPPED
    schedule_status = dg.DefaultScheduleStatus(status.value)
    sample_audit = jobs.scheduled(name, mirror, catalog, schedule_status)
    lane_checks = (lag, topic_configs, source_topics, other_deployments)
    return dg.Definitions(
        assets=[
            *dg.map_asset_specs(
                change,
                [assets for lane in lanes for assets in mirrored.build(lane, mirror, catalog)],
            ),
            *(external.plan(lane) for lane in lanes),
            *external.sources(path, mirror, lanes),
            *external.upstreams(path, mirror),
            *external.audits(path, mirror, lanes),
            *move_jobs.asset(path, mirror),
        ],
        asset_checks=[
            *(check.build(lane) for lane in lanes for check in lane_checks),
            *(
                topic_checks
                for lane in lanes
                for build_checks in (lag_target.build, checks.build)
                for topic_checks in build_checks(lane, mirror)
            ),
            *(group_checks.build(lane) for lane in lanes if lane.topics and mirror.groups.allow),
            *move_jobs.checks(name, mirror, prefix),
            *(
                check
                for upstream in mirror.upstreams
                for check in upstreams.build(name, upstream, prefix)
            ),
        ],
        jobs=list(lane_jobs.values()),
        sensors=[
            planner.build(lanes, list(lane_jobs.values()), catalog, status),
            health.build(name, mirror, status, prefix),
        ],
        schedules=[
            *([sample_audit] if sample_audit else []),
            *move_jobs.scheduled(name, mirror, move, schedule_status, prefix),
        ],
    )


@dg.definitions
def defs() -> dg.Definitions:
    """The definitions that Dagster loads from this module."""
    try:
        loaded = build(Path(os.environ.get("RELAY_CONFIG", "relay.yaml")))
    except ConfigError as error:
        # of any other class, Dagster would show it below a message of its own
        raise dg.DagsterInvalidDefinitionError(str(error)) from None
    # runs of assets are one op, too: a separate process for it would cost two seconds
    return dg.Definitions.merge(loaded, dg.Definitions(executor=dg.in_process_executor))


def definitions(
    path: str | Path = "relay.yaml", *, key_prefix: str | Sequence[str] = ()
) -> dg.Definitions:
    """Return the definitions of a relay.yaml, to merge with those of one's own project.

    They have no executor: runs of assets use that of the project, the jobs their own. The keys of
    their resources begin with `relay_`.

    Args:
        key_prefix: the first parts of all asset keys; other names have it, too. Of two relay.yaml
            in one project, one needs it.

    Raises:
        ConfigError: relay.yaml is missing or invalid, or the key prefix is.
    """
    return build(Path(path), naming.parts(key_prefix))


class _CallableModule(ModuleType):
    """This module, which has the name of its function in `relay_pipelines`."""

    __call__ = staticmethod(definitions)


sys.modules[__name__].__class__ = _CallableModule
