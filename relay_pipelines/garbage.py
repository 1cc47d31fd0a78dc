"""When Python's cyclic garbage collector works, and on what."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def garbage_collection_paused() -> Iterator[None]:
    """Pause the collector, which finds nothing among records: none is in a cycle.

    With many records in memory, it takes two thirds of the time.
    """
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()


@contextmanager
def only_new_garbage_collected() -> Iterator[None]:
    """Keep the collector from what exists already, such as modules and planned ranges.

    With many topic-partitions, looking at it again and again takes a fifth of the CPU. What is
    made from here on may be in cycles, as errors are, and is collected.
    """
    gc.freeze()
    try:
        yield
    finally:
        gc.unfreeze()
