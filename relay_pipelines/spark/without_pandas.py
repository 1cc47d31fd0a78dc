"""Lets PySpark import pandas for values of pandas and numpy alone. Runs on the driver.

PySpark imports it to look at its version, and to look for values of numpy among the arguments of
each call. A copy has none, and its start would take half a CPU second more.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any


def apply() -> None:
    """Change PySpark in this process. Call it before the first call of the JVM."""
    import pyspark.sql.types  # noqa: F401 - registers the converters
    from py4j.protocol import INPUT_CONVERTER
    from pyspark.sql.pandas import functions

    for converter in INPUT_CONVERTER:
        if type(converter).__name__.startswith("Numpy"):
            converter.can_convert = partial(_is_numpy, type(converter).can_convert, converter)
    functions.require_minimum_pandas_version = _has_pandas  # type: ignore[attr-defined]


def _is_numpy(can_convert: Callable[[Any, Any], bool], converter: Any, value: Any) -> bool:
    is_own = any(kind.__module__.partition(".")[0] == "numpy" for kind in type(value).__mro__)
    return is_own and can_convert(converter, value)


def _has_pandas() -> None:
    """Say nothing: this package depends on a pandas that is new enough."""
