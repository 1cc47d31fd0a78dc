"""Tables of test cases: each row begins with its title, and some are for `make long`."""

from collections.abc import Iterable
from typing import Any

import pytest

MINUTE = pytest.mark.long(minutes=1)
"""Marks a row of which the default run has another one; it takes a minute at most."""


def titled(names: str, table: Iterable[tuple[Any, ...]]) -> pytest.MarkDecorator:
    """Run a test with each row; `names` are those of the columns after the title."""
    rows = [pytest.param(*row[1:], id=str(row[0])) for row in table]
    return pytest.mark.parametrize(names, rows)
