"""Compares source, destination and ledger with a client that shares no code with the copy."""

import hashlib
import itertools
import json
import time
from collections.abc import Iterator
from typing import Any

from confluent_kafka.admin import AdminClient

from relay_pipelines.ledger.offset_runs import OffsetRuns
from relay_pipelines.local_kafka import LocalCluster
from relay_pipelines.model import TopicPartition
from tests.support import independent
from tests.support.independent import client, records_of

_SECONDS = 60.0
_MARKER_SECONDS = 5.0


def ledger(cluster: LocalCluster, mirror: str) -> list[dict[str, Any]]:
    """All committed ledger entries of a mirror, by source topic-partition and offset."""
    entries = [json.loads(value) for _, value in _state(cluster, "__relay_ledger", mirror)]
    return sorted(entries, key=lambda entry: (_source(entry), entry["source"]["start"]))


def _state(cluster: LocalCluster, topic: str, mirror: str) -> Iterator[tuple[bytes, bytes]]:
    """Yield key and value of a mirror's committed records, in the order of each partition."""
    for at in _partitions(cluster, topic):
        for record in records_of(cluster.cluster(), TopicPartition(*at)):
            if record.key and record.key.startswith(f"{mirror}/".encode()):
                yield record.key, record.value or b""


def assert_chained(cluster: LocalCluster, mirror: str) -> None:
    """Assert that every entry names the one before it, and the checkpoint the newest one."""
    hashes: dict[bytes, list[str]] = {}
    for key, value in _state(cluster, "__relay_ledger", mirror):
        before, entry = hashes.setdefault(key, ["start"]), json.loads(value)
        assert (entry["number"], entry["previous"]) == (len(before), before[-1]), (
            f"the chain of {key!r} breaks at entry {len(before)}"
        )
        before.append(hashlib.sha256(value).hexdigest())
    heads = {
        key: json.loads(value)["ledger_head"]["hash"]
        for key, value in _state(cluster, "__relay_checkpoints", mirror)
        if key in hashes
    }
    assert heads == {key: some[-1] for key, some in hashes.items()}


def ends(
    cluster: LocalCluster, wanted: list[tuple[str, int]], *, stable: bool = True
) -> dict[tuple[str, int], int]:
    """The last stable offset of every topic-partition, or its high watermark."""
    asked = [TopicPartition(*at) for at in wanted]
    found = independent.ends(cluster.cluster(), asked, stable=stable)
    return {(at.topic, at.partition): offset for at, offset in found.items()}


def assert_ledger_covers(
    cluster: LocalCluster,
    mirror: str,
    source_ends: dict[tuple[str, int], int],
    counts: dict[tuple[str, int], int],
) -> None:
    """Assert that the ledger is a chain, covers every source offset once and counts the records."""
    assert_chained(cluster, mirror)
    entries = ledger(cluster, mirror)
    assert {_source(entry) for entry in entries} == {at for at, stop in source_ends.items() if stop}
    for at, group in itertools.groupby(entries, _source):
        assert_covers(list(group), at, source_ends[at], counts[at])


def assert_covers(
    entries: list[dict[str, Any]], at: tuple[str, int], source_end: int | None, count: int
) -> None:
    """Assert that entries of so many records cover every source offset once, to a known end."""
    assert [entry["source"]["start"] for entry in entries] == [
        0,
        *(entry["source"]["end"] for entry in entries[:-1]),
    ], f"gap or overlap in {at}"
    assert source_end is None or entries[-1]["source"]["end"] == source_end
    assert sum(entry["records"] for entry in entries) == count
    for entry in entries:
        offsets = entry["source"]["end"] - entry["source"]["start"]
        assert entry["records"] + sum(entry["skipped"].values()) == offsets
    landed = [
        (entry["destination"]["start"], entry["destination"]["end"])
        for entry in entries
        if entry["records"]
    ]
    assert all(before[1] <= after[0] for before, after in itertools.pairwise(landed)), (
        f"destination ranges of {at} overlap"
    )


def assert_maps(cluster: LocalCluster, mirror: str, offsets: dict[int, list[int]], to: str) -> None:
    """Assert that entries say which offsets have a copy, and where the copies are in `to`."""
    entries = ledger(cluster, mirror)
    has_gaps = any(at != [*range(at[0], at[-1] + 1)] for at in offsets.values() if at)
    assert any(entry["source_runs"] for entry in entries) is has_gaps, "no chunk had a gap"
    assert offsets, "nothing to compare"
    for partition, expected in offsets.items():
        own = [entry for entry in entries if _source(entry)[1] == partition]
        copies = independent.read(cluster.cluster(), TopicPartition(to, partition))
        assert _mapped(own, "source") == expected
        assert _mapped(own, "destination") == [offset for offset, _ in copies]


def _mapped(entries: list[dict[str, Any]], side: str) -> list[int]:
    found: list[int] = []
    for entry in entries:
        start, end, text = entry[side]["start"], entry[side]["end"], entry[f"{side}_runs"]
        runs = OffsetRuns.of_text(text, start).runs() if text else [(start, end)]
        if entry["records"]:
            found += [offset for first, last in runs for offset in range(first, last)]
    return found


def assert_ledger_covers_logs(
    cluster: LocalCluster,
    mirror: str,
    source_ends: dict[tuple[str, int], int],
    counts: dict[tuple[str, int], list[int]],
) -> None:
    """The same if topics were recreated and taken on again: each log is covered once."""
    assert_chained(cluster, mirror)
    entries = sorted(ledger(cluster, mirror), key=lambda each: (_source(each), each["number"]))
    assert {_source(entry) for entry in entries} == set(counts)
    for at, group in itertools.groupby(entries, _source):
        logs: list[list[dict[str, Any]]] = [[]]
        for entry in group:
            if entry["gap"]:
                assert "was deleted and created again" in entry["gap"], entry["gap"]
                logs.append([])
            else:
                logs[-1].append(entry)
        assert len(logs) == len(counts[at]), f"{at}: the ledger knows of {len(logs) - 1} losses"
        for number, (own, count) in enumerate(zip(logs, counts[at], strict=True), 1):
            assert_covers(own, at, source_ends[at] if number == len(logs) else None, count)


def ledger_complaint(
    cluster: LocalCluster,
    mirror: str,
    source_ends: dict[tuple[str, int], int],
    counts: dict[tuple[str, int], int],
) -> str:
    """Describe what is wrong with the ledger, as `assert_ledger_covers`; empty if nothing is."""
    try:
        assert_ledger_covers(cluster, mirror, source_ends, counts)
    except AssertionError as error:
        return str(error).splitlines()[0] if str(error) else "it does not cover every offset once"
    return ""


def held_back(cluster: LocalCluster, topics: list[str]) -> list[str]:
    """Where an open transaction blocks readers, seconds after the last commit; its offset."""
    wanted = [at for topic in topics for at in _partitions(cluster, topic)]
    deadline = time.monotonic() + _MARKER_SECONDS
    while True:
        stable, high = ends(cluster, wanted), ends(cluster, wanted, stable=False)
        found = [f"{at} at {stable[at]} of {high[at]}" for at in wanted if stable[at] != high[at]]
        if not found or time.monotonic() > deadline:
            return found
        time.sleep(0.05)


def _source(entry: dict[str, Any]) -> tuple[str, int]:
    at = entry["source"]["topic_partition"]
    return at["topic"], at["partition"]


def _partitions(cluster: LocalCluster, topic: str) -> list[tuple[str, int]]:
    # keep the client in a variable: else it is closed before its answer arrives
    admin = _admin(cluster)
    return [
        (topic, partition)
        for partition in sorted(admin.list_topics(topic, _SECONDS).topics[topic].partitions)
    ]


def _admin(cluster: LocalCluster) -> AdminClient:
    return AdminClient(client(cluster.cluster()))
