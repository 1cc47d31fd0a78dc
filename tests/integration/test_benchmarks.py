"""The benchmark at a small scale: its inputs are as described and its copies are complete."""

from __future__ import annotations

import pytest

from benchmarks import clusters, report, seeding
from benchmarks.contenders.confluent_loop import ConfluentLoop
from benchmarks.contenders.mirrormaker import MirrorMaker
from benchmarks.contenders.relay_spark import RelaySpark
from benchmarks.contenders.relay_task import RelayTask
from benchmarks.inputs import INPUTS, Input
from benchmarks.run import Figures
from benchmarks.targets import targets
from benchmarks.values import Case, Cost, Result
from relay_pipelines.embedded import EmbeddedCluster

BY_NAME = {case.name: case for case in INPUTS}
RECORDS = 3_000


def small(name: str) -> Input:
    wanted = BY_NAME[name]
    return wanted.scaled(RECORDS / wanted.records)


@pytest.mark.parametrize("name", ["1k-128k", "1k-16k", "100b-128k", "100b-16k"])
def test_every_batch_but_the_last_is_filled_as_far_as_whole_records_go(name: str) -> None:
    wanted = small(name)
    *full, last = [len(batch.data) for batch in seeding.batches(wanted, 0)]
    record_bytes = wanted.value_bytes + 32
    assert full
    assert all(wanted.batch_bytes - record_bytes < size <= wanted.batch_bytes for size in full)
    assert last <= wanted.batch_bytes


def test_one_record_batches_hold_one_record() -> None:
    batches = list(seeding.batches(small("one-record"), 0))
    assert [batch.header.records for batch in batches] == [1] * (RECORDS // 2)


def test_half_of_an_lz4_batch_compresses() -> None:
    batch = next(seeding.batches(small("1k-lz4"), 0))
    assert 0.45 < len(batch.data) / BY_NAME["1k-lz4"].batch_bytes < 0.6


@pytest.mark.parametrize(
    "contender", [RelayTask(), ConfluentLoop()], ids=lambda contender: contender.name
)
def test_a_contender_copies_every_record_and_says_what_it_cost(
    contender: RelayTask | ConfluentLoop,
    source_cluster: EmbeddedCluster,
    destination_cluster: EmbeddedCluster,
    topic_name: str,
) -> None:
    source, destination = source_cluster.cluster(), destination_cluster.cluster()
    extents = clusters.make_input(source, topic_name, small("1k-lz4"))
    clusters.create_own_topics(destination)
    case = Case(
        f"small-{len(contender.name)}", source, destination, topic_name, extents, "lz4", 60.0
    )
    clusters.create_topic(destination, case.destination_topic)
    cost = contender.copy(case)
    assert cost.error == ""
    assert [extent.records for extent in clusters.scan(destination, case.destination_topic)] == [
        extent.records for extent in extents
    ]
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
    reached = {target.measured: target.reached for target in targets(figures)}
    assert reached == {"8.0x": True, "1/14.0": False, "0.90 s/GB": True, "90 MB": True}
    assert "repetition 2: 999,999 of 1,000,000 records copied" in report.as_markdown(figures, {})
