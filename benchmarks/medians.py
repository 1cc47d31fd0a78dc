"""Medians over the repetitions, and rates and ratios of them."""

from __future__ import annotations

from dataclasses import dataclass
from statistics import median

from benchmarks.values import Cost, Figures, Result


@dataclass(frozen=True, slots=True)
class Median:
    """The medians of one contender on one input; None where nothing was measured."""

    results: tuple[Result, ...]

    @property
    def complete(self) -> tuple[Result, ...]:
        """The repetitions that copied every record once."""
        return tuple(result for result in self.results if result.complete)

    def of(self, field: str) -> float | None:
        """The median of a field of `Cost`."""
        found = [
            value for result in self.complete if (value := getattr(result.cost, field)) is not None
        ]
        return float(median(found)) if found else None

    def per_second(self, field: str = "copy_seconds") -> float | None:
        """Records per second of a field of `Cost`."""
        seconds = self.of(field)
        return self.results[0].records / seconds if seconds else None

    def per_gb(self, field: str) -> float | None:
        """Seconds of a field of `Cost` per 10^9 bytes of the source's batches."""
        seconds = self.of(field)
        return None if seconds is None else seconds / (self.results[0].size_bytes / 1e9)

    @property
    def megabytes_per_second(self) -> float | None:
        """The rate of the copy phase."""
        seconds = self.of("copy_seconds")
        return self.results[0].size_bytes / 1e6 / seconds if seconds else None


def median_of(figures: Figures, input_name: str, contender: str) -> Median | None:
    """The medians of one contender on one input; None if it never ran."""
    found = tuple(
        result
        for result in figures.results
        if (result.input, result.contender) == (input_name, contender)
    )
    return Median(found) if found else None


def ratio(one: float | None, other: float | None) -> float | None:
    """The ratio of two figures, if both were measured."""
    return None if one is None or not other else one / other


def peak_memory_bytes(figures: Figures, contender: str) -> int | None:
    """The largest peak memory of one process of the contender, over all inputs."""
    costs: list[Cost] = [result.cost for result in figures.results if result.contender == contender]
    return max(
        (cost.peak_memory_bytes for cost in costs if cost.peak_memory_bytes is not None),
        default=None,
    )
