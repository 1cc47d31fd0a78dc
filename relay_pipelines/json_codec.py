"""Dataclasses as JSON, and back: every field in its order, no other, and none of a wrong type.

The text of a value is always the same: ASCII without spaces. Keys that are numbers become text.

msgspec decodes an entry in 6 µs instead of 22. It is not used because every task would import it,
for 16 ms, and because it writes text that is not ASCII as it is.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Mapping
from dataclasses import fields, is_dataclass
from enum import Enum
from functools import cache
from types import UnionType
from typing import Any, TypeVar, Union, cast, get_args, get_origin, get_type_hints

T = TypeVar("T")

NOT_READABLE = AttributeError, KeyError, RecursionError, TypeError, ValueError
"""What `from_json` and `from_fields` raise for JSON that holds something else."""


def _fields(value: Any) -> dict[str, Any]:
    # not `asdict`: it copies every value, and a task writes thousands of these
    return {name: getattr(value, name) for name in value.__slots__}


_ENCODER = json.JSONEncoder(separators=(",", ":"), default=_fields)


def to_json(value: Any, **first: Any) -> str:
    """Return a slotted dataclass as JSON.

    Args:
        first: further fields, before those of the value.
    """
    return _ENCODER.encode({**first, **_fields(value)})


def from_json(kind: Callable[..., T], text: str | bytes) -> T:
    """Return the dataclass of a text that `to_json` returned."""
    return from_fields(kind, json.loads(text))


class UnknownFieldsError(KeyError):
    """A value has every field of its dataclass, and further ones: a newer version wrote it."""


SINCE = "since"
"""In the metadata of a field with a default: the version of the format that the field came with."""
_NEWEST = sys.maxsize


def from_fields(kind: Callable[..., T], value: Any, version: int = _NEWEST) -> T:
    """Return the dataclass of a parsed text.

    Args:
        version: of the value, which has no later fields.
    """
    parsed: T = _reader(kind, version)(value)
    return parsed


def _of_type(*kinds: type) -> Callable[[Any], Any]:
    def read(value: Any) -> Any:
        if type(value) not in kinds:  # a bool is no number
            raise TypeError(value)
        return value

    return read


def _integer(value: Any) -> int:
    if type(value) is not int or not -(2**63) <= value < 2**63:
        raise TypeError(value)
    return value


_list = _of_type(list)
_SIMPLE: dict[Any, Callable[[Any], Any]] = {
    Any: lambda value: value,
    float: _of_type(int, float),
    int: _integer,  # of 64 bits, as offsets and times are
}


@cache
def _reader(kind: Any, version: int) -> Callable[[Any], Any]:
    """Return what makes a value of this type from parsed JSON of a version."""
    origin, arguments = get_origin(kind), get_args(kind)
    if is_dataclass(kind):
        return _dataclass_reader(kind, version)
    if origin in {Union, UnionType}:  # of a type and None
        inner = _reader(arguments[0], version)
        return lambda value: None if value is None else inner(value)
    if origin is tuple:
        return _tuple_reader(version, *arguments)
    if origin is list:
        item = _reader(arguments[0], version)
        return lambda value: [item(one) for one in _list(value)]
    if origin in {dict, Mapping}:
        key = int if arguments[0] is int else _reader(arguments[0], version)
        item = _reader(arguments[1], version)
        return lambda value: {key(name): item(one) for name, one in value.items()}
    return _SIMPLE.get(kind) or _class_reader(kind, version)


def _class_reader(kind: Any, version: int) -> Callable[[Any], Any]:
    if issubclass(kind, Enum):
        return cast("Callable[[Any], Any]", kind)
    if issubclass(kind, dict):  # a mapping with methods of its own
        items = _reader(kind.__orig_bases__[0], version)
        return lambda value: kind(items(value))
    return _of_type(kind)


def _tuple_reader(version: int, *kinds: Any) -> Callable[[Any], Any]:
    if kinds[1:] == (...,):
        item = _reader(kinds[0], version)
        return lambda value: tuple([item(one) for one in _list(value)])
    items = [_reader(kind, version) for kind in kinds]
    return lambda value: tuple([item(one) for item, one in zip(items, _list(value), strict=True)])


def _dataclass_reader(kind: Any, version: int) -> Callable[[Any], Any]:
    types = get_type_hints(kind)
    known = [field for field in fields(kind) if field.metadata.get(SINCE, version) <= version]
    items = [(field.name, _reader(types[field.name], version)) for field in known]
    names = {name for name, _ in items}

    def read(value: Any) -> Any:
        if value.keys() > names:
            raise UnknownFieldsError(*value.keys() - names)
        if value.keys() != names:
            raise KeyError(*value.keys() ^ names)
        return kind(*[item(value[name]) for name, item in items])

    return read
