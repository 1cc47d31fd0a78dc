"""Makes the archive of Spark's classes, with which the next drivers start in half the time.

`python -m relay_pipelines.spark.class_archive`; `make setup` runs it, or a first run in the
background. Runs on the driver.
"""

from __future__ import annotations

import os
import shlex
import sys
from collections.abc import Iterator

from relay_pipelines.spark import jvm
from relay_pipelines.spark.defaults import LOCAL_DEFAULTS

_RUN_SECONDS = 120


def run_small_job(option: str) -> None:
    """Run a small job as a run does.

    Args:
        option: of the JVM, by which it writes the classes that it has used.
    """
    from pyspark import SparkContext
    from pyspark.sql import SparkSession

    key = "spark.driver.extraJavaOptions"
    settings = {
        **LOCAL_DEFAULTS,
        "spark.master": "local[1]",
        "spark.ui.enabled": "false",
        key: f"{LOCAL_DEFAULTS[key]} {shlex.quote(option)} -Xlog:disable",
    }
    gateway = jvm.start(settings, verbose=True)
    try:
        SparkContext._ensure_initialized(gateway=gateway)  # noqa: SLF001 - for `getOrCreate`
        session = SparkSession.builder.config(map=settings).getOrCreate()
        rows = session.range(0, 2, 1, 1).mapInArrow(_unchanged, "id long")
        rows.where("id > 0").selectExpr("CAST(id AS string) AS id").collect()
        session.stop()
        gateway.shutdown()
        gateway.proc.stdin.close()
        gateway.proc.wait(_RUN_SECONDS)
    finally:
        gateway.proc.kill()


def _unchanged(batches: Iterator[object]) -> Iterator[object]:
    return batches


if __name__ == "__main__":
    os.environ["PYSPARK_PYTHON"] = sys.executable
    jvm.CLASSES.main(run_small_job)
