"""What is refused before Spark is started."""

import pytest
from pyspark import SparkContext

from relay_pipelines.errors import ConfigError
from relay_pipelines.spark.session import connect


def test_an_environment_that_leads_elsewhere(monkeypatch: pytest.MonkeyPatch) -> None:
    """As in a container of a stack with Spark Connect; PySpark's own error names Java."""
    before = SparkContext._gateway
    monkeypatch.setenv("SPARK_REMOTE", "sc://192.0.2.1:15002")
    with pytest.raises(ConfigError) as refused:
        connect("local[1]")
    assert str(refused.value) == (
        "PySpark takes SPARK_REMOTE from the environment instead of local[1]; unset it, or set"
        " spark.remote"
    )
    assert SparkContext._gateway is before
