"""Since when the retention of the ledger's topic can have removed no entry."""

from __future__ import annotations

from relay_pipelines.ledger import checkpoint, ledger_topic
from relay_pipelines.ledger.reader import CLOCK_SKEW_MS
from relay_pipelines.model import TopicPartition
from relay_pipelines.protocol.admin import RETENTIONS, readable_topic_configs
from relay_pipelines.protocol.client import EARLIEST, READ_COMMITTED, ClusterClient
from relay_pipelines.protocol.clock import Clock

_RETENTION_MS, _RETENTION_BYTES = RETENTIONS


def ledger_kept_since_ms(client: ClusterClient, clock: Clock) -> dict[TopicPartition, int]:
    """Return since when no entry can have been removed by retention, by ledger topic-partition.

    0 means never, because nothing was removed. Empty if there is no ledger.
    """
    if not client.has_topic(ledger_topic.TOPIC):
        return {}
    low = client.list_offsets(checkpoint.homes(ledger_topic.TOPIC), EARLIEST, READ_COMMITTED)
    configs, _ = readable_topic_configs(client, [ledger_topic.TOPIC], RETENTIONS)
    values = {key: config.value for key, config in configs[ledger_topic.TOPIC].items()}
    retention_ms = int(values.get(_RETENTION_MS, ledger_topic.CONFIGS[_RETENTION_MS]))
    now_ms = clock.now_ms()
    since = now_ms - retention_ms + CLOCK_SKEW_MS if retention_ms >= 0 else 0
    if int(values.get(_RETENTION_BYTES, -1)) >= 0:
        since = now_ms + CLOCK_SKEW_MS  # any entry may be gone
    return {at: since if offset else 0 for at, offset in low.items()}
