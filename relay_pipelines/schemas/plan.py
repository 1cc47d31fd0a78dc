"""What must be registered at the destination so that ids mean the same there. Pure functions."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from graphlib import CycleError, TopologicalSorter

from relay_pipelines.schemas.inventory import Versions
from relay_pipelines.schemas.schema import Schema, Version


class Action(StrEnum):
    """What becomes of a version."""

    NONE = "is there"
    REGISTER = "to be registered"
    DELETE = "to be deleted softly"
    """As it is at the source; its id still resolves."""
    REFUSED = "refused"


@dataclass(frozen=True, slots=True)
class Step:
    """What becomes of one version of the source's registry.

    Args:
        why: it is refused.
    """

    version: Version
    action: Action
    why: str = ""

    @property
    def is_to_do(self) -> bool:
        """Whether it changes the destination's registry."""
        return self.action in {Action.REGISTER, Action.DELETE}


def with_referenced(versions: Versions, subjects: Collection[str]) -> set[str]:
    """Return subjects with those that their versions reference, at any depth."""
    wanted, left = set(subjects), list(subjects)
    used: dict[str, set[str]] = {}
    for version in versions.values():
        names = {reference.subject for reference in version.schema.references}
        used.setdefault(version.subject, set()).update(names)
    while left:
        new = used.get(left.pop(), set()) - wanted
        wanted |= new
        left += new
    return wanted


def plan(source: Versions, destination: Versions, ids: Mapping[int, Schema | None]) -> list[Step]:
    """Return what becomes of each version of the source, in an order that can be followed.

    A version comes after those that it references. Soft deletions come last: a version that is
    registered deletes older ones of its id for good, if they are softly deleted.

    Args:
        ids: what they mean at the destination, of all ids at the source.
    """
    try:
        ordered = _ordered(source)
    except CycleError as error:
        cycle = " -> ".join(f"{subject} version {number}" for subject, number in error.args[1])
        return [
            Step(each, Action.REFUSED, f"references form a cycle: {cycle}")
            for each in _sorted(source.values())
        ]
    steps: dict[tuple[str, int], Step] = {}
    for version in ordered:
        steps[version.place] = _step(version, source, destination, ids, steps)
    registered = list(steps.values())
    deleted = [
        Step(step.version, Action.DELETE)
        for step in reversed(registered)
        if step.version.is_deleted and _is_live_after(step, destination)
    ]
    gone = {step.version.place for step in deleted}
    kept = [
        step
        for step in registered
        if step.action is not Action.NONE or step.version.place not in gone
    ]
    return [*kept, *deleted]


def _sorted(versions: Iterable[Version]) -> list[Version]:
    return sorted(versions, key=lambda version: version.place)


def _ordered(versions: Versions) -> list[Version]:
    """Return versions after those that they reference, else by subject and number."""
    graph = {
        version.place: [
            (reference.subject, reference.version)
            for reference in version.schema.references
            if (reference.subject, reference.version) in versions
        ]
        for version in _sorted(versions.values())
    }
    return [versions[place] for place in TopologicalSorter(graph).static_order()]


def _step(
    version: Version,
    source: Versions,
    destination: Versions,
    ids: Mapping[int, Schema | None],
    steps: Mapping[tuple[str, int], Step],
) -> Step:
    there = destination.get(version.place)
    why = next(_refusals(version, source, there, ids.get(version.id), steps), "")
    if why:
        return Step(version, Action.REFUSED, why)
    if there is None or (there.is_deleted and not version.is_deleted):
        return Step(version, Action.REGISTER)
    return Step(version, Action.NONE)


def _refusals(
    version: Version,
    source: Versions,
    there: Version | None,
    at_id: Schema | None,
    steps: Mapping[tuple[str, int], Step],
) -> Iterator[str]:
    """Yield why a version cannot be registered under its id and number."""
    if there is not None and there.id != version.id:
        yield f"it has id {there.id} there"
    if there is not None and not version.schema.is_same(there.schema):
        yield f"it has another {' and '.join(version.schema.differences(there.schema))} there"
    if at_id is not None and not version.schema.is_same(at_id):
        yield f"id {version.id} means another schema there: see the key context"
    for reference in version.schema.references:
        place = reference.subject, reference.version
        if place not in source:
            yield f"it references {reference.subject} version {reference.version}, which is gone"
        elif steps[place].action is Action.REFUSED:
            yield f"it references {source[place]}, which is refused"


def _is_live_after(step: Step, destination: Versions) -> bool:
    if step.action is Action.REFUSED:
        return False
    there = destination.get(step.version.place)
    return step.action is Action.REGISTER or (there is not None and not there.is_deleted)


def chunks(steps: Sequence[Step], most: int) -> list[list[Step]]:
    """Return what is to be done in pieces, in order: a subject is in import mode for one piece."""
    to_do = [step for step in steps if step.is_to_do]
    return [to_do[start : start + most] for start in range(0, len(to_do), most)]
