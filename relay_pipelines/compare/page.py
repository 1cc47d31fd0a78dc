"""The report of a comparison as one HTML page that loads nothing."""

from __future__ import annotations

from jinja2 import Environment, PackageLoader, StrictUndefined

from relay_pipelines.compare.pairs import KINDS
from relay_pipelines.compare.result import Compared, tally
from relay_pipelines.output.formatting import count, format_time, seconds


def page(compared: Compared, now_ms: int) -> str:
    """Return the page."""
    environment = Environment(
        loader=PackageLoader("relay_pipelines.compare", "."),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters |= {"count": count, "seconds": seconds, "time": format_time}
    template = environment.get_template("compare.html.j2")
    return template.render(compared=compared, now_ms=now_ms, kinds=KINDS, tally=tally)
