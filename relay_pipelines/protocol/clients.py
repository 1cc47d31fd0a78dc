"""Clients of a mirror's clusters; brokers see them as `relay-MIRROR` in their logs and quotas."""

from __future__ import annotations

from relay_pipelines.errors import DestinationError, RetriableError, SourceError
from relay_pipelines.model import Cluster, CopyOptions
from relay_pipelines.protocol.client import ClusterClient


def source_client(mirror: str, node: Cluster, timeout_ms: int, purpose: str = "") -> ClusterClient:
    """Return a client of a source node.

    Args:
        timeout_ms: of one request.
        purpose: appended to the client id.
    """
    return _client(mirror, node, SourceError, timeout_ms, purpose)


def destination_client(
    mirror: str, destination: Cluster, options: CopyOptions, purpose: str = ""
) -> ClusterClient:
    """Return a client of the destination.

    Args:
        purpose: appended to the client id.
    """
    return _client(mirror, destination, DestinationError, options.request_timeout_ms, purpose)


def _client(
    mirror: str, cluster: Cluster, retriable: type[RetriableError], timeout_ms: int, purpose: str
) -> ClusterClient:
    client_id = "-".join(filter(None, ("relay", mirror, purpose)))
    return ClusterClient(cluster, retriable, client_id, timeout_ms)
