"""Dagster resources: the clusters of relay.yaml, and Spark.

Their keys begin with `relay_`, after the key prefix of the definitions: a project may have a
`kafka` of its own, and definitions of two relay.yaml.

kafka  the clusters of a relay.yaml
plans  windows as they were frozen
spark  the Spark session
"""

from collections.abc import Sequence
from typing import Any

from relay_pipelines.resources.kafka import KafkaResource
from relay_pipelines.resources.spark import SparkResource

__all__ = ["KafkaResource", "SparkResource", "kafka_key", "kafka_of", "spark_key", "spark_of"]


def kafka_key(prefix: Sequence[str] = ()) -> str:
    """The key of the resource with the clusters of a relay.yaml."""
    return "_".join([*prefix, "relay_kafka"])


def spark_key(prefix: Sequence[str] = ()) -> str:
    """The key of the resource with the Spark of a relay.yaml."""
    return "_".join([*prefix, "relay_spark"])


def kafka_of(context: Any, prefix: Sequence[str]) -> KafkaResource:
    """The clusters, from the context of an op, a check or a sensor that requires the key."""
    resource = getattr(context.resources, kafka_key(prefix))
    assert isinstance(resource, KafkaResource)
    return resource


def spark_of(context: Any, prefix: Sequence[str]) -> SparkResource:
    """Spark, from the context of an op that requires the key."""
    resource = getattr(context.resources, spark_key(prefix))
    assert isinstance(resource, SparkResource)
    return resource
