"""The benchmark at a small scale: its inputs are as described and its copies are complete."""

import uuid
from dataclasses import replace

import pytest

from benchmarks import clusters, report, seeding
from benchmarks.contenders.confluent_loop import ConfluentLoop
from benchmarks.contenders.contract import Contender
from benchmarks.contenders.mirrormaker import MirrorMaker
from benchmarks.contenders.relay_spark import RelaySpark
from benchmarks.contenders.relay_task import RelayTask
from benchmarks.inputs import INPUTS, Input
from benchmarks.targets import targets
from benchmarks.values import Case, Cost, Figures, Result
from relay_pipelines.local_kafka import LocalCluster

BY_NAME = {case.name: case for case in INPUTS}
RECORDS = 3_000


def small(name: str) -> Input:
    wanted = BY_NAME[name]
    return wanted.scaled(RECORDS / wanted.records)


def test_inputs_are_as_described() -> None:
    """Batches are filled as far as whole records go, and compress by half; topics shrink."""
    for name in ("1k-128k", "1k-16k", "100b-128k", "100b-16k"):
        wanted = small(name)
        *full, last = [len(batch.data) for batch in seeding.batches(wanted, 0)]
        least = wanted.batch_bytes - wanted.value_bytes - 32
        assert full
        assert all(least < size <= wanted.batch_bytes for size in full)
        assert last <= wanted.batch_bytes
    batches = list(seeding.batches(small("one-record"), 0))
    assert [batch.header.records for batch in batches] == [1] * (RECORDS // 2)
    for name in ("1k-lz4", "1k-16k-zstd", "1k-16k-gzip"):
        batch = next(seeding.batches(small(name), 0))
        assert 0.45 < len(batch.data) / BY_NAME[name].batch_bytes < 0.6
    wanted = BY_NAME["many"].scaled(0.01)
    partitions = wanted.topic_partitions("t")
    assert {one.topic for one in partitions} == {"t-0", "t-1", "t-2"}
    assert wanted.records == len(partitions) == 30


def copied(contender: Contender, wanted: Input, source: LocalCluster, to: LocalCluster) -> Cost:
    topic = f"bench-{uuid.uuid4().hex[:8]}"
    extents = clusters.make_input(source.cluster(), topic, wanted)
    clusters.create_own_topics(to.cluster())
    attempt = f"attempt-{uuid.uuid4().hex[:8]}"
    case = Case(attempt, source.cluster(), to.cluster(), topic, wanted, extents, 60.0)
    clusters.create_destinations(case.destination, case)
    cost = contender.copy(case)
    assert cost.error == ""
    found = clusters.scan(case.destination, [destination for _, destination in case.pairs])
    assert [one.records for one in found] == [one.records for one in extents]
    assert sum(one.records for one in found) == wanted.records
    return cost


@pytest.mark.parametrize("contender", [RelayTask(), ConfluentLoop()], ids=lambda one: one.name)
def test_a_contender_copies_every_record_and_says_what_it_cost(
    contender: Contender, source_cluster: LocalCluster, destination_cluster: LocalCluster
) -> None:
    for wanted in (
        small("1k-lz4"),
        replace(BY_NAME["64-in-a-task"], partitions=6, records=RECORDS),
        replace(BY_NAME["many"], topics=3, records=30),
        replace(BY_NAME["10mb"], records=4),
    ):
        cost = copied(contender, wanted, source_cluster, destination_cluster)
        assert cost.copy_seconds
        assert cost.copy_cpu_seconds
        assert cost.peak_memory_bytes


def test_the_report_tells_what_was_reached_and_leaves_incomplete_copies_out() -> None:
    wanted = BY_NAME["1k-128k"]
    cheap = Cost(
        copy_seconds=2.0, copy_cpu_seconds=1.0, task_cpu_seconds=0.9, peak_memory_bytes=90_000_000
    )
    dear = Cost(copy_seconds=16.0, copy_cpu_seconds=14.0)
    size = (1_000_000, 1_000_000_000)
    figures = Figures(
        inputs=[wanted],
        extents={wanted.name: ()},
        guarantees={RelaySpark.name: "exactly once", MirrorMaker.name: "exactly once"},
        results=[
            Result(wanted.name, RelaySpark.name, 1, *size, 1_000_000, cheap),
            Result(wanted.name, RelaySpark.name, 2, *size, 999_999, Cost(copy_seconds=0.1)),
            Result(wanted.name, MirrorMaker.name, 1, *size, 1_000_000, dear),
        ],
    )
    expected = {"8.0x": True, "1/14.0": False, "0.90 s/GB": True, "90 MB": True}
    assert {target.measured: target.reached for target in targets(figures)} == expected
    written = report.as_markdown(figures, {})
    incomplete = next(line for line in written.splitlines() if line.startswith("Incomplete"))
    assert incomplete.startswith("Incomplete in repetition 2: ")
    assert "999,999 of 1,000,000 records copied" in incomplete

    many = BY_NAME["many"].name
    took = {RelayTask.name: 8.0, RelaySpark.name: 8.1}
    results = [
        Result(many, name, 1, 3_000, 1, 3_000, Cost(copy_seconds=s)) for name, s in took.items()
    ]
    figures = Figures(inputs=[BY_NAME["many"]], results=results)
    in_seconds = [target.reached for target in targets(figures)]
    assert in_seconds == [True, False], "small ranges have a target in seconds"
