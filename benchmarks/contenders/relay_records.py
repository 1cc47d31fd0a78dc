"""This mirror where it looks inside records: filters, SQL, and topics as DataFrames."""

from __future__ import annotations

import time
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import yaml

from benchmarks.contenders.relay_spark import RelaySpark, cpu_by_process
from benchmarks.contenders.relay_task import CopyWork, RelayTask, works
from benchmarks.values import LARGE_BATCHES, Case, Cost
from benchmarks.workers import run_together
from relay_pipelines.copy.filtering import Record
from relay_pipelines.dataframe import register
from relay_pipelines.model import ClassSpec, CopyJob, Handling, Outcome
from relay_pipelines.spark import rows
from relay_pipelines.spark.session import connect

_PREDICATE = "length(value) > 0"


class KeepsAll:
    """As trivial as a filter can be."""

    def keep(self, record: Record) -> bool:
        """Look at the record, and keep it."""
        return record.value is not None


class RelayFilter(RelayTask):
    """Tasks that ask a filter about every record."""

    name = "relay, tasks alone, filter class"
    inputs: tuple[str, ...] = LARGE_BATCHES

    def copy(self, case: Case) -> Cost:
        """Run the tasks side by side."""
        handling = Handling(filters=(ClassSpec(f"{__name__}:{KeepsAll.__name__}"),))
        filtering = [CopyWork(work.job, replace(work.range, handling=handling)) for work in works(case)]
        return run_together(filtering, case.limit_seconds)


class RelayWhere(RelaySpark):
    """Rows through Spark's SQL, in a session that is already warm."""

    name = "relay, warm Spark session, where"
    inputs: tuple[str, ...] = LARGE_BATCHES
    _handling = Handling(where=_PREDICATE)

    def submit(self, session: Any, job: CopyJob, tasks: list[CopyWork], tag: str) -> list[Outcome]:
        """Submit the rows' job."""
        groups = [[replace(task.range, handling=self._handling)] for task in tasks]
        return rows.submit(session, job, groups, self._handling.sql, tag)


@dataclass
class RelayFrame:
    """The data source `relay`: reads, and counts by a predicate; copies nothing."""

    folder: Path
    name = "relay data source, counted by SQL"
    guarantee = "only reads"
    inputs: tuple[str, ...] = LARGE_BATCHES
    copies = False
    _session: Any = None

    def copy(self, case: Case) -> Cost:
        """Count; the first time, start the session and count once before."""
        config = self.folder / "frame.yaml"
        config.write_text(yaml.safe_dump({"mirrors": {"frame": _mirror(case)}}))
        if self._session is None:
            self._session = connect("local[*]")
            register(self._session)
            self._count(config, case)
        before, began = cpu_by_process(self._session), time.monotonic()
        counted = self._count(config, case)
        seconds = time.monotonic() - began
        if counted != case.records:
            return Cost(error=f"{counted} records counted where {case.records} were due")
        used = sum(spent - before.get(process, 0.0) for process, spent in cpu_by_process(self._session).items())
        return Cost(copy_seconds=seconds, copy_cpu_seconds=used)

    def close(self) -> None:
        """Stop the session."""
        if self._session is not None:
            self._session.stop()

    def _count(self, config: Path, case: Case) -> int:
        reader = self._session.read.format("relay").option("config", str(config)).option("topic", case.topic)
        return int(reader.schema("value binary").load().where(_PREDICATE).count())


def _mirror(case: Case) -> dict[str, Any]:
    return {
        "source": {"nodes": [{"name": "source", "bootstrap_servers": list(case.source.bootstrap_servers)}]},
        "destination": {"bootstrap_servers": list(case.destination.bootstrap_servers)},
    }
