"""What audits cost beside the copy: `python -m benchmarks.audit [--quick] [INPUT...]`.

Copy, recount and full audits run in this process, one task after another, so that each has its CPU
time. `make bench` measures the same. By default 1 GB in batches of 128 KB, which are copied and
compared as they are, and in batches of 16 KB, which are merged and therefore decoded.
"""

from __future__ import annotations

import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import yaml

from benchmarks import clusters, report
from benchmarks.inputs import INPUTS, Input
from benchmarks.targets import beside_copy
from benchmarks.values import AUDITED, AuditCost, Figures, Spent
from relay_pipelines.audit import spark_job
from relay_pipelines.audit.audit import begin
from relay_pipelines.audit.request import AuditRequest, Level
from relay_pipelines.copy.task import copy_ranges
from relay_pipelines.model import Cluster, CopyJob, CopyRange
from relay_pipelines.settings import Mirror, load
from relay_pipelines.sides import Sides
from tests.support import commands

_QUICK_FACTOR = 0.02


def main(arguments: list[str]) -> None:
    """Print what `make bench` writes."""
    names = [name for name in arguments if name != "--quick"] or list(AUDITED)
    wanted = [spec for spec in INPUTS if spec.name in names]
    if "--quick" in arguments:
        wanted = [spec.scaled(_QUICK_FACTOR) for spec in wanted]
    figures = Figures(inputs=wanted)
    with clusters.embedded("source") as source, clusters.embedded("destination") as destination:
        clusters.create_own_topics(destination.cluster())
        for spec in wanted:
            figures.audits.append(measure(source.cluster(), destination.cluster(), spec))
    print("\n".join(report.audits(figures)))
    for target in beside_copy(figures):
        print(f"{target.what}: wanted {target.wanted}, measured {target.measured}")


def measure(source: Cluster, destination: Cluster, spec: Input) -> AuditCost:
    """Copy an input, audit the copy in each way, and return what each took."""
    topic = f"audit-{spec.name}"
    extents = clusters.make_input(source, topic, spec)
    topics = {extent.range.topic_partition.topic for extent in extents}
    clusters.create_topics(destination, topics, spec.partitions, spec.configs)
    job = CopyJob(topic, "run", source, destination)
    ranges = [CopyRange(extent.range, extent.range.topic_partition) for extent in extents]
    records = sum(extent.records for extent in extents)

    def copy() -> None:
        assert not any(outcome.error for outcome in copy_ranges(job, ranges))

    def audit(level: Level) -> None:
        found = begin(Sides(topic, mirror), AuditRequest(level=level))
        found.add(spark_job.do_group(found.job, found.work))
        assert found.exit_code == 0
        if level is not Level.LEDGER:
            counted = [
                partition_audit.recount.tally.counted
                for partition_audit in found.partitions.values()
                if partition_audit.recount
            ]
            assert sum(counted) == records
        if level.compares:
            assert (
                sum(partition_audit.records for partition_audit in found.partitions.values())
                == records
            )

    with tempfile.TemporaryDirectory() as folder:
        mirror = _settings(Path(folder), topic, source, destination, topics)
        spent = AuditCost(
            spec.name,
            sum(extent.size_bytes for extent in extents),
            _spent(copy),
            _spent(lambda: audit(Level.LEDGER)),
            _spent(lambda: audit(Level.RECOUNT)),
            _spent(lambda: audit(Level.FULL)),
        )
    clusters.delete_topics(source, topic)
    clusters.delete_topics(destination, topic)
    return spent


def _settings(
    folder: Path, name: str, source: Cluster, destination: Cluster, topics: set[str]
) -> Mirror:
    path = folder / "relay.yaml"
    section = commands.mirror(source, destination, *sorted(topics))
    path.write_text(yaml.safe_dump({"mirrors": {name: section}}))
    return load(path).mirror(name)


def _spent(measured: Callable[[], None]) -> Spent:
    began, cpu = time.monotonic(), time.process_time()
    measured()
    return Spent(time.monotonic() - began, time.process_time() - cpu)


if __name__ == "__main__":
    main(sys.argv[1:])
