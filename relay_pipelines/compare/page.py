"""The report of a comparison as one HTML page that loads nothing."""

from __future__ import annotations

from relay_pipelines.compare.pairs import KINDS
from relay_pipelines.compare.result import Compared, tally
from relay_pipelines.output.html_page import render


def page(compared: Compared, now_ms: int) -> str:
    """Return the page."""
    package, template = "relay_pipelines.compare", "compare.html.j2"
    return render(package, template, compared=compared, now_ms=now_ms, kinds=KINDS, tally=tally)
