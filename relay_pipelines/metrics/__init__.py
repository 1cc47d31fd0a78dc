"""Prometheus metrics; names shared with kaf-relay and Kafka Topic Mirror mean the same.

catalog          the name, kind, labels and meaning of every metric
committed        counters of committed chunks, from the ledger
run_metrics      what `relay run` knows of its own runs
mirror_metrics   what can be read from the clusters, whoever copies
exporter         `relay exporter`: looks at the clusters again and again
serving          an HTTP endpoint and a textfile
"""

from __future__ import annotations

from relay_pipelines.metrics.catalog import METRICS, PREFIX, Metric
from relay_pipelines.metrics.run_metrics import MetricsObserver
from relay_pipelines.metrics.serving import Publication, published

__all__ = ["METRICS", "PREFIX", "Metric", "MetricsObserver", "Publication", "published"]
