"""Tables of test cases: each row begins with its title."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import pytest


def titled(names: str, table: Iterable[tuple[Any, ...]]) -> pytest.MarkDecorator:
    """Run a test with each row; `names` are those of the columns after the title."""
    rows = [pytest.param(*row[1:], id=str(row[0])) for row in table]
    return pytest.mark.parametrize(names, rows)
