"""Parts of the Spark job that need no Spark."""

from __future__ import annotations

import pytest

from relay_pipelines.errors import RelayError
from relay_pipelines.model import (
    Cluster,
    CopyJob,
    OffsetRange,
    Outcome,
    Segment,
    Skipped,
    Status,
    TopicPartition,
)
from relay_pipelines.spark.job import outcome_row, submit


class Ended:
    """A session, and its context, that another thread stops while a job is being submitted."""

    def __init__(self) -> None:
        self.sparkContext = self

    def addJobTag(self, tag: str) -> None:  # noqa: N802 - Spark's name
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
    found = Outcome.from_json(row.column("outcome")[0].as_py())
    assert found == outcome
    assert (type(found.status), type(found.range.topic_partition)) == (Status, TopicPartition)
