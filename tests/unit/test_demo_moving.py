"""What the demo of a move counts."""

from __future__ import annotations

import pytest

from relay_pipelines.demo.moving import Written, problems

A0, B1, A2 = Written("a", 0), Written("b", 1), Written("a", 2)


@pytest.mark.parametrize(
    ("read", "found"),
    [
        ([A0, B1, A2], []),
        ([B1, A0, A2], []),
        ([A0, A2], ["was not read"]),
        ([A0, B1, A2, B1], ["was read 2 times"]),
        ([A2, A0, B1], ["a: 0 was read after 2"]),
    ],
)
def test_each_record_once_and_in_order_per_key(read: list[Written], found: list[str]) -> None:
    said = problems([A0, B1, A2], read)
    assert len(said) == len(found)
    assert all(text in line for text, line in zip(found, said, strict=True))
