"""From settings to expectations of Great Expectations, and the DataFrame that they see.

On the driver; the tasks of Spark read when the suite runs. Spark does not tell a Python data source
which columns a query needs, and each column costs time, so that the schema has only those.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from relay_pipelines.copy.columns import COLUMNS
from relay_pipelines.expectations.topic_window import TopicWindow
from relay_pipelines.settings.expectations import HELPER_COLUMNS, RECORD_COLUMNS, Expectation, Side

_COLUMN_ARGUMENTS = ("column", "column_A", "column_B", "column_list")
# arguments that name columns in a language of their own
_OPAQUE_ARGUMENTS = ("row_condition", "condition_parser", "unexpected_rows_query", "column_set")


def _is_true(column: str) -> tuple[str, dict[str, Any]]:
    return "expect_column_values_to_be_in_set", {"column": column, "value_set": [True]}


def _between(column: str, **limits: Any) -> tuple[str, dict[str, Any]]:
    return "expect_column_values_to_be_between", {"column": column, **limits}


def _no_match(regexes: Sequence[str]) -> tuple[str, dict[str, Any]]:
    # one expression in place of a list, which would look at every record once per entry
    one = "|".join(f"(?:{regex})" for regex in regexes)
    arguments = {"column": "key_and_value", "regex": f"(?m){one}"}
    return "expect_column_values_to_not_match_regex", arguments


_WORDS: Mapping[str, Callable[[Any, int], tuple[str, dict[str, Any]]]] = {
    "keys_not_null": lambda _value, _ms: ("expect_column_values_to_not_be_null", {"column": "key"}),
    "json_parses": lambda _value, _ms: _is_true("is_json"),
    "schema": lambda _value, _ms: _is_true("fits_schema"),
    "timestamps_within": lambda value, ms: _between(
        "timestamp_ms", min_value=ms - value, max_value=ms + value
    ),
    "size_below": lambda value, _ms: _between("size", max_value=value, strict_max=True),
    "no_pii": lambda value, _ms: _no_match(value),
}


def arguments(expectation: Expectation, copied_at_ms: int) -> tuple[str, dict[str, Any]]:
    """Return the name of an expectation of Great Expectations, and its arguments.

    Args:
        copied_at_ms: when the window was copied, to which its timestamps are compared.
    """
    word = _WORDS.get(expectation.kind)
    if word is None:
        return expectation.kind, dict(expectation.value)
    return word(expectation.value, copied_at_ms)


def build(name: str, given: Mapping[str, Any], number: int) -> Any:
    """Return the expectation of Great Expectations of this name.

    Args:
        number: of the expectation in its suite, by which its result is found again.

    Raises:
        Exception: there is no such expectation, or its arguments are wrong.
    """
    from great_expectations.expectations.registry import get_expectation_impl

    meta = {**(given.get("meta") or {}), "relay": number}
    return get_expectation_impl(name)(**{**given, "meta": meta})


def schema(expectations: Iterable[Expectation]) -> dict[str, str]:
    """Return the columns out of the JSON value that these expectations define."""
    return {
        column: kind
        for expectation in expectations
        if expectation.kind == "schema"
        for column, kind in expectation.value.items()
    }


def columns(given: Sequence[Mapping[str, Any]], fields: Iterable[str]) -> set[str]:
    """Return the columns that expectations with these arguments need.

    Args:
        fields: the columns out of the JSON value.
    """
    found: set[str] = set()
    for each in given:
        named = [each[argument] for argument in _COLUMN_ARGUMENTS if argument in each]
        if not named or any(each.get(argument) for argument in _OPAQUE_ARGUMENTS):
            # it looks at the table, or at columns that only Spark can tell
            found.update(RECORD_COLUMNS, fields)
        for columns in named:
            found.update(columns if isinstance(columns, list) else [columns])
    # a sample of what fails shows the value
    return found | ({"value"} if found.intersection(HELPER_COLUMNS) else set())


def _text(column: str) -> str:
    return f"make_valid_utf8(CAST({column} AS STRING))"


_CORRUPT = "_corrupt_record"
_DERIVED = {
    "timestamp_ms": ("timestamp", "unix_millis(timestamp)"),
    "size": ("key value", "coalesce(octet_length(key), 0) + coalesce(octet_length(value), 0)"),
    "is_json": ("value", f"value IS NULL OR try_parse_json({_text('value')}) IS NOT NULL"),
    # a line each
    "key_and_value": ("key value", f"concat_ws('\\n', {_text('key')}, {_text('value')})"),
}
"""Column -> the columns of a record that it is made of, and how."""
_IDENTITY = ("partition", "offset")


def frame(
    session: Any,
    config: Path,
    mirror: str,
    window: TopicWindow,
    side: Side,
    columns: Collection[str],
    schema: Mapping[str, str],
    upstream: str,
) -> Any:
    """Return the DataFrame; nothing is read yet.

    `key` and `value` are text: bytes that are not UTF-8 become U+FFFD.

    Args:
        columns: those that the suite needs; unknown ones are left out, and fail their expectation.
        schema: fields of the JSON value by column, with their types in SQL.
        upstream: of the source, which holds these offsets; empty for the first one.
    """
    from relay_pipelines import dataframe

    dataframe.register(session)
    wanted = [name for name in (*COLUMNS, *_DERIVED) if name in {*columns, *_IDENTITY}]
    fields = {name: kind for name, kind in schema.items() if name in columns}
    parses = bool(fields) or "fits_schema" in columns
    needed = set(wanted) & COLUMNS.keys() | ({"value"} if parses else set())
    for name in wanted:
        needed.update(_DERIVED.get(name, ("", ""))[0].split())
    records = (
        session.read.format("relay")
        .schema(", ".join(f"{name} {COLUMNS[name]}" for name in COLUMNS if name in needed))
        .options(
            config=str(config.absolute()),
            mirror=mirror,
            topic=window.topic,
            side=side.value,
            upstream=upstream,
            chunks=json.dumps(window.offsets(side)),
        )
        .load()
    )
    expressions = [f"{_expression(name)} AS {name}" for name in wanted]
    if not parses:
        return records.selectExpr(*expressions)
    # all fields: a value that does not fit one of them must not depend on what a suite looks at
    types = ", ".join(f"`{name}` {kind}" for name, kind in schema.items())
    literal = f"{types}, {_CORRUPT} string".replace("\\", "\\\\").replace("'", "\\'")
    parsed = (
        f"from_json({_text('value')}, '{literal}',"
        f" map('columnNameOfCorruptRecord', '{_CORRUPT}')) AS _parsed"
    )
    fits = f"value IS NULL OR (_parsed IS NOT NULL AND _parsed.{_CORRUPT} IS NULL) AS fits_schema"
    return records.selectExpr("*", parsed).selectExpr(
        *expressions, *(f"_parsed.`{name}` AS `{name}`" for name in fields), fits
    )


def _expression(name: str) -> str:
    if name in {"key", "value"}:
        return _text(name)
    return _DERIVED[name][1] if name in _DERIVED else f"`{name}`"
