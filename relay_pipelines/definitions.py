"""Everything Dagster loads, built from relay.yaml. Loading touches no cluster.

RELAY_CONFIG names the file, else ./relay.yaml.
"""

import os
from pathlib import Path

import dagster as dg

from relay_pipelines import settings
from relay_pipelines.assets import external, mirrored
from relay_pipelines.checks import divergence, lag, source_topics, topic_configs
from relay_pipelines.jobs import backfill, once, replan
from relay_pipelines.lanes.lane import lanes_of
from relay_pipelines.lanes.topic_catalog import Catalog
from relay_pipelines.plan.topic_selection import destinations
from relay_pipelines.resources import KafkaResource, SparkResource
from relay_pipelines.sensors import health, planner
from relay_pipelines.settings import Mirror


def build(config: Path) -> dg.Definitions:
    """Build what a relay.yaml describes.

    Raises:
        ConfigError: it is missing or wrong; Dagster shows that line in place of the code location.
    """
    loaded = settings.load(config)
    catalog = Catalog.beside(config)
    parts = [_mirror(name, mirror, catalog) for name, mirror in loaded.mirrors.items()]
    kafka = KafkaResource(config_path=str(config.absolute()))
    shared = dg.Definitions(
        jobs=[
            once.build(loaded, catalog),
            replan.build(loaded, catalog),
            backfill.build(loaded, catalog, lambda: everything.get_repository_def().asset_graph),
        ],
        resources={"kafka": kafka, "pyspark": SparkResource(kafka=kafka)},
        # a run is one op: a process of its own for it would cost two seconds and prove nothing
        executor=dg.in_process_executor,
    )
    everything = dg.Definitions.merge(shared, *parts)
    return everything


def _mirror(name: str, mirror: Mirror, catalog: Catalog) -> dg.Definitions:
    lanes = lanes_of(name, mirror, catalog.known(name, mirror))
    destinations(
        [topic for lane in lanes for topic in lane.topics], mirror.topics.rename
    )  # raises if two lanes have one
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
    """What Dagster finds in this module."""
    return build(Path(os.environ.get("RELAY_CONFIG", "relay.yaml")))
