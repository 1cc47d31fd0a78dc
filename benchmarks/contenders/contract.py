"""The interface of a contender."""

from __future__ import annotations

from typing import Protocol

from benchmarks.values import Case, Cost


class Contender(Protocol):
    """Copies topics; one object serves all repetitions, so that it can stay warm."""

    name: str
    """The name in the tables."""
    guarantee: str
    """The delivery guarantee, such as "exactly once"."""
    inputs: tuple[str, ...]
    """The names of the inputs to copy; all if empty."""
    copies: bool
    """Whether it copies records; a contender that only reads counts them itself."""

    def copy(self, case: Case) -> Cost:
        """Copy the case's topic into its destination topic, which exists and is empty.

        A failure or a timeout is a cost with an error. The benchmark counts the copied records in
        any case.
        """

    def close(self) -> None:
        """Stop all processes."""
