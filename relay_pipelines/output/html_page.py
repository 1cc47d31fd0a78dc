"""HTML pages that load nothing, from the template of the room whose report they are.

Each extends `report.html.j2`, which has the styles.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from jinja2 import ChoiceLoader, Environment, PackageLoader, StrictUndefined

from relay_pipelines.errors import RelayError
from relay_pipelines.output.formatting import count, format_time, seconds, size

_OWN = "relay_pipelines.output"


def render(package: str, template: str, name: Callable[[str], str] = str, **values: Any) -> str:
    """Return the page.

    Args:
        package: that has the template.
        name: the filter `name` of the template.
        values: what the template shows.
    """
    environment = Environment(
        loader=ChoiceLoader([PackageLoader(each, ".") for each in (package, _OWN)]),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    filters = {"count": count, "size": size, "seconds": seconds, "time": format_time, "name": name}
    environment.filters |= filters
    return environment.get_template(template).render(**values)


def write(path: Path, page: str) -> None:
    """Write the page to the file of `--html`.

    Raises:
        RelayError: it cannot be written.
    """
    try:
        path.write_text(page, encoding="utf-8")
    except OSError as error:
        what = f"--html: {path} cannot be written: {error.strerror}"
        raise RelayError(what, remedy="name another file") from error
