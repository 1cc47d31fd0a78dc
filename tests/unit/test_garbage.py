"""What Python's garbage collector looks at while a snapshot is taken or a task copies."""

from __future__ import annotations

import gc
import weakref

from relay_pipelines.garbage import only_new_garbage_collected


class Node:
    """Something in a cycle, as an error and the frames of its traceback are."""

    def __init__(self) -> None:
        self.itself = self


def test_only_what_is_new_is_collected() -> None:
    """New cycles are freed at once, those that were there before only afterwards: nothing leaks."""
    old = weakref.ref(Node())
    with only_new_garbage_collected():
        new = weakref.ref(Node())
        gc.collect()
        assert (old() is None, new() is None) == (False, True)
    gc.collect()
    assert old() is None
    assert not gc.get_freeze_count()
