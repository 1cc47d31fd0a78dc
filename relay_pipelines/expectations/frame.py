"""The records of one side of a window as a DataFrame, with the columns that a suite needs.

On the driver; the tasks of Spark read when the suite runs. Spark does not tell a Python data source
which columns a query needs, and each column costs time, so that the schema has only those.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

from relay_pipelines.copy.columns import COLUMNS
from relay_pipelines.expectations.topic_window import TopicWindow
from relay_pipelines.settings.expectations import Side


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
    node: str,
) -> Any:
    """Return the DataFrame; nothing is read yet.

    `key` and `value` are text: bytes that are not UTF-8 become U+FFFD.

    Args:
        columns: those that the suite needs; unknown ones are left out, and fail their expectation.
        schema: fields of the JSON value by column, with their types in SQL.
        node: of the source, which holds these offsets; empty for the first one.
    """
    from relay_pipelines import dataframe

    dataframe.register(session)
    wanted = [name for name in (*COLUMNS, *_DERIVED) if name in {*columns, *_IDENTITY}]
    fields = {name: kind for name, kind in schema.items() if name in columns}
    parses = bool(fields) or "fits_schema" in columns
    needed = set(wanted) & COLUMNS.keys() | ({"value"} if parses else set())
    for name in wanted:
        needed.update(_DERIVED.get(name, ("", ""))[0].split())
    records = _records(session, config, mirror, window, side, needed, node)
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


def _records(
    session: Any,
    config: Path,
    mirror: str,
    window: TopicWindow,
    side: Side,
    columns: Collection[str],
    node: str,
) -> Any:
    """Return the records as the data source `relay` has them."""
    return (
        session.read.format("relay")
        .schema(", ".join(f"{name} {COLUMNS[name]}" for name in COLUMNS if name in columns))
        .options(
            config=str(config.absolute()),
            mirror=mirror,
            topic=window.topic,
            side=side.value,
            node=node,
            chunks=json.dumps(window.offsets(side)),
        )
        .load()
    )
