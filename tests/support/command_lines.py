"""What every user of a machine can see of this process's children: their command lines."""

import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress

import psutil

_PAUSE_SECONDS = 0.01


@contextmanager
def of_children() -> Iterator[set[str]]:
    """Collect the command lines of all processes below this one, also of those that end soon."""
    found: set[str] = set()
    ended = threading.Event()

    def collect() -> None:
        while not ended.wait(_PAUSE_SECONDS):
            for child in psutil.Process().children(recursive=True):
                with suppress(psutil.Error):
                    found.add(" ".join(child.cmdline()))

    thread = threading.Thread(target=collect, daemon=True)
    thread.start()
    try:
        yield found
    finally:
        ended.set()
        thread.join()
