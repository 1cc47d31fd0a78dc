"""Client quotas of brokers, set and awaited by Kafka's own requests."""

from kafka.protocol.admin import AlterClientQuotasRequest as Alter
from kafka.protocol.admin import DescribeClientQuotasRequest as Describe

from relay_pipelines.errors import DestinationError
from relay_pipelines.model import Cluster
from relay_pipelines.protocol.client import ClusterClient
from tests.support.independent import until

_EXACT_NAME = 0


def quota(servers: tuple[str, ...], client_id: str, key: str, rate: float | None) -> None:
    """Set a quota of a client, and wait until it is in force.

    A broker describes a quota a moment before it obeys it, but obeys it before it describes the
    next one. So one of another client follows, which nobody uses.

    Args:
        rate: in bytes per second; none any more if None.
    """
    with ClusterClient(Cluster("quota", servers), DestinationError) as client:
        for name in (client_id, f"after-{client_id}"):
            _alter(client, name, key, rate)
            until(lambda name=name: _described(client, name, key) == rate, f"the quota of {name}")


def _alter(client: ClusterClient, client_id: str, key: str, rate: float | None) -> None:
    entry = Alter.EntryData(
        entity=[Alter.EntryData.EntityData(entity_type="client-id", entity_name=client_id)],
        ops=[Alter.EntryData.OpData(key=key, value=rate or 0.0, remove=rate is None)],
    )
    answer = client.call_any(Alter(entries=[entry], validate_only=False), 0)
    assert [entry.error_code for entry in answer.entries] == [0]


def _described(client: ClusterClient, client_id: str, key: str) -> float | None:
    named = Describe.ComponentData(entity_type="client-id", match_type=_EXACT_NAME, match=client_id)
    answer = client.call_any(Describe(components=[named], strict=True), 0)
    assert answer.error_code == 0, answer.error_message
    values = {each.key: each.value for entry in answer.entries or () for each in entry.values}
    return values.get(key)
