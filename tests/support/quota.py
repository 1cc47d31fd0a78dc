"""Client quotas of brokers, set by Kafka's own request."""

from __future__ import annotations

from kafka.protocol.admin import AlterClientQuotasRequest as Request

from relay_pipelines.errors import DestinationError
from relay_pipelines.model import Cluster
from relay_pipelines.protocol.client import ClusterClient


def quota(servers: tuple[str, ...], client_id: str, key: str, rate: float | None) -> None:
    """Set a quota of a client.

    Args:
        rate: in bytes per second; none any more if None.
    """
    entry = Request.EntryData(
        entity=[Request.EntryData.EntityData(entity_type="client-id", entity_name=client_id)],
        ops=[Request.EntryData.OpData(key=key, value=rate or 0.0, remove=rate is None)],
    )
    with ClusterClient(Cluster("quota", servers), DestinationError) as client:
        answer = client.call_any(Request(entries=[entry], validate_only=False), 0)
        assert [entry.error_code for entry in answer.entries] == [0]
