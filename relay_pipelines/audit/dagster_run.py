"""An audit inside a Dagster run, and its HTML page. What is found goes into the check `audit`."""

import multiprocessing
import os
from collections.abc import Collection, Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path

import dagster as dg

from relay_pipelines.audit import verdict
from relay_pipelines.audit.audit import Audit, PartitionAudit, begin
from relay_pipelines.audit.coverage import Kind
from relay_pipelines.audit.request import AuditRequest
from relay_pipelines.errors import RelayError
from relay_pipelines.model import TopicPartition
from relay_pipelines.orchestration.stopping import Session, Stop
from relay_pipelines.output.formatting import plural, size
from relay_pipelines.resources import KafkaResource

KEPT_PAGES = 50
_NICE = 10
_LOG_SECONDS = 10.0
_NOT_COPIED = (Kind.MISSING, Kind.NOT_YET)


@dataclass(slots=True)
class AuditReport:
    """What a run found.

    Args:
        path: the mirror's name in Dagster: after the key prefix.
        page: the HTML page; None if it could not be written.
    """

    path: str
    audit: Audit
    page: Path | None = None

    def of(self, topic: str) -> dict[TopicPartition, PartitionAudit]:
        """What was found in the topic-partitions of a topic."""
        found = self.audit.partitions.items()
        return {at: each for at, each in found if at.topic == topic}

    @property
    def topics(self) -> list[str]:
        """The topics that were asked for, or that have copies in what was asked for."""
        return sorted(self.audit.request.topics or {at.topic for at in self.audit.partitions})


def run(
    context: dg.OpExecutionContext | dg.AssetCheckExecutionContext,
    kafka: KafkaResource,
    session: Session,
    stop: Stop,
    path: str,
    request: AuditRequest,
) -> AuditReport:
    """Audit one mirror.

    Args:
        path: as of `AuditReport`.
        session: returns the Spark session; called only if there is much to read.

    Raises:
        RelayError: a cluster does not answer, or the ledger does not have what is to be audited.
    """
    clock, name = kafka.clock, path.rpartition("/")[2]
    began = clock.monotonic()
    audit = begin(name, kafka.mirror(name), request, clock)
    _read(context, kafka, session, stop, audit)
    audit.seconds = clock.monotonic() - began
    return AuditReport(path, audit)


def _read(
    context: dg.OpExecutionContext | dg.AssetCheckExecutionContext,
    kafka: KafkaResource,
    session: Session,
    stop: Stop,
    audit: Audit,
) -> None:
    from relay_pipelines.audit import spark_job  # pyarrow and Spark are slow to import

    total, done, logged = sum(each.size_bytes for each in audit.work), 0, kafka.clock.monotonic()
    where = plural(len(audit.partitions), "topic-partition")
    context.log.info("%s, level %s: %s of %s", audit.mirror, audit.level, size(total), where)
    results = spark_job.read(audit, session, f"relay-audit-{context.run.run_id}")
    with closing(results), _interrupted(stop):
        for result in results:
            done += result.size_bytes
            if stop():
                return
            if kafka.clock.monotonic() - logged > _LOG_SECONDS:
                logged = kafka.clock.monotonic()
                context.log.info("read %s of %s", size(done), size(total))


@contextmanager
def _interrupted(stop: Stop) -> Iterator[None]:
    """Raise that the run was interrupted if it was: the signal may have ended its Spark, too."""
    try:
        yield
    except RelayError:
        if not stop():
            raise
    if stop():
        raise dg.DagsterExecutionInterruptedError


def give_way() -> None:
    """Leave the processor to copies on this machine, if this process is that of a run.

    What it starts, Spark among it, inherits the priority.
    """
    if multiprocessing.parent_process() is not None:
        os.nice(_NICE)


def write_page(
    context: dg.OpExecutionContext | dg.AssetCheckExecutionContext,
    reports: Sequence[AuditReport],
    now_ms: int,
) -> None:
    """Write the HTML page of a run where Dagster keeps its files, and delete the oldest ones."""
    from relay_pipelines.audit import page  # jinja2 is slow to import

    folder = Path(context.instance.storage_directory(), "audits")
    path = folder / f"{context.run.run_id}.html"
    try:
        folder.mkdir(parents=True, exist_ok=True)
        path.write_text(page.page([report.audit for report in reports], now_ms))
        pages = sorted(folder.glob("*.html"), key=lambda page: page.stat().st_mtime_ns)
        for old in pages[:-KEPT_PAGES]:
            old.unlink(missing_ok=True)
    except OSError as error:
        context.log.warning("the HTML page of the audit could not be written: %s", error)
        return
    for report in reports:
        report.page = path


def numbers(partitions: Collection[PartitionAudit]) -> dict[str, int | float]:
    """Return what Dagster plots of an audit, or of a part of it."""
    total, compared, differing = _chunks(partitions)
    seen = verdict.total(each.records_seen for each in partitions)
    size_bytes = sum(result.chunk.size_bytes for each in partitions for result in each.results)
    size_bytes += sum(part.size_bytes for each in partitions for part in each.counted)
    return {
        "chunks": total,
        "chunks compared": compared,
        "covered (%)": round(100 * compared / total, 3) if total else 0.0,
        "read (bytes)": size_bytes,
        "records": seen.records,
        "compared by content (records)": seen.by_content,
        "compared by count (records)": seen.by_count,
        "not verified (records)": seen.unverified,
        "differences": differing,
    }


def _chunks(partitions: Collection[PartitionAudit]) -> tuple[int, int, int]:
    """Return how many chunks there are, how many were compared, and what differs."""
    total, compared, differing = 0, 0, 0
    for each in partitions:
        entries = [s for s in each.coverage.stretches if not set(_NOT_COPIED) & s.counts.keys()]
        total += len(entries)
        results = [result for result in each.results if not result.unread and not result.error]
        # all chunks of a compacted topic-partition are compared as one
        whole = any(result.chunk.is_compacted for result in results)
        compared += len(entries) if whole else len(results)
        chunks = sum(result.difference is not None for result in results)
        # what the ledger or the recount say besides
        differing += chunks + len(each.problems) - bool(chunks)
    return total, compared, differing
