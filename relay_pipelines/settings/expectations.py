"""What the records of a topic must be like: one word each, or an expectation of Great Expectations.

Great Expectations itself is not imported: that takes seconds, and it need not be installed.
"""

from __future__ import annotations

import importlib.util
import re
from collections.abc import Iterable
from enum import StrEnum
from functools import cache
from pathlib import Path
from typing import Annotated, Any

from pydantic import AfterValidator, Field, TypeAdapter, ValidationError, model_validator
from pydantic_core import PydanticCustomError

from relay_pipelines.model import Side
from relay_pipelines.settings.config_types import (
    LongDuration,
    Pattern,
    PositiveSize,
    Problem,
    Section,
    Text,
    expected,
    json_problems,
    matches,
    refuse,
)
from relay_pipelines.settings.validation_errors import nearest

RECORD_COLUMNS = (
    "key",
    "value",
    "topic",
    "partition",
    "offset",
    "timestamp",
    "timestampType",
    "headers",
    "timestamp_ms",
    "size",
)
"""The columns that expectations may use, besides those of `schema`."""
HELPER_COLUMNS = ("is_json", "fits_schema", "key_and_value")
_OPTIONS = ("name", "side", "severity", "blocking")
# checks of mirrored topics that exist without expectations
_TAKEN = ("message_counts", "lag_target")
_GX = re.compile(r"[Ee]xpect_?[A-Za-z_]+|Unexpected[A-Za-z]+|unexpected_[a-z_]+")
_BACK_REFERENCE = re.compile(r"(?<!\\)(?:\\\\)*\\(?:[1-9]|k<)")
_ONE = "one expectation, with side, severity, blocking and name beside it"
_SQL_TYPES = (
    *("string", "boolean", "tinyint", "smallint", "int", "integer", "bigint", "long", "float"),
    *("double", "decimal", "date", "timestamp", "array", "map", "struct", "variant"),
)
_SQL_TYPE = re.compile(r"\s*([a-z]+)\s*(?:[(<].*[)>])?\s*", re.IGNORECASE | re.DOTALL)


class CheckSeverity(StrEnum):
    """How a check that fails is shown."""

    WARN = "warn"
    ERROR = "error"


def _joinable(regexes: tuple[str, ...]) -> tuple[str, ...]:
    # they become one, in which a group has another number
    referring = [number for number, regex in enumerate(regexes) if _BACK_REFERENCE.search(regex)]
    why = "a back-reference needs a no_pii of its own, with a name"
    refuse(((number,), why) for number in (referring if len(regexes) > 1 else ()))
    return regexes


def _sql_types(columns: dict[str, str]) -> dict[str, str]:
    refuse(((name,), why) for name, kind in columns.items() if (why := _type_problem(name, kind)))
    return columns


def _type_problem(name: str, kind: str) -> str:
    if name in (*RECORD_COLUMNS, *HELPER_COLUMNS):
        return "a record has a column of this name; leave it out of the schema"
    given = _SQL_TYPE.fullmatch(kind)
    word = given[1].lower() if given else kind
    return "" if word in _SQL_TYPES else f"unknown type; {nearest(word, _SQL_TYPES, 'types')}"


_Types = Annotated[dict[Text, Text], Field(min_length=1), AfterValidator(_sql_types)]
_Regexes = Annotated[tuple[Pattern, ...], Field(min_length=1), AfterValidator(_joinable)]
WORDS: dict[str, tuple[Any, str]] = {
    "keys_not_null": (None, ""),
    "json_parses": (None, ""),
    "timestamps_within": (LongDuration, "a duration, as in timestamps_within: 2d"),
    "size_below": (PositiveSize, "a size, as in size_below: 1MiB"),
    "schema": (
        _Types,
        "fields of the JSON value with their SQL types, as in schema: {amount: double}",
    ),
    "no_pii": (_Regexes, 'a list of regular expressions, as in no_pii: ["[0-9]{16}"]'),
}
"""The ready-made expectations: the type of the value, or None, and what it is, with an example."""


class Expectation(Section):
    """One entry of `expectations`."""

    kind: Text
    """A word such as `keys_not_null`, or an expectation's name such as `expect_column_to_exist`."""
    value: Any = None
    """What the word takes, or the arguments of the expectation."""
    name: Annotated[str, matches(r"[A-Za-z0-9_]+", "letters, digits and '_'")] = ""
    """The name of the asset check; by default the expectation, with its column."""
    side: Side = Side.DESTINATION
    """Which copy of the records to look at."""
    severity: CheckSeverity = CheckSeverity.ERROR
    """How a failed check is shown."""
    blocking: bool = False
    """Whether a failed check also fails the run that copied the window."""

    @model_validator(mode="before")
    @classmethod
    def _from_entry(cls, data: Any) -> Any:
        """Read a word, or a mapping of an expectation to its value."""
        entry = {data: None} if isinstance(data, str) else data
        if not isinstance(entry, dict):
            raise expected(_ONE)
        options = {key: value for key, value in entry.items() if key in _OPTIONS}
        rest = {str(key): value for key, value in entry.items() if key not in _OPTIONS}
        if len(rest) != 1:
            raise expected(_ONE)
        ((given, value),) = rest.items()
        kind = _kind(given)
        value = _value(given, kind, value)
        name = kind if kind in WORDS else _name(kind, value)
        return {"name": name, **options, "kind": kind, "value": value}

    def problems(self) -> Iterable[Problem]:
        """Find a name that is taken, and a warning that would fail a run."""
        if self.name in _TAKEN:
            yield ("name",), f"a topic has a check {self.name}; choose another name"
        if self.blocking and self.severity is CheckSeverity.WARN:
            yield ("blocking",), "a warning fails no run; leave out severity, or blocking"


class SampleSettings(Section):
    """What a failed check shows of the records that do not meet the expectation."""

    rows: Annotated[int, Field(ge=0, le=100)] = 5
    """At most this many of them."""
    values: bool = True
    """Whether to show keys and values, cut; otherwise partition and offset only."""


def _has_different_names(entries: tuple[Expectation, ...]) -> tuple[Expectation, ...]:
    names = [entry.name.lower() for entry in entries]
    refuse(
        ((index,), f"{names.count(name)} expectations are named {entry.name}; give this one a name")
        for index, (name, entry) in enumerate(zip(names, entries, strict=True))
        if name in names[:index]
    )
    return entries


Expectations = Annotated[tuple[Expectation, ...], AfterValidator(_has_different_names)]


def snake_case(name: str) -> str:
    """Return `expect_column_to_exist` for `ExpectColumnToExist`."""
    words = re.sub(r"(.)([A-Z][a-z]+)", r"\1_\2", name)
    return re.sub(r"([a-z0-9])([A-Z])", r"\1_\2", words).lower()


@cache
def known_expectations() -> frozenset[str]:
    """Return the names of what the installed Great Expectations has; empty if it is not installed.

    The files tell, because the import takes seconds.
    """
    package = importlib.util.find_spec("great_expectations")
    if package is None or package.origin is None:
        return frozenset()
    core = Path(package.origin).parent / "expectations" / "core"
    return frozenset(path.stem for path in core.glob("*expect*.py"))


def _kind(given: str) -> str:
    if given in WORDS:
        return given
    kind, known = snake_case(given), known_expectations()
    if kind in known or (not known and _GX.fullmatch(given)):
        return kind
    remedy = nearest(kind, {*WORDS, *known} if _GX.match(given) else WORDS, "words")
    raise _problem((), f"unknown expectation {given!r}; {remedy}")


def _value(given: str, kind: str, value: Any) -> Any:
    if kind not in WORDS:
        return _arguments(given, value)
    kind_of_value, form = WORDS[kind]
    if kind_of_value is None:
        if value is not None:
            raise _problem((given,), "takes no value")
        return None
    if value is None:
        raise _problem((given,), f"needs {form}")
    try:
        return TypeAdapter(kind_of_value).validate_python(value)
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False)[0]
        context = first.get("ctx", {})
        if first["type"] == "problems":
            raise _problem((given, *context["found"][0][0]), context["found"][0][1]) from None
        why = f": {context['why']}" if context.get("why") else ""
        raise _problem((given, *first["loc"]), f"expected {form}{why}") from None


def _arguments(given: str, value: Any) -> dict[str, Any]:
    arguments = {} if value is None else value
    if not isinstance(arguments, dict):
        raise _problem((given,), "expected a mapping of its arguments, as in {column: partition}")
    refuse(json_problems(given, arguments))
    return arguments


def _problem(location: tuple[str | int, ...], why: str) -> PydanticCustomError:
    return PydanticCustomError("problems", "several problems", {"found": [(location, why)]})


def _name(kind: str, arguments: dict[str, Any]) -> str:
    """Return the name of an expectation's check: its own, and its column."""
    column = arguments.get("column", "")
    return re.sub(r"[^A-Za-z0-9]+", "_", f"{kind}_{column}").strip("_")
