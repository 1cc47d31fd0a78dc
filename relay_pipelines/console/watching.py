"""The view of `relay status --watch`: a table in a terminal, a line per mirror elsewhere."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

from rich.console import Console, Group
from rich.live import Live
from rich.table import Table
from rich.text import Text

from relay_pipelines.console import messages, tables
from relay_pipelines.console.formatting import count, format_time

Document = Mapping[str, Any]
Show = Callable[[Sequence[Document], int], None]
_OTHER_LINES = 6  # of a mirror: its title, the header of the table, its total, the last error


@contextmanager
def view(console: Console, *, as_json: bool) -> Iterator[Show]:
    """Yield a function that shows the documents of the mirrors, and the time in milliseconds."""
    if as_json:
        yield lambda documents, _: messages.json_line({"mirrors": list(documents)})
    elif console.is_terminal:
        with Live(console=console, auto_refresh=False, vertical_overflow="crop") as live:
            yield lambda documents, now_ms: live.update(
                screen(documents, now_ms, console.height), refresh=True
            )
    else:
        yield _lines


def screen(documents: Sequence[Document], now_ms: int, height: int) -> Group:
    """Return a table per mirror; the topics with the most lag, as many as fit."""
    room = max(0, (height - 2) // max(1, len(documents)) - _OTHER_LINES)
    parts: list[Table | Text] = []
    for document in documents:
        parts += _mirror(document, room)
    return Group(*parts, Text(f"{format_time(now_ms)}; Ctrl-C ends it", style="dim"))


def line(document: Document) -> str:
    """Describe a mirror in one line."""
    if "lag_records" not in document:
        return f"{document['mirror']}: {_error(document).removeprefix('; ')}"
    copied, source = (f"{count(document[key])}/s" for key in ("copy_rate", "source_rate"))
    outlook = tables.outlook(document) or "nothing left"
    return (
        f"{document['mirror']}: {tables.lag_in_words(document)} behind"
        f" {tables.node_in_words(document)};"
        f" copied {copied}, new at the source {source}, {outlook}{_error(document)}"
    )


def _lines(documents: Sequence[Document], now_ms: int) -> None:
    for document in documents:
        messages.line(f"{format_time(now_ms)} {line(document)}")


def _mirror(document: Document, room: int) -> Iterator[Table | Text]:
    topics = sorted(document.get("topics", ()), key=lambda topic: -topic["lag_records"])
    if "lag_records" in document:
        yield tables.watched(document, topics[:room])
    else:
        yield Text(document["mirror"], style="bold")
    if len(topics) > room:
        yield Text(f"and {count(len(topics) - room)} topics more", style="dim")
    if document["last_error"]:
        style = "yellow" if document["answers"] else "bold red"
        yield Text(_error(document).removeprefix("; "), style=style)


def _error(document: Document) -> str:
    error = document["last_error"]
    if not error:
        return ""
    what = "last error at" if document["answers"] else "unknown since"
    return f"; {what} {error['at']}: {error['error']}"
