"""Dagster resources: the clusters of relay.yaml, and Spark."""

from relay_pipelines.resources.kafka import KafkaResource
from relay_pipelines.resources.spark import SparkResource

__all__ = ["KafkaResource", "SparkResource"]
