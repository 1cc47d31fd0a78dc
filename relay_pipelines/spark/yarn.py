"""What is particular to YARN: where its configuration is, and its page. Runs on the driver."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from relay_pipelines.errors import ConfigError
from relay_pipelines.spark import answering

MASTER = "yarn"
_FOLDERS = ("HADOOP_CONF_DIR", "YARN_CONF_DIR")
# of the filter with which the page of a driver sends everybody to the one that YARN serves
_PAGE = "AmIpFilter.param.PROXY_URI_BASES"


def require_configuration(environment: Mapping[str, str]) -> None:
    """Refuse a start without the files that say where YARN and HDFS are.

    Args:
        environment: of the driver's JVM.

    Raises:
        ConfigError: no variable names their folder.
    """
    if not any(environment.get(name) for name in _FOLDERS):
        raise ConfigError(
            "spark.master is yarn, and neither HADOOP_CONF_DIR nor YARN_CONF_DIR is set",
            remedy="set one of them to the folder of core-site.xml and yarn-site.xml",
        )


def check_resource_manager(jvm: Any) -> None:
    """Connect to the ResourceManager, or to any of several; Spark would try for 15 minutes.

    Args:
        jvm: the driver's, through py4j.

    Raises:
        RelayError: none accepts a connection.
    """
    conf = jvm.org.apache.spark.deploy.SparkHadoopUtil.get().newConfiguration(
        jvm.org.apache.spark.SparkConf()
    )
    yarn = jvm.org.apache.hadoop.yarn
    service = yarn.client.ClientRMProxy.getRMDelegationTokenService(
        yarn.conf.YarnConfiguration(conf)
    )
    shown = str(service.toString())  # host:port, of each
    targets = [address.rpartition(":") for address in shown.split(",")]
    answering.connect_to_any(
        [(host, int(port)) for host, _, port in targets],
        f"YARN ResourceManager answers at {shown}",
        f"start it, or correct yarn-site.xml in the folder that {' or '.join(_FOLDERS)} names",
    )


def page(conf: Mapping[str, str]) -> str:
    """Return the address at which YARN serves the page of an application; empty if not on YARN.

    Args:
        conf: the application's.
    """
    pages = next((value for key, value in conf.items() if key.endswith(_PAGE)), "")
    return pages.partition(",")[0]  # one for each ResourceManager
