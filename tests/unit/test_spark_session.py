"""What is refused before Spark is started."""

import pytest
from pyspark import SparkContext

from relay_pipelines.errors import ConfigError
from relay_pipelines.spark import connect_channel, jvm, yarn
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
