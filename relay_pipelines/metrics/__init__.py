"""Prometheus metrics; names shared with kaf-relay and Kafka Topic Mirror mean the same.

catalog          the name, kind, labels and meaning of every metric
run_metrics      what `relay run` knows of its own runs; an HTTP endpoint and a textfile
exporter         `relay exporter`: looks at the clusters again and again
"""

from __future__ import annotations

from relay_pipelines.metrics.catalog import METRICS, PREFIX, Metric
from relay_pipelines.metrics.run_metrics import MetricsObserver, Publication, published

__all__ = ["METRICS", "PREFIX", "Metric", "MetricsObserver", "Publication", "published"]
