"""The process that forks a local session's Python workers, after it has imported their modules.

Spark starts it by `spark.python.daemon.module`. A worker ends after an idle minute; without this
module, each new one would spend half a second of CPU time on importing the Kafka libraries.
"""

from __future__ import annotations

from pyspark.daemon import manager

import relay_pipelines.spark.job  # noqa: F401 - for the forked workers

if __name__ == "__main__":
    manager()
