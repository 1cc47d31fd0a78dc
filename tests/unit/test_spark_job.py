"""The Spark job's edges that need no Spark."""

from __future__ import annotations

import pytest

from relay_pipelines.errors import RelayError
from relay_pipelines.model import Cluster, CopyJob
from relay_pipelines.spark.job import submit


class Ended:
    """A session, and its context, that another thread ends while a job is being submitted."""

    def __init__(self) -> None:
        self.sparkContext = self

    def addJobTag(self, tag: str) -> None:  # noqa: N802 - Spark's name
        """Still there."""

    def removeJobTag(self, tag: str) -> None:  # noqa: N802 - Spark's name
        """As PySpark does it: its Java context is None by then."""
        raise AttributeError(f"'NoneType' object has no attribute 'removeJobTag' ({tag})")

    def range(self, *_: int) -> None:
        """Gone."""
        raise RuntimeError("SparkContext or SparkSession should be created first.")


def test_the_session_ends_while_the_job_is_submitted() -> None:
    """An interrupted run is told in one line that the job was given up, whatever becomes of the job's tag."""
    job = CopyJob("mirror", "run", Cluster("node", ()), Cluster("destination", ()))
    with pytest.raises(
        RelayError,
        match="Spark gave the copy job up: SparkContext or SparkSession should be created first",
    ):
        submit(Ended(), job, [], "tag")
