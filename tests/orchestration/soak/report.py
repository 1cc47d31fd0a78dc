"""What a soak has measured, and what of it is not as it should be."""

from collections.abc import Sequence
from dataclasses import dataclass, field

from tests.orchestration.soak.faults import Strike
from tests.orchestration.soak.growth import Verdict
from tests.orchestration.soak.limits import judged
from tests.orchestration.soak.sampling import Sample

_MOST_PROCESSES = 40


@dataclass(frozen=True, slots=True)
class Report:
    """What a soak has measured.

    Args:
        strikes: the faults and events, in their order.
        starts: how often `dagster dev` was started.
        records: that are in the copies.
        stall: from when until when nothing was copied for longest, in seconds since the start.
        left: the sizes of the temporary files that were left at the end.
        complaints: what is wrong with the copy, what was not seen in time, and the processes left;
            empty if all is well.
    """

    seconds: float
    seed: int
    samples: Sequence[Sample]
    strikes: Sequence[Strike]
    starts: int
    records: int
    stall: tuple[float, float]
    left: Sequence[int] = field(default_factory=list)
    complaints: Sequence[str] = field(default_factory=list)

    def failures(self) -> list[str]:
        """What is not as it should be: the copy, and the series that grow beyond their limits."""
        grown = [
            f"{series.name}, {series.what}: grows by {series.text(series.growth.slope)}"
            f" {series.growth.per}; the limit is {series.text(series.growth.limit)}"
            for series in judged(self.samples)
            if series.growth.verdict is Verdict.GROWS
        ]
        most = max(processes(sample) for sample in self.samples)
        if most > _MOST_PROCESSES:
            grown.append(f"{most} processes at one time; the limit is {_MOST_PROCESSES}")
        return [*self.complaints, *grown]


def processes(sample: Sample) -> int:
    """How many there were."""
    return sum(usage.processes for usage in sample.roles.values())
