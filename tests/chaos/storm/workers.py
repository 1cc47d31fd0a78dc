"""Kills Python workers of Spark during a run."""

import random

import psutil

_CHANCE = 0.3


class Workers:
    """Kills a worker now and then; Spark retries its task a few times, then the run fails."""

    def __init__(self, seed: int) -> None:
        self._chance = random.Random(seed)
        self.killed = 0

    def strike(self) -> None:
        """Kill a random active worker, or none."""
        running = _running()
        if running and self._chance.random() < _CHANCE:
            try:
                self._chance.choice(running).kill()
            except psutil.NoSuchProcess:
                return
            self.killed += 1


def _running() -> list[psutil.Process]:
    """The processes forked by the PySpark daemon."""
    found = []
    for child in psutil.Process().children(recursive=True):
        try:
            parent = child.parent()
            if parent is not None and "pyspark.worker" in parent.cmdline():
                found.append(child)
        except psutil.NoSuchProcess:
            continue
    return found
