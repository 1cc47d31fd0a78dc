"""What a copy makes of interleaved transactions, whichever brokers are source and destination."""

import pytest

from relay_pipelines.local_kafka import LocalCluster
from tests.copying import Mirror, numbered
from tests.support.independent import put, settled_end, transactional


class InterleavedTransactions:
    """Subclass it beside the fixtures `source_cluster` and `destination_cluster`."""

    @pytest.fixture
    def mirror(
        self, source_cluster: LocalCluster, destination_cluster: LocalCluster, topic_name: str
    ) -> Mirror:
        return Mirror(source_cluster.cluster(), destination_cluster.cluster(), topic_name)

    @pytest.mark.parametrize("size", [20, 2000], ids=["merged", "verbatim"])
    def test_interleaved_transactions(self, mirror: Mirror, size: int) -> None:
        """Committed records arrive in order, and aborted ones do not arrive."""
        one, two = (transactional(mirror.source, f"{mirror.topic}-{name}") for name in ("1", "2"))
        first = iter(range(0, 10_000, 10))
        aborted = 0
        for ending in ("cc", "ca", "ac", "aa", "cc"):
            one.begin_transaction()
            two.begin_transaction()
            for _ in range(2):
                for sender in (one, two):
                    put(sender, mirror.at, numbered(10, size, next(first)))
                    sender.flush(30)
                mirror.write(numbered(10, size, next(first)))
            for sender, end in zip((one, two), ending, strict=True):
                (sender.commit_transaction if end == "c" else sender.abort_transaction)(30)
                aborted += 20 * (end == "a")
        settled_end(mirror.source, mirror.at)
        outcome = mirror.with_options(fetch_max_bytes=5000).copy()
        assert outcome.skipped == {"control": 10, "aborted": aborted}
        assert outcome.records == 300 - aborted
        mirror.assert_equal()
