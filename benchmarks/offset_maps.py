"""What a ledger entry pays to say which offsets have a copy: `python -m benchmarks.offset_maps`.

Prints, for chunks of 300,000 records with gaps of different kinds, the length of the text, the CPU
time to make it, per record, and to answer for one offset. Then what the loop that merges records
pays to note their offsets, and what is the least that such a loop can pay.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from random import Random
from typing import Any

from relay_pipelines.ledger.offset_runs import OffsetRuns, RunEncoder
from relay_pipelines.protocol.batch import BatchRun
from relay_pipelines.protocol.records import (
    AscendingOffsets,
    BatchBuilder,
    Record,
    checked_records,
)

_RECORDS = 300_000
_QUESTIONS = 300
_SPAN = 1_000  # records of a batch
_LIMIT_BYTES = 1 << 20
_ROUNDS = 400


def main() -> None:
    """Print a row per kind of gaps."""
    random = Random(1)
    half = [offset for offset in range(2 * _RECORDS) if random.random() < 0.5]
    hundredth = [offset for offset in range(100 * _RECORDS) if random.random() < 0.01]
    kinds: dict[str, Callable[[RunEncoder], None]] = {
        "a marker after every 1,000 records": lambda encoder: _runs(encoder, 1_000),
        "a marker after every record": lambda encoder: _runs(encoder, 1),
        "every second offset": _spans(range(0, 2 * _RECORDS, 2)),
        "a gap after every 50 records": _spans(
            [offset for offset in range(_RECORDS * 51 // 50) if offset % 51]
        ),
        "half of the offsets, at random": _spans(half),
        "one offset in a hundred, at random": _spans(hundredth),
    }
    print(
        "offsets with a copy | text, bytes | to make, ns a record | to ask, ms | to ask again, us"
    )
    for name, fill in kinds.items():
        encoder = RunEncoder(0)
        began = time.process_time()
        fill(encoder)  # the distances were taken before, in the loop that merges
        text = encoder.text()
        made = time.process_time()
        runs = OffsetRuns.of_text(text, 0)
        runs.count_below(1000)
        answered = time.process_time()
        for _ in range(_QUESTIONS):
            runs.count_below(random.randrange(2 * _RECORDS))
        making, first, again = made - began, answered - made, time.process_time() - answered
        print(
            f"{name} | {len(text):,} | {making / encoder.count * 1e9:.0f} | {first * 1e3:.1f}"
            f" | {again / _QUESTIONS * 1e6:.0f}"
        )
    _loops()


def _loops() -> None:
    """Print the CPU time of the loop that merges, per record of 100 bytes; the least of many."""
    builder = BatchBuilder(0, _LIMIT_BYTES)
    builder.extend(Record(0, number, b"%08x" % number, bytes(100), []) for number in range(_SPAN))
    batch = builder.build()
    run = BatchRun(batch.header, batch.header, batch.data, _SPAN)

    def merge(records: Iterable[Any], offsets: AscendingOffsets | None = None) -> None:
        assert BatchBuilder(0, _LIMIT_BYTES).extend(records, offsets) is None

    def attribute_alone() -> None:
        for record in checked_records(run, _SPAN).remaining:
            record.offset  # noqa: B018 - what it costs to read it

    ways: dict[str, Callable[[], object]] = {
        "merge, through a generator": lambda: merge(iter(checked_records(run, _SPAN))),
        "merge": lambda: merge(checked_records(run, _SPAN)),
        "merge, and note distances": lambda: merge(
            checked_records(run, _SPAN), AscendingOffsets(0)
        ),
        "decode": lambda: deque(checked_records(run, _SPAN).remaining, 0),
        "decode, and read each offset": attribute_alone,
    }
    least = dict.fromkeys(ways, float("inf"))
    for _ in range(_ROUNDS):  # in turn, as others use the machine
        for name, way in ways.items():
            began = time.thread_time()
            way()
            least[name] = min(least[name], time.thread_time() - began)
    print("\nloop | ns a record")
    for name, seconds in least.items():
        print(f"{name} | {seconds / _SPAN * 1e9:.0f}")


def _runs(encoder: RunEncoder, length: int) -> None:
    for first in range(0, _RECORDS * (length + 1) // length, length + 1):
        encoder.add_run(first, first + length)


def _spans(offsets: Sequence[int]) -> Callable[[RunEncoder], None]:
    batches, start = [], 0
    for at in range(0, len(offsets), _SPAN):
        batches.append(AscendingOffsets.of(start, offsets[at : at + _SPAN]))
        start = batches[-1].last

    def fill(encoder: RunEncoder) -> None:
        for batch in batches:
            encoder.add(batch)

    return fill


if __name__ == "__main__":
    main()
