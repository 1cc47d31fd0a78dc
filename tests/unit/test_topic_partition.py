"""A topic-partition is compared by identity, so there must be one object of each."""

from __future__ import annotations

import copy
import dataclasses
import pickle
import sys
from concurrent.futures import ThreadPoolExecutor
from threading import Barrier

import pytest
from pydantic import TypeAdapter

from relay_pipelines import json_codec
from relay_pipelines.model import OffsetRange, TopicPartition


def test_one_object_of_each() -> None:
    """However it is made: by name, by a task that unpickles it, from JSON, or as a copy."""
    tp = TopicPartition("orders", 1)
    offsets = OffsetRange(tp, 0, 9)

    assert TopicPartition(partition=1, topic=b"orders".decode()) is tp
    assert pickle.loads(pickle.dumps(offsets)).topic_partition is tp
    assert json_codec.from_json(OffsetRange, json_codec.to_json(offsets)) == offsets
    assert {copy.copy(tp), copy.deepcopy(tp), dataclasses.replace(tp)} == {tp}
    assert dataclasses.asdict(offsets)["topic_partition"] == {"topic": "orders", "partition": 1}
    adapter = TypeAdapter(OffsetRange)
    assert adapter.validate_json(adapter.dump_json(offsets)).topic_partition is tp
    assert adapter.validate_python(offsets).topic_partition is tp
    assert tp != TopicPartition("orders", 2)
    with pytest.raises(dataclasses.FrozenInstanceError):
        tp.partition = 2  # type: ignore[misc]


def test_threads_get_the_same() -> None:
    """Two that make one at the same moment do not get two."""
    threads, before = 8, sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        with ThreadPoolExecutor(threads) as pool:
            for number in range(200):
                barrier = Barrier(threads)

                def make(number: int = number, barrier: Barrier = barrier) -> TopicPartition:
                    barrier.wait()
                    return TopicPartition(f"made-{number}", 0)

                made = [pool.submit(make) for _ in range(threads)]
                assert len({id(each.result()) for each in made}) == 1
    finally:
        sys.setswitchinterval(before)


def test_order() -> None:
    """By topic, then by the partition's number."""
    ordered = [TopicPartition("a", 2), TopicPartition("a", 10), TopicPartition("b", 0)]
    assert sorted([ordered[2], *ordered[:2]]) == ordered
    assert ordered[0] <= ordered[1] < ordered[2]
    assert OffsetRange(ordered[1], 5, 6) < OffsetRange(ordered[2], 0, 1)
