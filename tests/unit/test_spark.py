"""What of Spark needs no Spark: refusals before its start, jobs that fail, outcomes."""

import sys
import zipfile
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest
from pyspark import SparkContext

from relay_pipelines import model
from relay_pipelines.errors import ConfigError, RelayError, SparkJobError
from relay_pipelines.json_codec import from_json
from relay_pipelines.spark import connect_channel, jvm, yarn
from relay_pipelines.spark.job import forget_folders_of_zips, outcome_row, submit, texts
from relay_pipelines.spark.session import connect
from tests.support.wordings import Wordings


def test_another_environment(monkeypatch: pytest.MonkeyPatch, wordings: Wordings) -> None:
    """PySpark's own error names Java, and Spark's launcher would end without a word."""
    before = SparkContext._gateway
    monkeypatch.setenv("SPARK_REMOTE", "sc://192.0.2.1:15002")
    with pytest.raises(ConfigError) as refused:
        connect("local[1]")
    wordings.check("spark: another server in the environment", str(refused.value))
    assert SparkContext._gateway is before
    for name in ("HADOOP_CONF_DIR", "YARN_CONF_DIR"):
        monkeypatch.delenv(name, raising=False)
    with pytest.raises(ConfigError) as refused:
        jvm.start({"spark.master": "yarn"}, verbose=False)
    wordings.check("spark: yarn without its configuration", str(refused.value))


def test_the_page_of_an_application_is_yarns() -> None:
    """That of the driver leads there; of two ResourceManagers, the first counts."""
    key = "spark.org.apache.spark.deploy.yarn.AmIpFilter.param.PROXY_URI_BASES"
    pages = [f"http://{host}:8088/proxy/application_1_1" for host in ("rm1", "rm2")]
    assert yarn.page({}) == ""
    for count in (1, 2):
        assert yarn.page({key: ",".join(pages[:count])}) == pages[0]


@pytest.mark.parametrize(
    ("remote", "variables", "asked_through"),
    [
        ("sc://spark:15002/;token=t", {"http_proxy": "http://p:3128"}, "http_proxy"),
        ("sc://spark", {"https_proxy": "http://p", "no_proxy": "other,.example"}, "https_proxy"),
        ("sc://spark:15002", {"http_proxy": "http://p", "no_proxy": "other,spark"}, ""),
        ("sc://127.0.0.1:15002", {"http_proxy": "http://p"}, ""),
        ("sc://spark:15002", {"HTTP_PROXY": "http://p"}, ""),
        ("", {"http_proxy": "http://p"}, ""),
    ],
    ids=["a server", "other exceptions", "an exception", "this machine", "unread", "no server"],
)
def test_a_proxy_is_named(
    monkeypatch: pytest.MonkeyPatch, remote: str, variables: dict[str, str], asked_through: str
) -> None:
    """It comes from the environment, and gRPC says nothing of it."""
    for name in ("grpc_proxy", "https_proxy", "http_proxy", "no_grpc_proxy", "no_proxy"):
        monkeypatch.delenv(name, raising=False)
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    remedy = connect_channel.remedy_of_proxy(remote)
    assert remedy.partition(" ")[0] == asked_through
    assert bool(remedy) == ("add spark to no_proxy" in remedy)


class Ended:
    """A session, and its context, that another thread stops while a job is being submitted."""

    def __init__(self) -> None:
        self.sparkContext = self

    def addJobTag(self, tag: str) -> None: ...  # noqa: N802 - Spark's name

    def setJobDescription(self, description: str) -> None: ...  # noqa: N802 - Spark's name

    def removeJobTag(self, tag: str) -> None:  # noqa: N802 - Spark's name
        """Fail as PySpark does, whose Java context is None by then."""
        raise AttributeError(f"'NoneType' object has no attribute 'removeJobTag' ({tag})")

    def newSession(self) -> None:  # noqa: N802 - Spark's name
        """Fail as PySpark does after the session was stopped."""
        raise RuntimeError("SparkContext or SparkSession should be created first.")


def test_an_outcome_survives_the_way_through_spark() -> None:
    """Spark carries an outcome as one JSON column; every field keeps its value and type."""
    here, there = model.TopicPartition("a", 1), model.TopicPartition("b", 1)
    failed: dict[str, Any] = {"error_kind": "FencedError", "error": 'a header "\udcff" and an Ö'}
    counts = {"records": 7, "skipped": {str(model.Skipped.FILTERED): 3}, "commit_seconds": 0.5}
    segments = (model.Segment("kafka-a", 5, 10), model.Segment("kafka-c", 10, 15))
    of_upstreams: Any = {"segments": segments, "diverged": {"kafka-e": "holds another record"}}
    where = model.OffsetRange(here, 5, 25), there, model.Status.FENCED, 15
    outcome = model.Outcome(*where, **(failed | counts | of_upstreams))
    row = outcome_row(outcome)
    assert row.schema.names == ["outcome"]
    found = from_json(model.Outcome, row.column("outcome")[0].as_py())
    assert found == outcome
    assert type(found.status) is model.Status
    assert type(found.range.topic_partition) is model.TopicPartition


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
        raise RuntimeError(self._message)


def test_what_a_job_failed_of_is_one_line(wordings: Wordings) -> None:
    """By both versions of Python; an error, by its last line; a task, by what it copies."""
    failing = Failing(RAISED % MISMATCH)
    with pytest.raises(ConfigError) as caught:
        texts(failing, failing.range, "a tag")
    ours = "{}.{}".format(*sys.version_info)
    assert caught.value.what == f"Spark's tasks run Python 3.1, and relay runs Python {ours}"
    failing = Failing(RAISED % "ZeroDivisionError: division by zero")
    with pytest.raises(RelayError, match=r"^the Spark job failed: ZeroDivisionError: division by"):
        texts(failing, failing.range, "a tag")
    failing = Failing(ABORTED)
    with pytest.raises(SparkJobError) as failed:
        texts(failing, failing.range, "a tag", tasks=["a-0", "a-1, b-0"])
    wordings.check("spark: a task failed too often", failed.value.what)
    job = model.CopyJob("m", "run", model.Cluster("upstream", ()), model.Cluster("destination", ()))
    first = "the Spark job failed: SparkContext or SparkSession should be created first"
    with pytest.raises(RelayError, match=first):
        submit(Ended(), job, [], "tag")


ABORTED = (
    "An error occurred while calling o81.collectToPython.\n: org.apache.spark.SparkException: Job"
    " aborted due to stage failure: Task 1 in stage 3.0 failed 4 times, most recent failure: Lost"
    " task 1.3 in stage 3.0 (TID 7) (127.0.0.1 executor 2): ExecutorLostFailure (executor 2 exited"
    " caused by one of the running tasks)\nDriver stacktrace:\n\tat org.apache"
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
    import_module("zipped.one")
    assert folder in sys.path_importer_cache
    forget_folders_of_zips()
    assert folder not in sys.path_importer_cache
    import_module("zipped.two")
