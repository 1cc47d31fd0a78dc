"""The report of a comparison as one HTML page that loads nothing."""

from __future__ import annotations

from relay_pipelines.compare.report import GROUPS, NUMBERS, group_rows, pair_rows
from relay_pipelines.compare.result import Compared
from relay_pipelines.output.html_page import render

WORDS = {"source", "destination", "group", "by", "verdict"}
"""The columns that are no numbers."""


def page(compared: Compared, now_ms: int) -> str:
    """Return the page."""
    package, template = "relay_pipelines.compare", "compare.html.j2"
    tables = [
        ("", ("source", "destination", *NUMBERS), pair_rows(compared)),
        ("Groups", GROUPS, group_rows(compared)),
    ]
    return render(package, template, compared=compared, now_ms=now_ms, tables=tables, words=WORDS)
