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
from tests.chaos.storm import record_policies
from tests.chaos.storm.faults import DESTINATION, NODES
from tests.chaos.storm.mirroring import NAME
from tests.chaos.storm.record_policies import BOOKED, CONFIGS
from tests.chaos.storm.writer import TOPICS
from tests.support.independent import Record, create, read, records_of

_ROOT = Path(__file__).parents[3]


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
        nodes = [
            {"name": name, "bootstrap_servers": list(self.clusters[name].bootstrap_servers)}
            for name in NODES
        ]
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
                **record_policies.SETTINGS,
            },
            context={"folder": _ROOT},  # where tasks find the filter
        )

    def source(
        self, written: Mapping[TopicPartition, int]
    ) -> dict[TopicPartition, list[tuple[int, Record]]]:
        """All committed records of the source by their offsets, which both nodes share: else the run proves nothing.

        Args:
            written: how many records each topic-partition has that is written without transactions.
        """
        found = {}
        for at in [*sorted(written), TopicPartition(BOOKED, 0)]:
            a, b = (read(self.clusters[name].cluster(), at) for name in NODES)
            same = [
                [(offset, record_policies.comparable(at.topic, record)) for offset, record in each]
                for each in (a, b)
            ]
            assert same[0] == same[1], f"the nodes differ in {at}: {len(a)} and {len(b)} records"
            offsets = [offset for offset, _ in a]
            assert at not in written or offsets == list(range(written[at])), (
                f"{at} does not hold what was written"
            )
            found[at] = a
        return found

    def arrived(self, at: TopicPartition) -> list[Record]:
        """All committed records of the destination."""
        return [
            record_policies.comparable(at.topic, one)
            for one in records_of(self.destination.cluster(), at)
        ]

    def ledger_complaint(self, expected: Mapping[TopicPartition, list[Record]]) -> str:
        """Say what is wrong with the ledger.

        Args:
            expected: what is to arrive.
        """
        counts = {(at.topic, at.partition): len(records) for at, records in expected.items()}
        ends = compare.ends(self.clusters[NODES[0]], list(counts))
        try:
            compare.assert_ledger_covers(self.destination, NAME, ends, counts)
        except AssertionError as error:
            return (
                str(error).splitlines()[0] if str(error) else "it does not cover every offset once"
            )
        return ""


@contextmanager
def started(folder: Path) -> Iterator[Scene]:
    """Start all brokers, with the topics at the nodes; they end with the block."""
    with ExitStack() as stack:
        clusters = {
            name: stack.enter_context(EmbeddedCluster(name, folder=folder / name))
            for name in (*NODES, DESTINATION)
        }
        for name in NODES:
            for topic, partitions in {**TOPICS, BOOKED: 1}.items():
                create(clusters[name].cluster(), topic, partitions, CONFIGS.get(topic))
        yield Scene(clusters)
