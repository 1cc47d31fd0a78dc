"""This mirror where it looks inside records: filters, SQL, and topics as DataFrames."""

from __future__ import annotations

import os
import sys
import time
from concurrent.futures import ProcessPoolExecutor
from functools import cache
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import yaml

from benchmarks.contenders.contract import Contender
from benchmarks.contenders.relay_spark import RelaySpark, cpu_by_process, cpu_since
from benchmarks.contenders.relay_task import CopyWork, RelayTask, groups_of, works
from benchmarks.values import LARGE_BATCHES, Case, Cost
from benchmarks.workers import run_together
from relay_pipelines.dataframe import register
from relay_pipelines.model import ClassSpec, CopyJob, Outcome, RecordPolicy
from relay_pipelines.protocol.records import Record
from relay_pipelines.spark import sql_rows

_PREDICATE = "length(value) > 0"


class KeepsAll:
    """A filter that keeps every record."""

    def keep(self, record: Record) -> bool:
        """Read the value and keep the record."""
        return record.value is not None


class RelayFilter(RelayTask):
    """Tasks that call a filter for every record."""

    name = "relay, tasks alone, filter class"
    inputs = LARGE_BATCHES

    def copy(self, case: Case) -> Cost:
        """Run the tasks in parallel."""
        record_policy = RecordPolicy(filters=(ClassSpec(f"{__name__}:{KeepsAll.__name__}"),))
        return run_together(works(case, record_policy), case.limit_seconds)


class RelayWhere(RelaySpark):
    """Rows that pass a `where` of Spark SQL, in a warm session."""

    name = "relay, warm Spark session, where"
    inputs = LARGE_BATCHES
    _policy = RecordPolicy(where=_PREDICATE)

    def submit(self, session: Any, job: CopyJob, tasks: list[CopyWork], tag: str) -> list[Outcome]:
        """Submit the job for rows."""
        return sql_rows.submit(session, job, groups_of(tasks), self._policy.sql, tag)


class RelayFrame(Contender):
    """Reads a topic with the data source `relay` and counts its records with a predicate.

    It runs in its own process, because a process has one JVM only, and its session is a plain one
    with all JIT compilers, unlike the session of a copy.
    """

    name = "relay data source, counted by SQL"
    guarantee = "only reads"
    inputs = LARGE_BATCHES
    copies = False

    def __init__(self, folder: Path) -> None:
        self._config = folder / "frame.yaml"
        self._process = ProcessPoolExecutor(1, get_context("spawn"))

    def copy(self, case: Case) -> Cost:
        """Count the records in a session that has just counted the same."""
        self._config.write_text(yaml.safe_dump({"mirrors": {"frame": _mirror(case)}}))
        counted, cost = self._process.submit(_count_warm, self._config, case.topic).result(
            case.limit_seconds
        )
        if counted != case.records:
            return Cost(error=f"{counted} records counted instead of {case.records}")
        return cost

    def close(self) -> None:
        """Stop the process and its session."""
        self._process.shutdown()


def _count_warm(config: Path, topic: str) -> tuple[int, Cost]:
    session = _plain_session()
    # Spark stops Python workers that are idle for a minute, as while other contenders copy
    _count(session, config, topic)
    before, began = cpu_by_process(session), time.monotonic()
    counted = _count(session, config, topic)
    seconds = time.monotonic() - began
    return counted, Cost(copy_seconds=seconds, copy_cpu_seconds=cpu_since(session, before))


@cache
def _plain_session() -> Any:
    from pyspark.sql import SparkSession

    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    builder = SparkSession.builder.appName("frame").master("local[*]")
    for key, value in {
        "driver.host": "127.0.0.1",
        "driver.bindAddress": "127.0.0.1",
        "ui.enabled": "false",
    }.items():
        builder = builder.config(f"spark.{key}", value)
    session = builder.config("spark.ui.showConsoleProgress", "false").getOrCreate()
    register(session)
    return session


def _count(session: Any, config: Path, topic: str) -> int:
    reader = session.read.format("relay").option("config", str(config)).option("topic", topic)
    return int(reader.schema("value binary").load().where(_PREDICATE).count())


def _mirror(case: Case) -> dict[str, Any]:
    return {
        "source": {
            "upstreams": [
                {"name": "source", "bootstrap_servers": list(case.source.bootstrap_servers)}
            ]
        },
        "destination": {"bootstrap_servers": list(case.destination.bootstrap_servers)},
    }
