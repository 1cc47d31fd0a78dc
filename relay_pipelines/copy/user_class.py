"""The user's classes: finding them, constructing them, and describing what they raise."""

from __future__ import annotations

import importlib
import importlib.metadata
import json
import sys
from typing import Any, NamedTuple

from relay_pipelines.errors import ConfigError, FilterError
from relay_pipelines.model import ClassSpec, RecordPolicy, TopicPartition


class Kind(NamedTuple):
    """The purpose of a class; its entry point group is `relay_pipelines.<name>s`."""

    name: str
    method: str


FILTER, TRANSFORM = Kind("filter", "keep(record)"), Kind("transform", "transform(batch)")


def construct_all(record_policy: RecordPolicy) -> None:
    """Construct the classes that a topic's records pass, only to see whether that works.

    Raises:
        ConfigError: as `construct`.
    """
    for spec in record_policy.filters:
        construct(spec, FILTER)
    if record_policy.transform is not None:
        construct(record_policy.transform, TRANSFORM)


def construct(spec: ClassSpec, kind: Kind) -> Any:
    """Construct a class of this kind.

    Raises:
        ConfigError: the class does not exist, cannot be imported, refuses its configuration, or is
            of another kind.
    """
    where = f"{kind.name} {spec.name!r}"
    try:
        found = _class(spec, kind.name)(**json.loads(spec.config))
    except ConfigError:
        raise
    except Exception as error:
        raise ConfigError(
            f"{where} cannot be constructed: {describe(error)}", remedy="see its config"
        ) from error
    if not callable(getattr(found, kind.method.partition("(")[0], None)):
        raise ConfigError(f"{where} has no method {kind.method}", remedy="see docs/records.md")
    return found


def record_error(
    what: str, error: Exception, topic_partition: TopicPartition, offset: int
) -> FilterError:
    """Return the error for an exception that a user's class raised on a record."""
    return FilterError(
        f"{what} raised {describe(error)}",
        remedy="fix the class, or set on_record_error: quarantine, then run again",
        topic_partition=topic_partition,
        offset=offset,
    )


def _class(spec: ClassSpec, kind: str) -> Any:
    module, colon, name = spec.name.partition(":")
    if not colon:
        return _entry_point(spec.name, kind)
    if spec.folder and spec.folder not in sys.path:
        sys.path.append(spec.folder)  # last, so that no module there can replace a library
    try:
        return getattr(importlib.import_module(module), name)
    except AttributeError:
        raise ConfigError(
            f"module {module!r} has no {kind} {name!r}", remedy="write module:Class"
        ) from None
    except Exception as error:
        raise ConfigError(
            f"{kind} {spec.name!r} cannot be imported: {describe(error)}",
            remedy=f"put {module}.py next to the configuration, or install it; remote executors"
            " need it, too",
        ) from error


def _entry_point(name: str, kind: str) -> Any:
    found = importlib.metadata.entry_points(group=f"relay_pipelines.{kind}s")
    if name not in found.names:
        known = ", ".join(sorted(found.names)) or "none is installed"
        raise ConfigError(
            f"no {kind} is called {name!r}",
            remedy=f"write module:Class, or an entry point: {known}",
        )
    return found[name].load()


def describe(error: Exception) -> str:
    """Return the class of an exception and the first line of its message."""
    # it may quote bytes that are not UTF-8, such as the name of a header
    text = (str(error).splitlines() or [""])[0].encode(errors="backslashreplace").decode()
    return f"{type(error).__name__}: {text}" if text else type(error).__name__
