"""What a window's copy tells Dagster: materialisations, and the results of checks.

Metadata of a topic's materialisation: numbers to plot, and tables of its topic-partitions.

Every key of a number names its unit: Dagster plots all numbers of one key.

Whether the destination holds exactly the records of a window.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import dagster as dg

from relay_pipelines.audit.recount import Recount
from relay_pipelines.audit.verdict import State, Verdict
from relay_pipelines.checks import topic_configs, upstreams
from relay_pipelines.finding import Severity, texts
from relay_pipelines.model import OffsetRange, Skipped
from relay_pipelines.orchestration import naming, window_log
from relay_pipelines.orchestration.check_builder import CheckResult, check_spec
from relay_pipelines.orchestration.lane import Lane
from relay_pipelines.orchestration.shortcuts import Event
from relay_pipelines.output.formatting import count, plural, seconds, size
from relay_pipelines.windows.window_run import TopicReport, WindowReport


def of_window(run_id: str, lane: Lane, report: WindowReport) -> Iterator[Event]:
    """Yield what a window's copy says of its topics, whether or not their assets are loaded.

    A topic that is incomplete, or whose offsets were superseded, has no materialisation and fails
    its check; the next window copies the rest.
    """
    for topic in report.topics:
        if topic.is_complete:
            yield dg.AssetMaterialization(
                naming.mirrored_asset(lane.path, topic.topic),
                partition=report.frozen.key,
                metadata=of_topic(lane, report, topic, run_id),
            )
        key = naming.topic_check(lane.path, topic.topic, naming.MESSAGE_COUNTS)
        yield result(topic).evaluation(key, report.frozen.key)


def covered(run_id: str, lane: Lane, topic: str, key: str, later: WindowReport) -> Iterator[Event]:
    """Yield what a window that failed for a topic says when a later one has counted all of it.

    It has no numbers: those of the later window count its records.
    """
    words = f"window {later.frozen.key} has copied and counted all of it"
    yield dg.AssetMaterialization(
        naming.mirrored_asset(lane.path, topic),
        partition=key,
        metadata={
            "summary": words,
            "plan": dg.MetadataValue.asset(lane.windows_asset),
            "run": dg.MetadataValue.dagster_run(run_id),
        },
    )
    check = naming.topic_check(lane.path, topic, naming.MESSAGE_COUNTS)
    yield CheckResult(passed=True, description=words).evaluation(check, key)


def of_lane(
    context: dg.OpExecutionContext, lane: Lane, report: WindowReport, *, all_topics: bool
) -> Iterator[dg.AssetCheckEvaluation]:
    """Yield what the copy found out about upstreams, and configurations if it saw all topics."""
    for upstream, why in report.result.diverged.items():
        context.log.error("upstream %s is in quarantine: %s", upstream, why)
        key = naming.upstream_check(lane.path, upstream, naming.DIVERGENCE)
        yield upstreams.divergence(why).evaluation(key)
    if all_topics:
        key = lane.check(naming.CONFIGS)
        yield topic_configs.result(report.differences).evaluation(key)


_COUNTS = dg.TableSchema(
    columns=[
        dg.TableColumn("partition", "int"),
        *map(dg.TableColumn, ("committed", "counted", "result", "source offsets")),
    ]
)
"""Without descriptions, which Dagster would keep with each event: docs/reference has them."""
_DETAILS = ("partition", "upstream", "reencoded", "left out", "destination offsets", "source end")
_REASONS = {
    Skipped.CONTROL: "transaction markers",
    Skipped.ABORTED: "aborted",
    Skipped.COMPACTION_GAP: "compacted away",
    Skipped.FILTERED: "filtered",
    Skipped.QUARANTINED: "quarantined",
    Skipped.LOST: "lost",
}


def of_topic(
    lane: Lane, window: WindowReport, topic: TopicReport, run_id: str
) -> Mapping[str, Any]:
    """The metadata of one topic's materialisation; docs/reference/metrics.md has the keys."""
    copied, spent = topic.totals.records, topic.copying_seconds
    latency_ms = topic.totals.latency_ms
    fields = {
        "summary": _summary(topic),
        "records": topic.records,
        "copied by this run (records)": copied,
        "copied by this run (bytes)": topic.totals.size_bytes,
        "copying (seconds)": round(spent, 3) if copied else None,
        "copying (records per second)": round(copied / spent, 1) if copied and spent else None,
        "latency (seconds)": None if latency_ms is None else latency_ms / 1000,
        "lag before (records)": topic.lag_before,
        "lag after (records)": topic.lag_after,
        "lag after (seconds)": topic.lag_after_seconds,
        "source end (offsets)": sum(topic.end_offsets.values()),
        "source rate (records per second)": None
        if topic.source_rate is None
        else round(topic.source_rate, 1),
        "first record": _time(topic.first_ms),
        "last record": _time(topic.last_ms),
        "upstream": ", ".join(sorted(topic.totals.upstreams)) or window.upstream,
        "code": ", ".join(sorted(topic.totals.code)) or None,
        "topic-partitions": counts(topic),
        "topic-partitions, details": _details(topic),
        "Spark": window.result.spark or None,
        "plan": dg.MetadataValue.asset(lane.windows_asset),
        "run": dg.MetadataValue.dagster_run(run_id),
    }
    return {key: value for key, value in fields.items() if value is not None}


def counts(topic: TopicReport) -> dg.TableMetadataValue:
    """A row per topic-partition of the window: few columns, because Dagster cuts wide tables."""
    return _table(
        _COUNTS,
        [_count(planned, topic.recounts.get(planned.topic_partition)) for planned in topic.ranges],
    )


def _summary(topic: TopicReport) -> str:
    """The first line for people: Dagster shows a number without separators."""
    parts = [f"{plural(topic.records, 'record')} of {plural(len(topic.ranges), 'topic-partition')}"]
    if topic.totals.records:
        parts.append(f"{size(topic.totals.size_bytes)} copied in {seconds(topic.copying_seconds)}")
    if topic.lag_after:
        parts.append(f"{plural(topic.lag_after, 'record')} wait")
    return "; ".join(parts)


def _details(topic: TopicReport) -> dg.MarkdownMetadataValue:
    """A row per topic-partition, as text: with each event, a table stores all its columns again."""
    rows = [
        _detail(counted, topic.end_offsets.get(tp, 0))
        for tp, counted in sorted(topic.recounts.items())
    ]
    lines = [_DETAILS, ["---"] * len(_DETAILS), *rows]
    return dg.MetadataValue.md("\n".join(f"| {' | '.join(line)} |" for line in lines))


def _table(schema: dg.TableSchema, rows: list[dict[str, str | int]]) -> dg.TableMetadataValue:
    return dg.MetadataValue.table([dg.TableRecord(row) for row in rows], schema=schema)


def _time(ms: int | None) -> dg.TimestampMetadataValue | None:
    return None if ms is None else dg.MetadataValue.timestamp(ms / 1000)


def _count(planned: OffsetRange, recount: Recount | None) -> dict[str, str | int]:
    return {
        "partition": planned.topic_partition.partition,
        "committed": count(recount.records if recount else 0),
        "counted": count(recount.tally.counted if recount else 0),
        "result": _result(recount) if recount else "",
        "source offsets": f"[{planned.start}, {planned.end})",
    }


def _detail(counted: Recount, source_end: int) -> Sequence[str]:
    left_out = [
        f"{count(counted.skipped[reason])} {name}"
        for reason, name in _REASONS.items()
        if counted.skipped[reason]
    ]
    return (
        str(counted.range.topic_partition.partition),
        ", ".join(sorted({entry.upstream for entry in counted.coverage.covering})),
        count(sum(entry.reencoded for entry in counted.coverage.covering)),
        ", ".join(left_out),
        f"[{counted.scanned.start}, {counted.scanned.end})" if counted.scanned else "",
        count(source_end),
    )


def _result(counted: Recount) -> str:
    if counted.problems:
        return "; ".join(counted.problems)
    done = f"superseded: {count(counted.superseded)} offsets" if counted.superseded else "complete"
    return "; ".join([done, *counted.tally.not_verified])


_DESCRIPTION = (
    "The ledger accounts for every source offset of the window, and the destination, read again,"
    " holds exactly those records."
)


def spec(mirror: str, topic: str) -> dg.AssetCheckSpec:
    """The check of one topic: blocking, and part of the run that copies."""
    return check_spec(
        naming.topic_check(mirror, topic, naming.MESSAGE_COUNTS),
        _DESCRIPTION,
        blocking=True,
        partitions=window_log.windows(mirror, topic),
    )


def result(topic: TopicReport) -> CheckResult:
    """What the recount of a topic says.

    A warning if retention at the destination is why records are gone, or cannot be verified.
    """
    verdict = topic.verdict  # once: it adds up all recounts
    passes = not texts(topic.findings, Severity.WARNING) and not verdict.exit_code()
    is_error = passes or verdict.state in {State.DIFFERS, State.FAILED}
    return CheckResult(
        passes,
        _words(topic, verdict),
        _metadata(topic, verdict, passes=passes),
        dg.AssetCheckSeverity.ERROR if is_error else dg.AssetCheckSeverity.WARN,
    )


def _words(topic: TopicReport, verdict: Verdict) -> str:
    if topic.failure:
        return topic.failure
    findings = [*map(str, topic.findings)]
    if verdict.state is State.DIFFERS:
        return "; ".join(findings)
    offsets = plural(sum(map(len, topic.ranges)), "source offset")
    more = topic.recorded - topic.records
    beyond = [f"its chunks reach beyond the window, with {plural(more, 'record')}"] if more else []
    return "; ".join([str(verdict), *findings, f"the ledger accounts for {offsets}", *beyond])


def _metadata(topic: TopicReport, verdict: Verdict, *, passes: bool) -> dict[str, Any]:
    """What was compared; of what is wrong or unusual, only what there is."""
    seen = verdict.tally
    # where all is well, the materialisation of the window has the same table
    table = {} if passes and topic.is_complete else {"topic-partitions": counts(topic)}
    unusual = {
        "compared by count (records)": seen.by_count,
        "not verified (records)": seen.unverified,
        "of other windows (records)": topic.recorded - topic.records,
        "superseded (offsets)": sum(count.superseded for count in topic.recounts.values()),
        "written by others (records)": sum(
            count.tally.foreign for count in topic.recounts.values()
        ),
    }
    return {
        "verdict": str(verdict.state),
        "committed (records)": topic.records,
        "counted (records)": sum(count.tally.counted for count in topic.recounts.values()),
        "compared by content (records)": seen.by_content,
        **{name: number for name, number in unusual.items() if number},
        **table,
    }
