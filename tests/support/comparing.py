"""Two topics on the shared clusters, and what `relay compare` and an independent reader say."""

import uuid
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import pytest

from relay_pipelines.api import compare_clusters
from relay_pipelines.compare import reading
from relay_pipelines.compare.comparing import compare, settings_of
from relay_pipelines.compare.pairs import KINDS
from relay_pipelines.compare.request import CompareRequest
from relay_pipelines.compare.result import Compared
from relay_pipelines.model import OffsetRange, TopicPartition
from relay_pipelines.protocol.client import ClusterClient
from relay_pipelines.protocol.clock import SystemClock
from relay_pipelines.protocol.reader import FetchedSpan, read
from relay_pipelines.sides import Sides
from tests.copying import KEPT, Clusters
from tests.support import independent
from tests.support.independent import CREATE_TIME, Record


def numbered(count: int, first: int = 0) -> list[Record]:
    """Records of some keys, each of its own time and value."""
    return [
        Record(b"k%d" % (n % 7), b"v%d" % n, (), (CREATE_TIME, 1_700_000_000_000 + n))
        for n in range(first, first + count)
    ]


class Two:
    """A topic on both clusters, under the same name."""

    def __init__(
        self, sides: Clusters, partitions: int = 1, there: int = 0, *, config: Any = None
    ) -> None:
        self.sides = sides
        self.topic = f"compared-{uuid.uuid4().hex[:8]}"
        for cluster, count in zip(sides, (partitions, there or partitions), strict=True):
            independent.create(cluster, self.topic, count, KEPT | (config or {}))

    def write(self, side: int, *batches: Sequence[Record], to: int = 0, **config: object) -> None:
        """Write each of `batches` as one batch."""
        independent.write(self.sides[side], TopicPartition(self.topic, to), *batches, **config)

    def records(self, side: int, partition: int = 0) -> list[Record]:
        """What an independent reader finds."""
        return independent.records_of(self.sides[side], TopicPartition(self.topic, partition))

    def compare(self, **asked: Any) -> Compared:
        """Compare the topic."""
        return compared(self.sides, self.topic, **asked)

    def only(self, **asked: Any) -> tuple[dict[str, int], dict[str, int]]:
        """Return the differences of the only pair, and what was not compared."""
        (found,) = self.compare(**asked).results
        assert found.error == ""
        return (
            {kind: found.numbers[kind] for kind in KINDS if found.numbers[kind]},
            dict(found.not_compared),
        )

    def multiset(self, partition: int = 0) -> tuple[int, int]:
        """How many records one side has and the other has not, by an independent reader."""
        here, there = (Counter(self.records(side, partition)) for side in (0, 1))
        return (here - there).total(), (there - here).total()


def after_first_fetch(patch: pytest.MonkeyPatch, side: int, act: Callable[[], object]) -> None:
    """Let a comparison read little at once; call `act` when a side was read in part, once."""
    acts = [act]

    def little(client: ClusterClient, offsets: OffsetRange, _: int) -> Iterator[list[FetchedSpan]]:
        for spans in read(client, offsets, 100):
            yield spans
            if acts and spans and client.cluster.name == ("source", "destination")[side]:
                acts.pop()()

    patch.setattr(reading, "read", little)


def compared(sides: Clusters, *topics: str, **asked: Any) -> Compared:
    """Compare topics of two clusters, as the command does.

    Args:
        asked: of the request; or `session`, which returns a Spark session; or `meanwhile`, which
            is called when it is known what is to be read; or the driver's `clock`.
    """
    source, destination = (",".join(cluster.bootstrap_servers) for cluster in sides)
    session, meanwhile = asked.pop("session", None), asked.pop("meanwhile", None)
    clock = asked.pop("clock", None)
    request = CompareRequest(source, destination, topics, **asked)
    if not session and not meanwhile and not clock:
        return compare_clusters(request)

    def progress(_: Compared) -> AbstractContextManager[Callable[[int], None]]:
        if meanwhile:
            meanwhile()
        return nullcontext(lambda _: None)

    ((name, mirror),) = settings_of(request).mirrors.items()
    sides_of_it = Sides(name, mirror, clock=clock or SystemClock())
    return compare(sides_of_it, request, session or (lambda: None), progress)
