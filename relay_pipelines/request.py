"""Requests are declared once: the options of a command and a job's configuration follow from it.

A request is a frozen dataclass; `asked` makes a field of it that people fill in. Commands and jobs
give texts and plain values, of which `filled` makes the request.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import MISSING, Field, dataclass, field, fields
from enum import Enum
from types import NoneType, UnionType
from typing import Any, TypeVar, Union, get_args, get_origin, get_type_hints

_KEY = "asked"

Request = TypeVar("Request")


@dataclass(frozen=True, slots=True)
class Asked:
    """How people are asked for a value.

    Args:
        help: one sentence.
        name: of the option, without dashes; that of the field by default.
        short: the option's letter.
        metavar: what the help shows for the value.
        parse: gets the option's name and a text, and returns the value; for values that are no
            text, number or choice.
        plain: the type of the value in a job's configuration, if that is no text though it is
            parsed in a command.
        collect: makes the value of several ones; those of a field that is a tuple need none.
        positional: whether the command takes it without a name.
        least, most: of a number.
        of: the actions or steps of the command that use it; none for all.
    """

    help: str
    name: str = ""
    short: str = ""
    metavar: str | None = None
    parse: Callable[[str, str], Any] | None = None
    plain: Any = None
    collect: Callable[[Any], Any] | None = None
    positional: bool = False
    least: float | None = None
    most: float | None = None
    of: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class AskedField:
    """A field of a request that people fill in.

    Args:
        field: its name in the request.
        name: that people see: as of `Asked`, or that of the field.
        kind: the type of the value, or of each value; None is no part of it.
        default: `MISSING` if it must be given.
    """

    field: str
    name: str
    kind: Any
    is_repeated: bool
    default: Any
    asked: Asked

    @property
    def key(self) -> str:
        """Its name in a job's configuration, which takes several values as a list."""
        return self.field if self.is_repeated else self.name

    @property
    def is_choice(self) -> bool:
        """Whether there are few values."""
        return isinstance(self.kind, type) and issubclass(self.kind, Enum)


def asked(help: str, default: Any = MISSING, **more: Any) -> Any:  # noqa: A002 - as typer calls it
    """Declare a field of a request; further arguments are those of `Asked`."""
    return field(default=default, metadata={_KEY: Asked(help, **more)})


def asked_fields(request: type) -> Iterator[AskedField]:
    """Yield what people fill in, in the order of the fields."""
    hints = get_type_hints(request)
    for each in fields(request):
        if _KEY in each.metadata:
            yield _asked_field(each, hints[each.name])


def filled(
    request: type[Request], given: Mapping[str, Any], *, options: bool = False, **more: Any
) -> Request:
    """Make a request of what a job has got, by its keys.

    Args:
        options: whether a command has got it, by the names of its options.
        more: fields that nobody is asked for.

    Raises:
        ConfigError: a text is not what it should be, or the request is none.
    """
    values = {}
    for asked_field in asked_fields(request):
        label = f"--{asked_field.name}" if options else asked_field.key
        value = given.get(asked_field.name if options else asked_field.key)
        if value is None or (asked_field.is_repeated and not value):
            continue
        one = _reader(asked_field, label)
        if asked_field.is_repeated and not isinstance(value, Mapping):
            values[asked_field.field] = (asked_field.asked.collect or tuple)(map(one, value))
        else:
            values[asked_field.field] = one(value)
    return request(**values, **more)


def _reader(asked_field: AskedField, label: str) -> Callable[[Any], Any]:
    parse = asked_field.asked.parse

    def read(value: Any) -> Any:
        if parse is not None and isinstance(value, str):
            return parse(label, value)
        return asked_field.kind(getattr(value, "value", value)) if asked_field.is_choice else value

    return read


def _asked_field(each: Field[Any], hint: Any) -> AskedField:
    how: Asked = each.metadata[_KEY]
    (kind,) = (kind for kind in _alternatives(hint) if kind is not NoneType)
    # a tuple of any length is several values; one of two, such as a range, is one value
    is_tuple = get_origin(kind) is tuple and get_args(kind)[1:] == (...,)
    return AskedField(
        each.name,
        how.name or each.name,
        get_args(kind)[0] if is_tuple else kind,
        is_tuple or how.collect is not None,
        each.default,
        how,
    )


def _alternatives(hint: Any) -> tuple[Any, ...]:
    return get_args(hint) if get_origin(hint) in {Union, UnionType} else (hint,)
