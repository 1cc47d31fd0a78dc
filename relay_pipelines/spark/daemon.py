"""Where a local session's Python workers come from: a process that imports what a task needs, then forks one per task.

Spark starts it by `spark.python.daemon.module`. Workers idle for a minute end; without this every
later one would import the Kafka libraries again, half a second of CPU time each.
"""

from __future__ import annotations

from pyspark.daemon import manager

import relay_pipelines.spark.job  # noqa: F401 - for the forked

if __name__ == "__main__":
    manager()
