"""Counts the requests that brokers answer, by their own log of requests."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path

from kafka.protocol.admin import IncrementalAlterConfigsRequest

from relay_pipelines.errors import SourceError
from relay_pipelines.local_kafka import LocalCluster
from relay_pipelines.protocol.client import ClusterClient

_LOGGER = "kafka.request.logger"
_OF_A_LOGGER = 8  # the type of resource
_SET = 0
_ANSWERED = re.compile(
    rb'.* Completed request:.*"clientId":"(relay[^"]*)","requestApiKeyName":"([^"]*)"'
)
_HEAD_BYTES = 400


@contextmanager
def request_log(clusters: Sequence[LocalCluster]) -> Iterator[RequestLog]:
    """Let the brokers log each request that they answer; it costs them CPU time."""
    with ExitStack() as stack:
        for cluster in clusters:
            _set_level(cluster, "DEBUG")
            stack.callback(_set_level, cluster, "INFO")
        yield RequestLog(clusters)


class RequestLog:
    """The requests of relay since this was made."""

    def __init__(self, clusters: Sequence[LocalCluster]) -> None:
        logs = [
            (cluster.name, cluster.folder / f"broker-{broker.node_id}" / "broker.log")
            for cluster in clusters
            for broker in cluster.brokers
        ]
        self._logs = [(name, log, log.stat().st_size) for name, log in logs]

    def counts(self) -> dict[str, Counter[str]]:
        """Requests by cluster, then by client and kind."""
        found: dict[str, Counter[str]] = {}
        for cluster, log, begin in self._logs:
            found.setdefault(cluster, Counter()).update(_requests(log, begin))
        return found


def _requests(log: Path, begin: int) -> Iterator[str]:
    with log.open("rb") as file:
        file.seek(begin)
        for line in file:
            if matched := _ANSWERED.match(line[:_HEAD_BYTES]):  # the rest may be a megabyte
                yield f"{matched[1].decode()} {matched[2].decode()}"


def _set_level(cluster: LocalCluster, level: str) -> None:
    resource = IncrementalAlterConfigsRequest.AlterConfigsResource
    config = resource.AlterableConfig(name=_LOGGER, config_operation=_SET, value=level)
    with ClusterClient(cluster.cluster(), SourceError) as client:
        for broker in cluster.brokers:
            broker_id = str(broker.node_id)
            asked = resource(resource_type=_OF_A_LOGGER, resource_name=broker_id, configs=[config])
            request = IncrementalAlterConfigsRequest(resources=[asked], validate_only=False)
            for result in client.call(broker.node_id, request, 1).responses:
                client.raise_for_error(
                    result, f"the level of {_LOGGER}", "AlterConfigs on the cluster"
                )
