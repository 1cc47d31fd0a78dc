"""Dagster's definitions, built from relay.yaml without network calls.

The file is $RELAY_CONFIG, or else ./relay.yaml.
"""

import os
from pathlib import Path

import dagster as dg

from relay_pipelines import settings
from relay_pipelines.assets import external, mirrored
from relay_pipelines.checks import divergence, lag, source_topics, topic_configs
from relay_pipelines.errors import ConfigError
from relay_pipelines.jobs import backfill_by_date, mirror_once, replan
from relay_pipelines.lanes.lane import lanes_of
from relay_pipelines.lanes.topic_catalog import Catalog
from relay_pipelines.plan.topic_selection import destinations
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
    parts = [_mirror(name, mirror, catalog) for name, mirror in loaded.mirrors.items()]
    kafka = KafkaResource(config_path=str(config.absolute()))

    def repository() -> dg.RepositoryDefinition:
        return everything.get_repository_def()

    shared = dg.Definitions(
        jobs=[
            mirror_once.build(loaded, catalog),
            replan.build(loaded, catalog),
            backfill_by_date.build(loaded, catalog, repository),
        ],
        resources={"kafka": kafka, "pyspark": SparkResource(kafka=kafka)},
        # a run is one op: a separate process for it would cost two seconds
        executor=dg.in_process_executor,
    )
    everything = dg.Definitions.merge(shared, *parts)
    return everything


def _mirror(name: str, mirror: Mirror, catalog: Catalog) -> dg.Definitions:
    lanes = lanes_of(name, mirror, catalog.known(name, mirror))
    # raises if topics of two lanes have the same destination
    destinations([topic for lane in lanes for topic in lane.topics], mirror.topics.rename)
    copied = {lane.name: mirrored.build(lane, mirror) for lane in lanes if lane.topics}
    return dg.Definitions(
        assets=[
            *copied.values(),
            *(external.plan(lane) for lane in lanes),
            *external.sources(name, mirror, lanes),
            *external.nodes(name, mirror),
        ],
        asset_checks=[
            *(check.build(lane) for lane in lanes for check in (lag, topic_configs, source_topics)),
            *(divergence.build(name, node) for node in mirror.nodes),
        ],
        sensors=[
            *(planner.build(lane, copied.get(lane.name), catalog) for lane in lanes),
            health.build(name, mirror),
        ],
    )


@dg.definitions
def defs() -> dg.Definitions:
    """The definitions that Dagster loads from this module."""
    try:
        return build(Path(os.environ.get("RELAY_CONFIG", "relay.yaml")))
    except ConfigError as error:
        # of any other class, Dagster would show it below a message of its own
        raise dg.DagsterInvalidDefinitionError(str(error)) from None
