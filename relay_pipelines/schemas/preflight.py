"""Whether the registries of a mirror answer, and let its user in, for `relay check`.

It writes nothing.
"""

from __future__ import annotations

from collections.abc import Iterator

from relay_pipelines.errors import RelayError
from relay_pipelines.finding import Finding, Kind, Severity, warning
from relay_pipelines.output.formatting import plural
from relay_pipelines.schemas.registry import Registry
from relay_pipelines.sides import Sides


def check(sides: Sides) -> Iterator[Finding]:
    """Yield a finding on each registry that is declared, and one if only one is."""
    mirror, name = sides.mirror, sides.name
    declared = {
        "source": mirror.source.schema_registry,
        "destination": mirror.destination.schema_registry,
    }
    for side, settings in declared.items():
        if settings is not None:
            with Registry(settings, side) as registry:
                yield _look(registry).inside(name)
    missing = [side for side, settings in declared.items() if settings is None]
    if len(missing) == 1:
        (side,) = missing
        what = f"the {side} has no schema registry: nothing compares the ids of copied records"
        yield warning(Kind.NOT_VERIFIED, name, what, f"write {side}.schema_registry.url")


def _look(registry: Registry) -> Finding:
    where = str(registry)
    try:
        subjects = registry.count_subjects()
    except RelayError as error:
        return Finding.of(error).inside(where)
    what = f"answers with {plural(subjects, 'subject')}"
    return Finding(Kind.OK, where, Severity.OK, what)
