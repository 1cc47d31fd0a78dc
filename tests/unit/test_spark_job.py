"""Parts of the Spark job that need no Spark."""

from __future__ import annotations

import sys
import zipfile
from pathlib import Path

import pytest

from relay_pipelines.errors import ConfigError, RelayError, SparkJobError
from relay_pipelines.json_codec import from_json
from relay_pipelines.model import (
    Cluster,
    CopyJob,
    CopyOptions,
    CopyRange,
    OffsetRange,
    Outcome,
    RecordPolicy,
    Segment,
    Skipped,
    Status,
    TopicPartition,
)
from relay_pipelines.run.silent_tasks import SilentTasks
from relay_pipelines.spark.job import (
    forget_folders_of_zips,
    outcome_row,
    submit,
    texts,
)


class Ended:
    """A session, and its context, that another thread stops while a job is being submitted."""

    def __init__(self) -> None:
        self.sparkContext = self

    def addJobTag(self, tag: str) -> None:  # noqa: N802 - Spark's name
        """Succeed: the session still runs."""

    def setJobDescription(self, description: str) -> None:  # noqa: N802 - Spark's name
        """Succeed: the session still runs."""

    def removeJobTag(self, tag: str) -> None:  # noqa: N802 - Spark's name
        """Fail as PySpark does, whose Java context is None by then."""
        raise AttributeError(f"'NoneType' object has no attribute 'removeJobTag' ({tag})")

    def newSession(self) -> None:  # noqa: N802 - Spark's name
        """Fail as PySpark does after the session was stopped."""
        raise RuntimeError("SparkContext or SparkSession should be created first.")


def test_the_session_ends_while_the_job_is_submitted() -> None:
    """The error says in one line that the job failed, although removing its tag fails, too."""
    job = CopyJob("mirror", "run", Cluster("node", ()), Cluster("destination", ()))
    with pytest.raises(
        RelayError,
        match="the Spark job failed: SparkContext or SparkSession should be created first",
    ):
        submit(Ended(), job, [], "tag")


def test_an_outcome_survives_the_way_through_spark() -> None:
    """Spark carries an outcome as one JSON column; every field keeps its value and type."""
    here, there = TopicPartition("a", 1), TopicPartition("b", 1)
    outcome = Outcome(
        OffsetRange(here, 5, 25),
        there,
        Status.FENCED,
        15,
        records=7,
        skipped={str(Skipped.FILTERED): 3},
        commit_seconds=0.5,
        segments=(Segment("node1", 5, 10), Segment("node2", 10, 15)),
        diverged={"node3": "holds another record"},
        error_kind="FencedError",
        error='a header "\udcff" and an Ö',
    )
    row = outcome_row(outcome)
    assert row.schema.names == ["outcome"]
    found = from_json(Outcome, row.column("outcome")[0].as_py())
    assert found == outcome
    assert (type(found.status), type(found.range.topic_partition)) == (Status, TopicPartition)


RAISED = """
  An exception was thrown from the Python worker. Please see the stack trace below.
[PYTHON_EXCEPTION] An exception was thrown from the Python worker: Traceback (most recent call \
last):
  File "pyspark/worker.py", line 4174, in invoke_udf
    check_python_version(init_info.python_version)
%s
 SQLSTATE: 38000
"""
MISMATCH = (
    "pyspark.errors.exceptions.base.PySparkRuntimeError: [PYTHON_VERSION_MISMATCH] Python in worker"
    " has different version: 3.1 than that in driver: 3.11, PySpark cannot run with different minor"
    " versions.\nPlease check environment variables PYSPARK_PYTHON and PYSPARK_DRIVER_PYTHON are"
    " correctly set."
)


class Failing:
    """A session whose jobs fail with a message of a real Spark."""

    def __init__(self, message: str) -> None:
        self._message = message
        self.sparkContext = self
        self.addJobTag = self.removeJobTag = lambda _: None

    def range(self, *_: int) -> None:
        """Fail."""
        raise RuntimeError(self._message)


def test_a_python_of_another_version_is_one_line() -> None:
    """Both versions are named; nothing but a change of the user's helps."""
    failing = Failing(RAISED % MISMATCH)
    with pytest.raises(ConfigError) as caught:
        texts(failing, failing.range, "a tag")
    ours = "{}.{}".format(*sys.version_info)
    assert caught.value.what == f"Spark's tasks run Python 3.1, and relay runs Python {ours}"


def test_an_error_in_a_task_is_named_by_its_last_line() -> None:
    """It is the line below the traceback, not Spark's announcement of one."""
    failing = Failing(RAISED % "ZeroDivisionError: division by zero")
    with pytest.raises(RelayError, match=r"^the Spark job failed: ZeroDivisionError: division by"):
        texts(failing, failing.range, "a tag")


ABORTED = (
    "An error occurred while calling o81.collectToPython.\n: org.apache.spark.SparkException: Job"
    " aborted due to stage failure: Task 1 in stage 3.0 failed 4 times, most recent failure: Lost"
    " task 1.3 in stage 3.0 (TID 7) (127.0.0.1 executor 2): ExecutorLostFailure (executor 2 exited"
    " caused by one of the running tasks)\nDriver stacktrace:\n\tat org.apache"
)


def test_a_task_that_failed_too_often_is_named_with_what_it_copies() -> None:
    """The line has the topic-partitions of that task alone, and why its last attempt failed."""
    failing = Failing(ABORTED)
    with pytest.raises(SparkJobError) as caught:
        texts(failing, failing.range, "a tag", tasks=["a-0", "a-1, b-0"])
    assert caught.value.what == (
        "the Spark job failed: task 1, of a-1, b-0, failed, and spark.task.maxFailures is 4:"
        " Lost task 1.3 in stage 3.0 (TID 7) (127.0.0.1 executor 2): ExecutorLostFailure (executor"
        " 2 exited caused by one of the running tasks)"
    )


def test_a_worker_forgets_the_folders_of_a_zip_and_finds_them_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Python would read the zip for each of them before each task."""
    with zipfile.ZipFile(tmp_path / "a.zip", "w") as archive:
        for module in ("zipped/__init__.py", "zipped/one.py", "zipped/two.py"):
            archive.writestr(module, "")
    monkeypatch.syspath_prepend(str(tmp_path / "a.zip"))
    folder = str(tmp_path / "a.zip" / "zipped")
    import zipped.one

    assert folder in sys.path_importer_cache
    forget_folders_of_zips()
    assert folder not in sys.path_importer_cache
    import zipped.two  # noqa: F401


def test_a_task_is_silent_for_as_long_as_the_chunks_of_its_topic() -> None:
    """A topic with longer chunks than the mirror is not taken for one that hangs."""
    of_topic = CopyOptions(chunk_ms=300_000, transaction_timeout_ms=600_000)
    at = TopicPartition("orders", 0)
    policy = RecordPolicy(options=of_topic)
    groups = [[CopyRange(OffsetRange(at, 0, 9), at, record_policy=policy)]]
    silent = SilentTasks(CopyOptions())
    silent.note([], 960.0)
    assert not silent.has_any(groups)
    silent.note([], 20.0)
    assert silent.has_any(groups)
