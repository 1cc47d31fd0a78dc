"""The interface of a contender."""

from __future__ import annotations

from abc import ABC, abstractmethod

from benchmarks.inputs import all_but
from benchmarks.values import Case, Cost


class Contender(ABC):
    """Copies topics; one object serves all repetitions, so that it can stay warm."""

    name: str
    """The name in the tables."""
    guarantee = "exactly once"
    """The delivery guarantee."""
    inputs = all_but("many-10k")
    """The names of the inputs to copy."""
    copies = True
    """Whether it copies records; a contender that only reads counts them itself."""
    keeps_partitions = True
    """Whether each record goes to the topic-partition that has the number of its source."""

    @abstractmethod
    def copy(self, case: Case) -> Cost:
        """Copy the case's topics into its destination topics, which exist and are empty.

        A failure or a timeout is a cost with an error. The benchmark counts the copied records in
        any case.
        """

    def close(self) -> None:  # noqa: B027 - most contenders have nothing to stop
        """Stop all processes that are still running."""
