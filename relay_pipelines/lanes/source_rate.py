"""How fast topics grow at the source, from one look at it to the next."""

from collections import Counter

from relay_pipelines.model import TopicPartition
from relay_pipelines.snapshot.cluster_snapshot import ClusterSnapshot


class SourceRate:
    """Remembers the end offsets of the last snapshot."""

    def __init__(self) -> None:
        self._ends: dict[TopicPartition, int] = {}
        self._taken_ms = 0

    def learn(self, snapshot: ClusterSnapshot, taken_ms: int) -> dict[str, float]:
        """Return records per second since the last snapshot, by topic; empty at the first one.

        Args:
            taken_ms: when the snapshot was taken, in milliseconds since the Unix epoch.
        """
        ends = {position.topic_partition: position.end_offset for position in snapshot.positions}
        grown: Counter[str] = Counter()
        for at, end in ends.items():
            if at in self._ends:
                # another node of the source may end earlier
                grown[at.topic] += max(0, end - self._ends[at])
        seconds = max(1, taken_ms - self._taken_ms) / 1000
        self._ends, self._taken_ms = ends, taken_ms
        return {topic: records / seconds for topic, records in grown.items()}
