"""The view of `relay status --watch`: pages in a terminal, a line per mirror elsewhere."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple

from rich.console import Console, Group
from rich.live import Live
from rich.table import Table
from rich.text import Text

from relay_pipelines.output import messages, page_view, tables
from relay_pipelines.output.formatting import count, format_time
from relay_pipelines.page.page import Page

Document = Mapping[str, Any]


class Watched(NamedTuple):
    """A mirror at a look; while it does not answer, the document has what was seen last."""

    page: Page
    document: Document


Show = Callable[[Sequence[Watched], int], None]
_OTHER_LINES = 6  # of a table: what is around its header, its total, and what is left out


@contextmanager
def view(console: Console, relay: str, *, as_json: bool) -> Iterator[Show]:
    """Yield a function that shows the mirrors, and the time in milliseconds.

    Args:
        relay: as in `page_view.text`.
    """
    if as_json:
        yield lambda mirrors, _: messages.json_line(
            {"mirrors": [mirror.document for mirror in mirrors]}
        )
    elif console.is_terminal:
        with Live(console=console, auto_refresh=False, vertical_overflow="crop") as live:
            yield lambda mirrors, now_ms: live.update(
                screen(mirrors, now_ms, console.height, relay), refresh=True
            )
    else:
        yield _lines


def screen(mirrors: Sequence[Watched], now_ms: int, height: int, relay: str = "relay") -> Group:
    """Return the page of each mirror, and a table of its topics with the most lag that fit."""
    room = (height - 2) // max(1, len(mirrors))
    parts: list[Table | Text] = []
    for mirror in mirrors:
        parts += _mirror(mirror, room, relay)
    return Group(*parts, Text(f"{format_time(now_ms)}; Ctrl-C ends it", style="dim"))


def line(mirror: Watched) -> str:
    """Describe a mirror in one line."""
    page, document = mirror
    start = f"{page.mirror}: {page_view.headline(page)}"
    if page.error:
        return f"{start}: {page.error}"
    copied, source = (f"{count(document[key])}/s" for key in ("copy_rate", "source_rate"))
    parts = [
        start,
        f"waiting: {page_view.waiting(page.lag) if page.lag.records else 'nothing'}",
        f"copied {copied}, new at the source {source}",
        tables.outlook(document),
        *(
            f"held back: {page_view.where(held)}: {held.what}; next: {held.command}"
            for held in page.held
        ),
        _last_error(document),
    ]
    return "; ".join(filter(None, parts))


def _lines(mirrors: Sequence[Watched], now_ms: int) -> None:
    for mirror in mirrors:
        messages.line(f"{format_time(now_ms)} {line(mirror)}")


def _mirror(mirror: Watched, room: int, relay: str) -> Iterator[Table | Text]:
    page, document = mirror
    first, *others = page_view.text(page, relay)
    yield Text(first, style="bold")
    yield from (Text(other, style="red" if page.error else "") for other in others)
    topics = sorted(document.get("topics", ()), key=lambda topic: -topic["lag_records"])
    room = max(0, room - len(others) - 1 - _OTHER_LINES)
    if "topics" in document:
        yield tables.watched(document, topics[:room])
    if len(topics) > room:
        yield Text(f"and {count(len(topics) - room)} topics more", style="dim")
    if not page.error and document["last_error"]:
        yield Text(_last_error(document), style="yellow")


def _last_error(document: Document) -> str:
    error = document["last_error"]
    return f"last error at {error['at']}: {error['error']}" if error else ""
