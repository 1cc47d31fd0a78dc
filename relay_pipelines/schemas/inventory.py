"""Reads all versions of a registry's subjects, also those that are softly deleted."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

from relay_pipelines.schemas.registry import AT_ONCE, Registry
from relay_pipelines.schemas.schema import Schema, Version

Versions = Mapping[tuple[str, int], Version]
"""By subject and number."""
_Item = TypeVar("_Item")
_Result = TypeVar("_Result")


def read_subjects(registry: Registry, subjects: Collection[str]) -> Iterator[list[Version]]:
    """Yield the versions of each subject, as they come.

    Raises:
        RelayError: the registry does not answer, or refuses.
    """

    def of_subject(subject: str) -> list[Version]:
        live = set(registry.versions(subject, deleted=False))
        found = (
            registry.version(subject, number, is_deleted=number not in live)
            for number in registry.versions(subject, deleted=True)
        )
        return [version for version in found if version is not None]

    yield from _at_once(of_subject, subjects)


def read_ids(registry: Registry, ids: Collection[int]) -> dict[int, Schema | None]:
    """Return the schemas of ids; None for those that the registry does not know."""
    return dict(zip(ids, _at_once(registry.by_id, ids), strict=True))


def _at_once(ask: Callable[[_Item], _Result], items: Collection[_Item]) -> Iterator[_Result]:
    with ThreadPoolExecutor(AT_ONCE) as pool:
        futures = [pool.submit(ask, item) for item in items]
        try:
            for future in futures:
                yield future.result()
        finally:
            for future in futures:
                future.cancel()
