"""From settings to expectations of Great Expectations, and the DataFrame that they see.

On the driver; the tasks of Spark read when the suite runs. Spark does not tell a Python data source
which columns a query needs, and each column costs time, so that the schema has only those.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from relay_pipelines.copy.columns import COLUMNS
from relay_pipelines.expectations.topic_window import TopicWindow
from relay_pipelines.model import Side
from relay_pipelines.settings.expectations import HELPER_COLUMNS, RECORD_COLUMNS, Expectation

_COLUMN_ARGUMENTS = ("column", "column_A", "column_B", "column_list")
# arguments that name columns in a language of their own
_OPAQUE_ARGUMENTS = ("row_condition", "condition_parser", "unexpected_rows_query", "column_set")


def arguments(expectation: Expectation, copied_at_ms: int) -> tuple[str, dict[str, Any]]:
    """Return the name of an expectation of Great Expectations, and its arguments.

    Args:
        copied_at_ms: when the window was copied, to which its timestamps are compared.
    """
    value, is_true = expectation.value, {"value_set": [True]}
    match expectation.kind:
        case "keys_not_null":
            condition, column, limits = "not_be_null", "key", dict[str, Any]()
        case "json_parses":
            condition, column, limits = "be_in_set", "is_json", is_true
        case "schema":
            condition, column, limits = "be_in_set", "fits_schema", is_true
        case "timestamps_within":
            condition, column = "be_between", "timestamp_ms"
            limits = {"min_value": copied_at_ms - value, "max_value": copied_at_ms + value}
        case "size_below":
            condition, column = "be_between", "size"
            limits = {"max_value": value, "strict_max": True}
        case "no_pii":
            condition, column = "not_match_regex", "key_and_value"
            # one expression in place of a list, which would look at every record once per entry
            limits = {"regex": "(?m)" + "|".join(f"(?:{regex})" for regex in value)}
        case other:
            return other, dict(value)
    return f"expect_column_values_to_{condition}", {"column": column, **limits}


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
    used: set[str] = set()
    for each in given:
        named = [each[argument] for argument in _COLUMN_ARGUMENTS if argument in each]
        if not named or any(each.get(argument) for argument in _OPAQUE_ARGUMENTS):
            # it looks at the table, or at columns that only Spark can tell
            used.update(RECORD_COLUMNS, fields)
        for columns in named:
            used.update(columns if isinstance(columns, list) else [columns])
    # a sample of what fails shows the value
    return used | ({"value"} if used.intersection(HELPER_COLUMNS) else set())


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
    names = [name for name in (*COLUMNS, *_DERIVED) if name in {*columns, *_IDENTITY}]
    fields = {name: kind for name, kind in schema.items() if name in columns}
    parses = bool(fields) or "fits_schema" in columns
    needed = set(names) & COLUMNS.keys() | ({"value"} if parses else set())
    for name in names:
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
    expressions = [f"{_expression(name)} AS {name}" for name in names]
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
