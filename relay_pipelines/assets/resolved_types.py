"""Lets Dagster take the types of inputs and outputs that are types already, as they are.

Before it returns such a type, `resolve_dagster_type` asks whether it is one of some twenty other
things. It does so twice for each dependency, asset and check of a topic, which is a quarter of the
time in which definitions load.
"""

import importlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from types import ModuleType

import dagster as dg

_MODULES = (
    "dagster._core.definitions.input",
    "dagster._core.definitions.output",
    "dagster._core.definitions.assets.job.asset_in",
)
_FUNCTION = "resolve_dagster_type"
_Resolve = Callable[[object], dg.DagsterType]


@contextmanager
def resolved_types_taken_as_they_are() -> Iterator[None]:
    """Within the context, return a type that is one at once."""
    known = [(module, getattr(module, _FUNCTION)) for module in _modules()]
    try:
        for module, resolve in known:
            setattr(module, _FUNCTION, _unless_resolved(resolve))
        yield
    finally:
        for module, resolve in known:
            setattr(module, _FUNCTION, resolve)


def _modules() -> Iterator[ModuleType]:
    """Yield the modules that call the function, as far as this version of Dagster has them."""
    for name in _MODULES:
        with suppress(ImportError):
            module = importlib.import_module(name)
            if hasattr(module, _FUNCTION):
                yield module


def _unless_resolved(resolve: _Resolve) -> _Resolve:
    def resolved(dagster_type: object) -> dg.DagsterType:
        return dagster_type if isinstance(dagster_type, dg.DagsterType) else resolve(dagster_type)

    return resolved
