"""The clusters of a chaos run, and what an independent client finds in them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

from relay_pipelines.embedded import Broker, EmbeddedCluster
from relay_pipelines.model import TopicPartition
from relay_pipelines.settings import Mirror
from tests.chaos import compare
from tests.chaos.storm.faults import DESTINATION, NODES
from tests.chaos.storm.mirroring import NAME
from tests.chaos.storm.writer import TOPICS
from tests.independent import Record, create, read, records_of


@dataclass(frozen=True)
class Scene:
    """Two nodes and a destination of this run alone: other tests never see what happens to them."""

    clusters: Mapping[str, EmbeddedCluster]

    @property
    def brokers(self) -> dict[str, Broker]:
        """One by name."""
        return {name: cluster.brokers[0] for name, cluster in self.clusters.items()}

    @property
    def destination(self) -> EmbeddedCluster:
        """Where records go."""
        return self.clusters[DESTINATION]

    def mirror(self) -> Mirror:
        """All topics, in chunks of a few records: a range has many, and faults strike between any two of them."""
        nodes = [{"name": name, "bootstrap_servers": list(self.clusters[name].bootstrap_servers)} for name in NODES]
        return Mirror.model_validate(
            {
                "source": {"nodes": nodes, "health": {"request_timeout": "2s"}},
                "destination": {"bootstrap_servers": list(self.destination.bootstrap_servers)},
                "copy": {
                    "chunk": "2KiB",
                    "fetch_max": "4KiB",
                    "coalesce_below": "1KiB",
                    "coalesce_to": "2KiB",
                    "request_timeout": "5s",
                    "backoff": {"max": "1s"},
                },
            }
        )

    def source(self, written: Mapping[TopicPartition, int]) -> dict[TopicPartition, list[Record]]:
        """All records of the source, which both nodes have at the same offsets: else the run proves nothing."""
        found = {}
        for at, records in sorted(written.items()):
            a, b = (read(self.clusters[name].cluster(), at) for name in NODES)
            assert a == b, f"the nodes differ in {at}: {len(a)} and {len(b)} records of {records} written"
            assert [offset for offset, _ in a] == list(range(records)), f"{at} does not hold what was written"
            found[at] = [record for _, record in a]
        return found

    def arrived(self, at: TopicPartition) -> list[Record]:
        """All committed records of the destination."""
        return records_of(self.destination.cluster(), at)

    def ledger_complaint(self, source: Mapping[TopicPartition, list[Record]]) -> str:
        """Say what is wrong with the ledger."""
        counts = {(at.topic, at.partition): len(records) for at, records in source.items()}
        try:
            compare.assert_ledger_covers(self.destination, NAME, counts, counts)
        except AssertionError as error:
            return str(error).splitlines()[0] if str(error) else "it does not cover every offset once"
        return ""


@contextmanager
def started(folder: Path) -> Iterator[Scene]:
    """Start all brokers, with the topics at the nodes; they end with the block."""
    with ExitStack() as stack:
        clusters = {name: stack.enter_context(EmbeddedCluster(name, folder=folder / name)) for name in (*NODES, DESTINATION)}
        for name in NODES:
            for topic, partitions in TOPICS.items():
                create(clusters[name].cluster(), topic, partitions)
        yield Scene(clusters)
