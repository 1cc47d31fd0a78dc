"""The process that forks a local session's Python workers, after it has imported their modules.

Spark starts it by `spark.python.daemon.module`. A worker ends after an idle minute; without this
module, each new one would spend half a second of CPU time on importing the Kafka libraries.

It imports PySpark as it is installed. Spark puts its own zips on the path: Python would compile
their modules at each start, and read their directories again before each task, which takes a worker
0.3 CPU seconds before Python 3.13.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path


def _leave_out_archives() -> None:
    home = Path(os.environ["SPARK_HOME"])
    for entry in [*sys.path]:
        if Path(entry).is_file() and Path(entry).is_relative_to(home):
            sys.path.remove(entry)
            sys.path_importer_cache.pop(entry, None)


if __name__ == "__main__":
    _leave_out_archives()

    # for the forked workers
    import pyspark.worker  # noqa: F401
    from pyspark.daemon import manager

    import relay_pipelines.spark.job  # noqa: F401

    manager()
