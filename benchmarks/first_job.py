"""Starts Spark as a run does and runs a first job; `benchmarks.start` measures this process.

`first_job.py [rdd]`: with `rdd` the job is one of RDDs, without a SQL session.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from typing import Any

from relay_pipelines.spark import job, session
from relay_pipelines.spark.defaults import DEFAULTS, LOCAL_DEFAULTS


def _frame() -> None:
    spark = session.connect("local[2]")
    assert job.submit.__module__  # a run imports Arrow and the copy, too
    assert len(spark.range(0, 2, 1, 2).mapInArrow(_unchanged, "id long").collect()) == 2
    session.end(spark)


def _rdd() -> None:
    from pyspark import SparkConf, SparkContext

    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    settings = {**DEFAULTS, **LOCAL_DEFAULTS}
    settings |= {"spark.master": "local[2]", "spark.app.name": "relay"}
    session._start_jvm(settings, verbose=False)  # noqa: SLF001 - with the same archive
    context = SparkContext(conf=SparkConf().setAll(list(settings.items())))
    assert len(context.parallelize(range(2), 2).mapPartitions(_unchanged).collect()) == 2
    session._end_accumulators(context)  # noqa: SLF001
    context.stop()


def _unchanged(rows: Iterator[Any]) -> Iterator[Any]:
    yield from rows


if __name__ == "__main__":
    (_rdd if sys.argv[1:] else _frame)()
