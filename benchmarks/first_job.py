"""Starts a SparkContext as PySpark does, and runs a first job; `benchmarks.start` measures it."""

from __future__ import annotations

import os
import sys

from pyspark import SparkContext

if __name__ == "__main__":
    os.environ["PYSPARK_PYTHON"] = sys.executable
    context = SparkContext("local[*]")
    assert context.parallelize(range(2), 2).map(str).collect() == ["0", "1"]
    context.stop()
