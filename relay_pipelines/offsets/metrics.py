"""The groups that a mirror follows, as gauges of the exporter."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator

from relay_pipelines.metrics.exporter import Sample
from relay_pipelines.offsets.group_look import Following, GroupLooker
from relay_pipelines.sides import Sides


def group_samples(sides: Sides) -> Callable[[], list[Sample]]:
    """Return what looks at the groups of a mirror, and returns the values of their gauges."""
    looker = GroupLooker(sides)
    return lambda: list(_samples(looker))


def _samples(looker: GroupLooker) -> Iterator[Sample]:
    name = looker.sides.name
    if not looker.sides.mirror.groups.allow:
        return
    states: Counter[Following] = Counter()
    for look in looker.look():
        states[look.state] += 1
        if look.state is Following.FOLLOWED:
            labels = name, look.group
            yield Sample("group_lag_records", labels, look.lag_records)
            yield Sample("group_lag_seconds", labels, look.lag_seconds)
    for state in Following:
        yield Sample("groups", (name, state.name.lower()), states[state])
