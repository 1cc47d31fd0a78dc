"""What is refused before Spark is started."""

import pytest
from pyspark import SparkContext

from relay_pipelines.errors import ConfigError
from relay_pipelines.spark import jvm, yarn
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


def test_yarn_without_its_configuration(monkeypatch: pytest.MonkeyPatch) -> None:
    """Spark's launcher would end without a word to relay."""
    for name in ("HADOOP_CONF_DIR", "YARN_CONF_DIR"):
        monkeypatch.delenv(name, raising=False)
    with pytest.raises(ConfigError) as refused:
        jvm.start({"spark.master": "yarn"}, verbose=False)
    assert str(refused.value) == (
        "spark.master is yarn, and neither HADOOP_CONF_DIR nor YARN_CONF_DIR is set; set one of"
        " them to the folder of core-site.xml and yarn-site.xml"
    )


FILTER = "spark.org.apache.spark.deploy.yarn.AmIpFilter.param"
PAGE = "http://rm1:8088/proxy/application_1_1"


@pytest.mark.parametrize(
    ("conf", "page"),
    [
        ({}, ""),
        ({f"{FILTER}.PROXY_HOSTS": "rm1", f"{FILTER}.PROXY_URI_BASES": PAGE}, PAGE),
        ({f"{FILTER}.PROXY_URI_BASES": f"{PAGE},http://rm2:8088/proxy/application_1_1"}, PAGE),
    ],
    ids=["elsewhere", "one ResourceManager", "two of them"],
)
def test_the_page_of_an_application_is_yarns(conf: dict[str, str], page: str) -> None:
    """That of the driver leads there."""
    assert yarn.page(conf) == page
