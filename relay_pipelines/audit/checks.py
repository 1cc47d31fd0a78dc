"""An audit inside a Dagster run: its HTML page, and the check `audit` of each topic.

Jobs report most evaluations: see `audit/jobs.py`.
"""

import datetime as dt
import multiprocessing
import os
import shlex
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import dagster as dg

from relay_pipelines.audit.audit import Audit, PartitionAudit, begin
from relay_pipelines.audit.request import AuditRequest, Level
from relay_pipelines.errors import DIFFERENCE, RelayError, TamperedError
from relay_pipelines.finding import Severity, texts
from relay_pipelines.orchestration import naming
from relay_pipelines.orchestration.check_builder import CheckResult, build_topic_checks, changed
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


def run(
    context: dg.OpExecutionContext | dg.AssetCheckExecutionContext,
    kafka: KafkaResource,
    session: Session,
    stop: Stop,
    path: str,
    request: AuditRequest,
) -> Audit:
    """Audit one mirror.

    Args:
        path: the mirror's name in Dagster: after the key prefix.
        session: returns the Spark session; called only if there is much to read.

    Raises:
        RelayError: a cluster does not answer, or the ledger does not have what is to be audited.
    """
    from relay_pipelines.audit import spark_job  # pyarrow and Spark are slow to import

    _lower_priority()
    clock, name = kafka.clock, path.rpartition("/")[2]
    began = clock.monotonic()
    audit = begin(kafka.sides(name), request)
    total, done, logged = sum(part.size_bytes for part in audit.work), 0, clock.monotonic()
    where = plural(len(audit.partitions), "topic-partition")
    context.log.info("%s, level %s: %s of %s", audit.mirror, audit.level, size(total), where)
    results = spark_job.read(audit, session, f"relay-audit-{context.run.run_id}")
    with closing(results), _interrupted(stop):
        for size_bytes in results:
            done += size_bytes
            if stop():
                break
            if clock.monotonic() - logged > _LOG_SECONDS:
                logged = clock.monotonic()
                context.log.info("read %s of %s", size(done), size(total))
    audit.seconds = clock.monotonic() - began
    return audit


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


def _lower_priority() -> None:
    """Leave the processor to copies on this machine, if this process is that of a run.

    What it starts, Spark among it, inherits the priority.
    """
    if multiprocessing.parent_process() is not None:
        os.nice(_NICE)


def write_page(
    context: dg.OpExecutionContext | dg.AssetCheckExecutionContext, audit: Audit, now_ms: int
) -> Path | None:
    """Write the HTML page of a run where Dagster keeps its files, and delete the oldest ones.

    Returns:
        the page; None if it could not be written.
    """
    from relay_pipelines.audit import page  # jinja2 is slow to import

    folder = Path(context.instance.storage_directory(), "audits")
    path = folder / f"{context.run.run_id}.html"
    try:
        folder.mkdir(parents=True, exist_ok=True)
        path.write_text(page.page([audit], now_ms), encoding="utf-8")
        pages = sorted(folder.glob("*.html"), key=lambda page: page.stat().st_mtime_ns)
        for old in pages[:-KEPT_PAGES]:
            old.unlink(missing_ok=True)
    except OSError as error:
        context.log.warning("the HTML page of the audit could not be written: %s", error)
        return None
    return path


def numbers(audit: Audit, page: Path | None = None) -> dict[str, Any]:
    """Return what Dagster plots of an audit, or of a part of it, and where its page is."""
    partitions = audit.partitions.values()
    chunks = sum(partition.copied_chunks for partition in partitions)
    compared = sum(partition.compared_chunks for partition in partitions)
    seen = audit.verdict.tally
    shown: dict[str, Any] = {
        "level": str(audit.level),
        "seconds": round(audit.seconds, 3),
        "chunks": chunks,
        "chunks compared": compared,
        "covered (%)": round(100 * compared / chunks, 3) if chunks else 0.0,
        "read (bytes)": sum(partition.read_bytes for partition in partitions),
        "records": seen.records,
        "compared by content (records)": seen.by_content,
        "compared by count (records)": seen.by_count,
        "not verified (records)": seen.unverified,
        "differences": sum(partition.differing for partition in partitions),
    }
    return shown if page is None else shown | {"page": dg.MetadataValue.path(page)}


_ERROR, _WARN = dg.AssetCheckSeverity.ERROR, dg.AssetCheckSeverity.WARN
_PARTITION = "dagster/partition"
_REPEATED = "repeated from"


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
        request = scheduled_request(settings, topics=tuple(key.asset_key.path[-1] for key in keys))
        request = replace(request, window=context.run.tags.get(_PARTITION, ""))

        def look(stop: Stop, session: Session) -> Iterator[dg.AssetCheckEvaluation]:
            try:
                audit = run(context, kafka, session, stop, lane.path, request)
            except RelayError as error:
                yield from not_audited(lane.path, request, error, kafka.clock)
                return
            page = write_page(context, audit, kafka.clock.now_ms())
            yield from evaluations(lane.path, audit, page, kafka)

        pyspark = spark_of(context, lane.prefix)
        yield from stoppable(context.op_execution_context, pyspark, look)

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


def evaluations(
    path: str, audit: Audit, page: Path | None, kafka: KafkaResource
) -> Iterator[dg.AssetCheckEvaluation]:
    """Yield the result of each topic.

    Args:
        page: where the whole audit is shown, if it is.
    """
    for topic, of_topic in audit.by_topic.items():
        code = of_topic.exit_code
        result = CheckResult(
            not code,
            _words(of_topic),
            _metadata(of_topic, page, kafka.config_path),
            _ERROR if code == DIFFERENCE else _WARN,
        )
        yield _evaluation(path, audit.request, topic, kafka.clock, result)


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


def _words(audit: Audit) -> str:
    """Say what differs or could not be read; otherwise the verdict, and what is to be noted."""
    if not audit.partitions:
        return "the ledger has no copies of this topic in what was to be audited"
    findings = audit.findings
    for severity in (Severity.DIFFERENCE, Severity.ERROR):
        if wrong := texts(findings, severity):
            return wrong[0] + (f" (and {len(wrong) - 1} more)" if wrong[1:] else "")
    notes = [*texts(findings, Severity.WARNING), *texts(findings, Severity.OK)]
    return "; ".join([str(audit.verdict), *notes[:3]])


def _metadata(audit: Audit, page: Path | None, config_path: str) -> dict[str, Any]:
    request = audit.request
    shown = {"verdict": str(audit.verdict.state), **numbers(audit, page)}
    if request.level is Level.SAMPLE:
        shown |= {"share (%)": request.share, "seed": request.seed}
    if differing := [partition for partition in audit.partitions.values() if partition.differences]:
        # a record says more than a count
        first = min(differing, key=lambda each: each.first_difference is None)
        shown |= _first_difference(first)
        shown["command that shows more"] = command(audit.mirror, request, first, config_path)
    return shown


def _first_difference(partition_audit: PartitionAudit) -> dict[str, Any]:
    tp, first = partition_audit.topic_partition, partition_audit.first_difference
    more: dict[str, Any] = {}
    if first is None:
        foreign = partition_audit.counted_so_far.first_foreign
        where = partition_audit.destination if foreign else partition_audit.coverage.range
        said = f"{where}: {partition_audit.differences[0].text}"
        if foreign:
            more["offset"] = foreign.foreign_at
    else:
        result, difference = first
        record = difference.source or difference.destination
        offset = result.chunk.source.start if record is None else record.offset
        side = "" if difference.source or record is None else " (destination)"
        fields = ", ".join(difference.fields)
        said = f"{tp} at offset {offset}{side}: {fields}; {difference.what}"
        names = "field", "source", "destination"
        rows = [dg.TableRecord(dict(zip(names, row, strict=True))) for row in difference.rows]
        more |= {"offset": offset, "field": fields, "both sides": dg.MetadataValue.table(rows)}
    more = {"topic": tp.topic, "partition": tp.partition, **more}
    return {"first difference": said} | {f"first difference: {k}": v for k, v in more.items()}


def command(mirror: str, request: AuditRequest, audited: PartitionAudit, config: str) -> str:
    """Return the command that shows the first difference on both sides."""
    tp, first = audited.topic_partition, audited.first_difference
    words = ["relay", "--config", config, "audit", "--mirror", mirror]
    words += ["--topic", tp.topic, "--partition", str(tp.partition)]
    if first is not None:
        source = first[0].chunk.source
        words += ["--offsets", f"{source.start}:{source.end}"]
    elif request.window:
        words += ["--window", request.window]
    return shlex.join([*words, "--level", str(Level.FULL)])
