"""Compares the schemas that copied records name, at both registries. It writes nothing."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from relay_pipelines.errors import ConfigError, RelayError
from relay_pipelines.schemas.read_ids import read_ids
from relay_pipelines.schemas.registry import (
    OddSchemaError,
    Registry,
    RegistryForbidsError,
    RegistryRefusedError,
)
from relay_pipelines.schemas.request import SchemasRequest
from relay_pipelines.schemas.schema import Schema
from relay_pipelines.schemas.verdict import IdProblem, TopicVerdict
from relay_pipelines.settings import Mirror
from relay_pipelines.settings.clusters import SchemaRegistry
from relay_pipelines.sides import Sides

Found = tuple[str, bool]
"""Why an id is not known to be the same, and whether it differs; an empty text if it is."""
_SAME: Found = ("", False)
_OF_ONE_REQUEST = (OddSchemaError, RegistryForbidsError, RegistryRefusedError)
"""What a registry answers may be another thing for the next id; without an answer, it is not."""


def registries(mirror: Mirror) -> tuple[Registry, Registry]:
    """Return the source's registry and the destination's.

    Raises:
        ConfigError: one is not declared.
    """
    here, there = mirror.source.schema_registry, mirror.destination.schema_registry
    return _declared(here, "source"), _declared(there, "destination")


def _declared(settings: SchemaRegistry | None, side: str) -> Registry:
    if settings is None:
        raise ConfigError(
            f"the {side} has no schema registry", remedy=f"write {side}.schema_registry.url"
        )
    return Registry(settings, side)


def verify(sides: Sides, request: SchemasRequest) -> Iterator[TopicVerdict]:
    """Yield what is found in each topic that has copies in the request.

    Raises:
        ConfigError: a registry is not declared.
        TamperedError: the ledger is not what was committed.
        RelayError: the destination does not answer, or refuses. A registry that does not answer is
            a verdict.
    """
    source, destination = registries(sides.mirror)
    with source, destination:
        yield from verdicts(read_ids(sides, request), Comparison(source, destination))


def verdicts(seen: Iterable[TopicVerdict], comparison: Comparison) -> Iterator[TopicVerdict]:
    """Yield what was read of each topic, with the ids that are not known to be the same."""
    for of_topic in seen:
        of_topic.problems = [
            IdProblem(number, uses, of_topic.first[number], why, differs)
            for number, uses in sorted(of_topic.ids.items())
            for why, differs in [comparison.compare(number)]
            if why
        ]
        yield of_topic


class Comparison:
    """What ids mean at two registries; each is asked for once.

    A registry that does not answer is not asked again.

    Args:
        same: ids that an earlier comparison has found to mean the same, which grows: an id never
            means another schema later.
    """

    def __init__(
        self, source: Registry, destination: Registry, same: set[int] | None = None
    ) -> None:
        self._source = source
        self._destination = destination
        self._same: set[int] = set() if same is None else same
        self._ids: dict[int, Found] = {}
        self._references: dict[tuple[str, int], Found] = {}
        self._away = ""

    def compare(self, number: int) -> Found:
        """Return why an id does not resolve to the same schema at both registries."""
        if number in self._same:
            return _SAME
        if number not in self._ids:
            self._ids[number] = self._asked(number)
        if self._ids[number] == _SAME:
            self._same.add(number)
        return self._ids[number]

    def _asked(self, number: int) -> Found:
        if self._away:
            return self._away, False
        try:
            here, there = self._source.by_id(number), self._destination.by_id(number)
            return self._compared(here, there)
        except RelayError as error:
            if not isinstance(error, _OF_ONE_REQUEST):
                self._away = error.what
            return error.what, False

    def _compared(self, here: Schema | None, there: Schema | None) -> Found:
        if here is None:
            also = "" if there else ", and the destination's neither"
            return f"the source's registry does not know it{also}", False
        if there is None:
            return "the destination's registry does not know it", True
        if differs := list(here.differences(there)):
            return f"the registries differ in its {' and '.join(differs)}", True
        for name, subject, version in here.references:
            why, is_difference = self._reference(subject, version)
            if why:
                return f"its reference {name}: {why}", is_difference
        return _SAME

    def _reference(self, subject: str, version: int) -> Found:
        place = subject, version
        if place not in self._references:
            self._references[place] = _SAME  # a registry's references have no cycle
            try:
                here, there = (
                    each.by_version(subject, version) for each in (self._source, self._destination)
                )
                self._references[place] = self._compared(here, there)
            except RelayError:
                del self._references[place]
                raise
        return self._references[place]
