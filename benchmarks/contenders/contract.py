"""What the bench asks of a contender."""

from __future__ import annotations

from typing import Protocol

from benchmarks.values import Case, Cost


class Contender(Protocol):
    """Copies topics; lives through all repetitions, so a warm one may stay warm."""

    name: str
    """In the tables."""
    guarantee: str
    """Exactly once, or what else."""
    inputs: tuple[str, ...]
    """Those it takes part in; all if empty."""
    copies: bool
    """Whether records are to arrive; one that only reads counts them itself."""

    def copy(self, case: Case) -> Cost:
        """Copy the case's topic into its destination topic, which exists and is empty.

        A failure, its own time limit included, is a cost with an error; the bench counts what
        arrived in any case.
        """

    def close(self) -> None:
        """End what still runs."""
