"""Whether the destination is what the source was, as the last audit of a topic has found.

Jobs report most evaluations: see `audit/jobs.py`.

An audit inside a Dagster run, and its HTML page. What is found goes into the check `audit`.
"""

import datetime as dt
import multiprocessing
import os
import shlex
from collections.abc import Collection, Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import dagster as dg

from relay_pipelines.audit import verdict
from relay_pipelines.audit.audit import Audit, PartitionAudit, begin, verdict_of
from relay_pipelines.audit.comparison import Difference
from relay_pipelines.audit.coverage import OffsetKind
from relay_pipelines.audit.request import AuditRequest, Level
from relay_pipelines.audit.verdict import Verdict
from relay_pipelines.errors import DIFFERENCE, RelayError, TamperedError
from relay_pipelines.finding import Finding, Severity, texts
from relay_pipelines.model import TopicPartition
from relay_pipelines.orchestration import naming
from relay_pipelines.orchestration.check_builder import (
    CheckResult,
    build_topic_checks,
    changed,
)
from relay_pipelines.orchestration.lane import Lane
from relay_pipelines.orchestration.run_log import without_noise
from relay_pipelines.orchestration.stopping import Session, Stop, stoppable
from relay_pipelines.output.formatting import plural, size
from relay_pipelines.protocol.clock import Clock
from relay_pipelines.resources import KafkaResource, spark_of
from relay_pipelines.settings import Mirror
from relay_pipelines.settings.models import AuditSettings

KEPT_PAGES = 50
_NICE = 10
_LOG_SECONDS = 10.0
_NOT_COPIED = (OffsetKind.MISSING, OffsetKind.NOT_YET)


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
        return {tp: partition_audit for tp, partition_audit in found if tp.topic == topic}

    @property
    def topics(self) -> list[str]:
        """The topics that were asked for, or that have copies in what was asked for."""
        return sorted(self.audit.request.topics or {tp.topic for tp in self.audit.partitions})


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
    audit = begin(kafka.sides(name), request)
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

    total, done, logged = sum(part.size_bytes for part in audit.work), 0, kafka.clock.monotonic()
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


def lower_priority() -> None:
    """Leave the processor to copies on this machine, if this process is that of a run.

    What it starts, Spark among it, inherits the priority.
    """
    if multiprocessing.parent_process() is not None:
        os.nice(_NICE)


def write_page(
    context: dg.OpExecutionContext | dg.AssetCheckExecutionContext,
    report: AuditReport,
    now_ms: int,
) -> None:
    """Write the HTML page of a run where Dagster keeps its files, and delete the oldest ones."""
    from relay_pipelines.audit import page  # jinja2 is slow to import

    folder = Path(context.instance.storage_directory(), "audits")
    path = folder / f"{context.run.run_id}.html"
    try:
        folder.mkdir(parents=True, exist_ok=True)
        text = page.page([report.audit], now_ms)
        path.write_text(text, encoding="utf-8")
        pages = sorted(folder.glob("*.html"), key=lambda page: page.stat().st_mtime_ns)
        for old in pages[:-KEPT_PAGES]:
            old.unlink(missing_ok=True)
    except OSError as error:
        context.log.warning("the HTML page of the audit could not be written: %s", error)
        return
    report.page = path


def numbers(partitions: Collection[PartitionAudit]) -> dict[str, int | float]:
    """Return what Dagster plots of an audit, or of a part of it."""
    total, compared, differing = _chunks(partitions)
    seen = verdict.total(partition_audit.records_seen for partition_audit in partitions)
    size_bytes = sum(
        result.chunk.size_bytes
        for partition_audit in partitions
        for result in partition_audit.results
    )
    size_bytes += sum(
        part.size_bytes for partition_audit in partitions for part in partition_audit.counted
    )
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
    for partition_audit in partitions:
        entries = [
            s for s in partition_audit.coverage.stretches if not set(_NOT_COPIED) & s.counts.keys()
        ]
        total += len(entries)
        results = [
            result for result in partition_audit.results if not result.unread and not result.error
        ]
        # all chunks of a compacted topic-partition are compared as one
        whole = any(result.chunk.is_compacted for result in results)
        compared += len(entries) if whole else len(results)
        chunks = sum(result.difference is not None for result in results)
        # what the ledger or the recount say besides
        differing += chunks + len(_differences(partition_audit)) - bool(chunks)
    return total, compared, differing


_ERROR, _WARN = dg.AssetCheckSeverity.ERROR, dg.AssetCheckSeverity.WARN
_PARTITION = "dagster/partition"
_REPEATED = "repeated from"
_FIELDS = ("timestamp_ms", "key", "value", "headers")

Found = dict[TopicPartition, PartitionAudit]


def build(lane: Lane, mirror: Mirror) -> list[dg.AssetChecksDefinition]:
    """The checks that people run from the UI.

    They have no pool: a run that materialises a topic executes them, too, and must not wait.
    """
    settings = mirror.audit

    def body(
        context: dg.AssetCheckExecutionContext,
        kafka: KafkaResource,
        keys: Sequence[dg.AssetCheckKey],
    ) -> Iterator[dg.AssetCheckEvaluation]:
        if context.run.asset_selection:
            without_noise(context.log)  # of topics that were never audited
            yield from last_evaluations(context.instance, keys)
            return
        lower_priority()
        request = scheduled_request(settings, topics=tuple(key.asset_key.path[-1] for key in keys))
        request = replace(request, window=context.run.tags.get(_PARTITION, ""))

        def audit(stop: Stop, session: Session) -> Iterator[dg.AssetCheckEvaluation]:
            try:
                report = run(context, kafka, session, stop, lane.path, request)
            except RelayError as error:
                yield from not_audited(lane.path, request, error, kafka.clock)
                return
            write_page(context, report, kafka.clock.now_ms())
            yield from evaluations(report, kafka)

        pyspark = spark_of(context, lane.prefix)
        yield from stoppable(context.op_execution_context, pyspark, audit)

    description = (
        "The destination is what the source was, by the last audit. Executed here, it audits all"
        f" that the ledger has, at the level {settings.level}; launch the job `audit` for a window,"
        " dates and other levels."
    )
    return build_topic_checks(naming.AUDIT, description, lane, mirror, body, uses_spark=True)


def scheduled_request(settings: AuditSettings, topics: tuple[str, ...] = ()) -> AuditRequest:
    """Return what relay.yaml says that Dagster audits by itself."""
    return AuditRequest(
        topics=topics,
        level=Level(settings.level),
        share=settings.share * 100,
        strict=settings.strict,
    )


def last_evaluations(
    instance: dg.DagsterInstance, keys: Sequence[dg.AssetCheckKey]
) -> Iterator[dg.AssetCheckEvaluation]:
    """Repeat the last result of each check in a run that copies, and say from when it is.

    Dagster executes all checks of an asset that it materialises. An audit would hold the copy up,
    and no evaluation at all would hide the last one.
    """
    for key in keys:
        history = instance.event_log_storage.get_asset_check_execution_history(key, limit=5)
        for record in history:
            last = record.evaluation
            if record.event is not None and isinstance(last, dg.AssetCheckEvaluation):
                yield _repeated(last, record.event.timestamp)
                break


def _repeated(last: dg.AssetCheckEvaluation, timestamp: float) -> dg.AssetCheckEvaluation:
    if _REPEATED in last.metadata:
        return last
    time = dt.datetime.fromtimestamp(timestamp, dt.UTC).isoformat(timespec="seconds")
    return changed(
        last,
        description=f"{last.description} ({_REPEATED} {time})",
        metadata={**last.metadata, _REPEATED: time},
    )


def evaluations(report: AuditReport, kafka: KafkaResource) -> Iterator[dg.AssetCheckEvaluation]:
    """Yield the result of each topic."""
    for topic in report.topics:
        found = report.of(topic)
        verdict = verdict_of(report.audit.level, found.values())
        code = verdict.exit_code(strict=report.audit.request.strict)
        yield _evaluation(
            report.path,
            report.audit.request,
            topic,
            kafka.clock,
            CheckResult(
                bool(found) and not code,
                _not_copied(found) or _words(verdict, found),
                _metadata(report, verdict, found, kafka.config_path),
                _ERROR if code == DIFFERENCE else _WARN,
            ),
        )


def not_audited(
    path: str, request: AuditRequest, error: RelayError, clock: Clock
) -> Iterator[dg.AssetCheckEvaluation]:
    """Yield a result for each topic of an audit that could not be made.

    It is a warning, unless the ledger itself is not what was written: then no entry of the mirror
    can be trusted.
    """
    is_tampered = isinstance(error, TamperedError)
    for topic in request.topics:
        yield _evaluation(
            path,
            request,
            topic,
            clock,
            CheckResult(
                passed=False,
                description=str(error),
                metadata={"level": str(request.level)},
                severity=_ERROR if is_tampered else _WARN,
            ),
        )


def _evaluation(
    path: str, request: AuditRequest, topic: str, clock: Clock, result: CheckResult
) -> dg.AssetCheckEvaluation:
    """Return an evaluation with the window as its partition, or the time.

    Without a partition, the next window would make the check "not evaluated".
    """
    now = dt.datetime.fromtimestamp(clock.now_ms() / 1000, dt.UTC)
    partition = request.window or now.isoformat(timespec="milliseconds")
    return result.evaluation(naming.topic_check(path, topic, naming.AUDIT), partition)


def _first(lines: list[str]) -> str:
    more = len(lines) - 1
    return f"{lines[0]} (and {more} more)" if more > 0 else "".join(lines)


def _not_copied(found: Found) -> str:
    return "" if found else "the ledger has no copies of this topic in what was to be audited"


def _words(verdict: Verdict, found: Found) -> str:
    """Say what differs or could not be read; otherwise the verdict, and what is to be noted."""
    findings = [
        finding for partition_audit in found.values() for finding in partition_audit.findings
    ]
    for severity in (Severity.DIFFERENCE, Severity.ERROR):
        if wrong := texts(findings, severity):
            return _first(wrong)
    notes = [*texts(findings, Severity.WARNING), *texts(findings, Severity.OK)]
    return "; ".join([str(verdict), *notes[:3]])


def _metadata(
    report: AuditReport, verdict: Verdict, found: Found, config_path: str
) -> dict[str, Any]:
    audit, request = report.audit, report.audit.request
    shown: dict[str, Any] = {"verdict": str(verdict.state), "level": str(audit.level)}
    shown["seconds"] = round(audit.seconds, 3)
    if request.level is Level.SAMPLE:
        shown |= {"share (%)": request.share, "seed": request.seed}
    shown |= numbers(found.values())
    differing = [
        (tp, partition_audit)
        for tp, partition_audit in found.items()
        if _differences(partition_audit)
    ]
    if differing:
        # a record says more than a count
        tp, partition_audit = min(differing, key=lambda one: one[1].first_difference is None)
        shown |= _first_difference(tp, partition_audit)
        shown["command that shows more"] = command(
            audit.mirror, request, tp, partition_audit, config_path
        )
    if report.page is not None:
        shown["page"] = dg.MetadataValue.path(report.page)
    return shown


def _first_difference(tp: TopicPartition, partition_audit: PartitionAudit) -> dict[str, Any]:
    first = partition_audit.first_difference
    if first is None or first.difference is None:
        recount = partition_audit.counted_so_far
        foreign = None if recount is None else recount.first_foreign
        offset = None if foreign is None else foreign.foreign_at
        where = partition_audit.coverage.range if offset is None else partition_audit.destination
        place = {} if offset is None else {"first difference: offset": offset}
        return {
            "first difference": f"{where}: {_differences(partition_audit)[0].text}",
            "first difference: topic": tp.topic,
            "first difference: partition": tp.partition,
            **place,
        }
    source, destination = first.difference.source, first.difference.destination
    record = source or destination
    offset = first.chunk.source.start if record is None else record.offset
    fields = ", ".join(_differing(first.difference))
    side = "" if source or not destination else " (destination)"
    return {
        "first difference": f"{tp} at offset {offset}{side}: {fields}; {first.difference.what}",
        "first difference: topic": tp.topic,
        "first difference: partition": tp.partition,
        "first difference: offset": offset,
        "first difference: field": fields,
        "first difference: both sides": dg.MetadataValue.table(
            [
                dg.TableRecord(
                    {
                        "field": name,
                        "source": _shown(source, name),
                        "destination": _shown(destination, name),
                    }
                )
                for name in ("offset", *_FIELDS)
            ]
        ),
    }


def _differences(partition_audit: PartitionAudit) -> list[Finding]:
    return [each for each in partition_audit.findings if each.severity is Severity.DIFFERENCE]


def _differing(difference: Difference) -> list[str]:
    """Return the fields in which the first records differ; the record if one side has none."""
    one, other = difference.source, difference.destination
    if one is None or other is None:
        return ["record"]
    return [name for name in _FIELDS if getattr(one, name) != getattr(other, name)] or ["record"]


def _shown(record: Any, name: str) -> str:
    return "no record" if record is None else str(getattr(record, name))


def command(
    mirror: str,
    request: AuditRequest,
    tp: TopicPartition,
    partition_audit: PartitionAudit,
    config: str,
) -> str:
    """Return the command that shows the first difference on both sides."""
    first = partition_audit.first_difference
    words = ["relay", "--config", config, "audit", "--mirror", mirror]
    words += ["--topic", tp.topic, "--partition", str(tp.partition)]
    if first is not None:
        words += ["--offsets", f"{first.chunk.source.start}:{first.chunk.source.end}"]
    elif request.window:
        words += ["--window", request.window]
    return shlex.join([*words, "--level", str(Level.FULL)])
