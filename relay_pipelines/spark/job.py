"""The Spark job of a run: one stage without a shuffle, with a task per group of ranges.

`submit` runs on the driver, `_copy_groups` in a task, which imports this module first.
"""

from __future__ import annotations

import functools
import logging
import pickle
import platform
import re
import struct
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import Any
from zipimport import zipimporter

import pyarrow as pa

from relay_pipelines.copy.task import copy_ranges
from relay_pipelines.errors import RelayError, RetriableError, SparkJobError
from relay_pipelines.json_codec import from_json, to_json
from relay_pipelines.model import Cluster, CopyJob, CopyOptions, CopyRange, Outcome
from relay_pipelines.protocol.client import ClusterClient
from relay_pipelines.spark import task_python
from relay_pipelines.spark.answering import within
from relay_pipelines.spark.session import context_of, kill, slots, unreachable, why_jvm_ended

_CANCEL_SECONDS = 5.0
_RUN_AGAIN = "run again to continue from the checkpoints; --debug shows Spark's messages"
_PROBE, _PROBE_SECONDS, _PROBE_MS = "relay-probe", 120.0, 10_000
_SHOWN = 3
_REASON_CHARACTERS = 300
_LOG = logging.getLogger(__name__)
_FAILED_TASK = re.compile(r"Task (\d+) in stage \S+ failed (\d+) times, most recent failure: (.+)")
_PYTHON_ERROR = re.compile(r"^[A-Za-z_][\w.]*(?:Error|Exception): .*$", re.MULTILINE)


@functools.cache
def outcome_schema() -> Any:
    """Return the schema of the rows that a copy job returns; each is an outcome as JSON.

    It is not a text, because Spark would start its SQL parser for that.
    """
    from pyspark.sql.types import StringType, StructField, StructType

    return StructType([StructField("outcome", StringType())])


def submit(
    session: Any, job: CopyJob, groups: Sequence[Sequence[CopyRange]], tag: str
) -> list[Outcome]:
    """Copy all groups, one task each, and return an outcome per range; blocks until the job ends.

    Args:
        tag: `cancel` finds the job by it.

    Raises:
        RelayError: the Spark job failed; the message names the topic-partitions of the task that
            did. What was committed is in the ledger.
    """
    # every task gets all groups, and reads its own alone
    pickled = [pickle.dumps(list(group)) for group in groups]

    def frame() -> Any:
        tasks = uncompiled(session).range(0, len(groups), 1, len(groups))
        return tasks.mapInArrow(partial(_copy_groups, job, pickled), outcome_schema())

    ranges = [copy_range for group in groups for copy_range in group]
    copied = [_named(group) for group in groups]
    return collect(session, frame, tag, described(job, ranges), copied)


def described(job: CopyJob, ranges: Sequence[CopyRange]) -> str:
    """Return what Spark shows of a job."""
    when = f"window {job.window}" if job.window else f"run {job.run_id}"
    return f"{job.mirror}: {when}, {_named(ranges)}"


def _named(ranges: Sequence[CopyRange]) -> str:
    """Return the first topic-partitions of some ranges, and how many more there are."""
    shown = [str(copy_range.source.topic_partition) for copy_range in ranges[:_SHOWN]]
    more = f" and {len(ranges) - _SHOWN} more" if len(ranges) > _SHOWN else ""
    return f"{', '.join(shown)}{more}"


def uncompiled(session: Any) -> Any:
    """Return a session that interprets its plans: compiling one costs more than its few rows."""
    if context_of(session) is None:
        return session
    uncompiled = session.newSession()
    uncompiled.conf.set("spark.sql.codegen.wholeStage", "false")
    uncompiled.conf.set("spark.sql.codegen.factoryMode", "NO_CODEGEN")
    return uncompiled


def collect(
    session: Any,
    frame: Callable[[], Any],
    tag: str,
    description: str = "",
    tasks: Sequence[str] = (),
) -> list[Outcome]:
    """Run a job whose rows are outcomes.

    Args:
        frame: returns the DataFrame.
        tag: `cancel` finds the job by it.
        description: what Spark's page shows of it.
        tasks: what each task copies, for people; empty if unknown.

    Raises:
        RelayError: the Spark job failed.
    """
    return [from_json(Outcome, text) for text in texts(session, frame, tag, description, tasks)]


@dataclass(frozen=True, slots=True)
class TaskPlace:
    """Where a task ran, and what it found there.

    Args:
        host: its name.
        python: the version.
        problems: what a copy would fail on there, by cluster; empty for those that answer.
    """

    host: str
    python: str
    problems: dict[str, str]


def probe(session: Any, clusters: Sequence[Cluster]) -> list[TaskPlace]:
    """Let tasks import what a copy does, and connect to all brokers; as many as run at once.

    Raises:
        ConfigError: their Python is missing, has another version, or has not all packages.
        RelayError: the Spark job failed for another reason.
    """
    tasks = slots(session).now

    def frame() -> Any:
        rows = session.range(0, tasks, 1, tasks)
        return rows.mapInArrow(partial(_say_place, list(clusters)), outcome_schema())

    try:
        places = within(_PROBE_SECONDS, lambda: texts(session, frame, _PROBE))
    except TimeoutError:
        cancel(session, _PROBE)
        raise RelayError(
            f"Spark has not run a small job in {_PROBE_SECONDS:g} s",
            remedy="see whether its workers have free cores and memory for an executor",
        ) from None
    return [from_json(TaskPlace, text) for text in places]


def texts(
    session: Any,
    frame: Callable[[], Any],
    tag: str,
    description: str = "",
    tasks: Sequence[str] = (),
) -> list[str]:
    """Run a job whose rows are texts, by `outcome_schema`.

    Args:
        frame: returns the DataFrame.
        tag: `cancel` finds the job by it.
        description: what Spark's page shows of it.
        tasks: what each task copies, for people; empty if unknown.

    Raises:
        RelayError: the Spark job failed.
    """
    context = context_of(session)
    try:
        # not the session's tag: only this thread would know it, and another thread cancels
        (session.addTag if context is None else context.addJobTag)(tag)
        if description and context is not None:
            context.setJobDescription(description)  # of this thread
        rows = frame().collect()
    except Exception as error:  # py4j and gRPC raise many kinds
        # first: if the JVM has ended, nobody has the text of its error
        ended = "" if context is None else why_jvm_ended(error)
        raise (
            SparkJobError(f"the Spark job failed: {ended}", remedy=_RUN_AGAIN)
            if ended
            else task_python.problem(error, remote=context is None)
            or unreachable(session)
            or SparkJobError(
                f"the Spark job failed: {_reason(error, tasks)}",
                remedy=_RUN_AGAIN,
            )
        ) from error
    finally:
        with suppress(Exception):  # an interrupted run has ended the session, and its tags with it
            (session.removeTag if context is None else context.removeJobTag)(tag)
    return [row.outcome for row in rows]


def cancel(session: Any, tag: str) -> None:
    """Stop the job submitted under `tag`; its tasks die without committing their transactions.

    It does not find a job that Spark has not started yet: call it until `submit` has returned. A
    Spark that hangs is killed.
    """
    context = context_of(session)
    try:
        within(
            _CANCEL_SECONDS,
            partial(session.interruptTag, tag)
            if context is None
            else partial(context.cancelJobsWithTag, tag),
        )
    except TimeoutError:
        kill(session)
    except Exception as error:  # noqa: BLE001 - its JVM or server is gone, and with it the job
        _LOG.debug("the job cannot be cancelled: %s", error)


def name_group(session: Any, group: str) -> None:
    """Put the jobs that this thread submits from now on into a group, for `cancel_group`."""
    context = context_of(session)
    if context is None:
        session.addTag(group)
    else:
        context.setJobGroup(group, group, interruptOnCancel=True)


def cancel_group(session: Any, group: str) -> None:
    """Stop the jobs of a group; with a SparkContext also those that it submits later."""
    context = context_of(session)
    if context is None:
        session.interruptTag(group)
    else:
        context._jsc.sc().cancelJobGroupAndFutureJobs(group)  # noqa: SLF001 - PySpark lacks it


def _copy_groups(
    job: CopyJob, groups: list[bytes], ids: Iterator[pa.RecordBatch]
) -> Iterator[pa.RecordBatch]:
    forget_folders_of_zips()
    for batch in ids:
        for group in batch.column(0).to_pylist():
            for outcome in copy_ranges(job, pickle.loads(groups[group])):  # noqa: S301 - by our driver
                yield outcome_row(outcome)


def forget_folders_of_zips() -> None:
    """Let Python forget the folders of PySpark's zip; it finds them again when it needs one.

    Up to Python 3.12 it would read the whole zip again for each of them before the next task: 0.3
    CPU seconds. Local workers import no zip, see `daemon`.
    """
    for path, finder in [*sys.path_importer_cache.items()]:
        if isinstance(finder, zipimporter) and finder.prefix:
            del sys.path_importer_cache[path]


def outcome_row(outcome: Outcome) -> pa.RecordBatch:
    """Return an outcome as a row of `outcome_schema`."""
    return text_row(to_json(outcome))


def _say_place(clusters: list[Cluster], ids: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    for _ in ids:
        problems = {str(cluster): why for cluster in clusters if (why := _problem(cluster))}
        yield text_row(to_json(TaskPlace(platform.node(), platform.python_version(), problems)))


def _problem(cluster: Cluster) -> str:
    """Return why a copy could not read or write a cluster from here; empty if it could."""
    options = CopyOptions(request_timeout_ms=_PROBE_MS)
    with ClusterClient(cluster, RetriableError, options=options) as client:
        try:
            client.connect_to_brokers()
        except RelayError as error:
            return str(error)
    return ""


def text_row(value: str) -> pa.RecordBatch:
    """Return a text as a row of `outcome_schema`."""
    # making an Arrow array from Python objects imports pandas: 50 MB and half a second per worker
    text = value.encode()
    column = pa.StringArray.from_buffers(
        1, pa.py_buffer(struct.pack("=2i", 0, len(text))), pa.py_buffer(text)
    )
    return pa.RecordBatch.from_arrays([column], ["outcome"])


def _reason(error: Exception, tasks: Sequence[str]) -> str:
    """Return the line of a Spark error that says what happened, without the stack trace.

    Args:
        tasks: what each task copies.
    """
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    _, _, raised = str(error).partition("Traceback (most recent call last)")
    of_python = _PYTHON_ERROR.findall(raised)[-1:]
    telling = of_python or [
        line
        for line in lines
        if "Lost task" in line or "exited unexpectedly" in line or "cancelled" in line.lower()
    ]
    reason = (telling or lines or [type(error).__name__])[0]
    failed = _FAILED_TASK.search(str(error))
    if failed is None or int(failed[1]) >= len(tasks):
        return reason[:_REASON_CHARACTERS]
    number, attempts, last = failed.groups()
    why, _, _ = (of_python or [last])[0][:_REASON_CHARACTERS].partition(". Consider ")
    task = f"task {number}, of {tasks[int(number)]},"
    return f"{task} failed, and spark.task.maxFailures is {attempts}: {why}"
