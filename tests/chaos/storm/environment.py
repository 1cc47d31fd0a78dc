"""The clusters of a chaos run, and their records as an independent client reads them."""

from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

from relay_pipelines.local_kafka import Broker, LocalCluster
from relay_pipelines.model import TopicPartition
from relay_pipelines.settings import Mirror
from tests.chaos import compare
from tests.chaos.storm import record_policies
from tests.chaos.storm.faults import DESTINATION, UPSTREAMS
from tests.chaos.storm.mirroring import NAME
from tests.chaos.storm.record_policies import BOOKED, CONFIGS
from tests.chaos.storm.writer import TOPICS
from tests.support.independent import Record, create, read, records_of

_ROOT = Path(__file__).parents[3]


# A broker that is stopped for longer is fenced. Without a leader for the moment, its coordinator
# takes the topic for deleted and never writes the marker: the transaction stays open for ever.
LONG_SESSION = {"broker.session.timeout.ms": "10000"}


@dataclass(frozen=True)
class Environment:
    """Two upstreams and a destination that only this run uses."""

    clusters: Mapping[str, LocalCluster]

    @property
    def brokers(self) -> dict[str, Broker]:
        return {name: cluster.brokers[0] for name, cluster in self.clusters.items()}

    @property
    def destination(self) -> LocalCluster:
        return self.clusters[DESTINATION]

    def mirror(self) -> Mirror:
        """A mirror of all topics, with small chunks, so that faults occur between chunks."""
        upstreams = [
            {"name": name, "bootstrap_servers": list(self.clusters[name].bootstrap_servers)}
            for name in UPSTREAMS
        ]
        return Mirror.model_validate(
            {
                "source": {"upstreams": upstreams, "health": {"request_timeout": "2s"}},
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
            context={"folder": _ROOT},  # the folder in which tasks find the filter
        )

    def source(
        self, written: Mapping[TopicPartition, int]
    ) -> dict[TopicPartition, list[tuple[int, Record]]]:
        """All committed records of the source by offset; both upstreams must have the same."""
        found = {}
        for at in [*sorted(written), TopicPartition(BOOKED, 0)]:
            a, b = (read(self.clusters[name].cluster(), at) for name in UPSTREAMS)
            is_shifted = at in record_policies.SHIFTED
            same = [
                [
                    (0 if is_shifted else offset, record_policies.comparable(at.topic, record))
                    for offset, record in each
                ]
                for each in (a, b)
            ]
            assert same[0] == same[1], (
                f"the upstreams differ in {at}: {len(a)} and {len(b)} records"
            )
            if is_shifted:
                assert len(a) == written[at], f"{at} does not hold what was written"
                assert [offset for offset, _ in a] != [offset for offset, _ in b], at
            elif at in written:
                assert [offset for offset, _ in a] == list(range(written[at])), (
                    f"{at} does not hold what was written"
                )
            found[at] = a
        return found

    def arrived(self, at: TopicPartition) -> list[Record]:
        """All committed records of a topic-partition at the destination."""
        return [
            record_policies.comparable(at.topic, record)
            for record in records_of(self.destination.cluster(), at)
        ]

    def ledger_complaint(self, expected: Mapping[TopicPartition, list[Record]]) -> str:
        """Describe what is wrong with the ledger; empty if it has all that must arrive."""
        counts = {(at.topic, at.partition): len(records) for at, records in expected.items()}
        ends = compare.ends(self.clusters[UPSTREAMS[0]], list(counts))
        return compare.ledger_complaint(self.destination, NAME, ends, counts)


@contextmanager
def start_environment(folder: Path) -> Iterator[Environment]:
    """Start all brokers and create the topics at the upstreams; stop the brokers at the end."""
    with ExitStack() as stack:
        clusters = {
            name: stack.enter_context(LocalCluster(name, folder=folder / name, config=LONG_SESSION))
            for name in (*UPSTREAMS, DESTINATION)
        }
        for name in UPSTREAMS:
            for topic, partitions in {**TOPICS, BOOKED: 1}.items():
                create(clusters[name].cluster(), topic, partitions, CONFIGS.get(topic))
        yield Environment(clusters)
