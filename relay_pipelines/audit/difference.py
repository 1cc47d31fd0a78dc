"""The first record that differs, on both sides, as text. Runs in a task."""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from itertools import zip_longest
from typing import Any

_SHOWN_BYTES = 64
_CONTEXT_BYTES = 24  # before the first byte that differs
_UTF8_BYTES = 4  # of the longest character
_CONTINUATION = 0x80  # the high bits of a byte that does not begin a character


@dataclass(frozen=True, slots=True)
class ShownRecord:
    """A record as people read it.

    Args:
        key, value, headers: UTF-8 if it is printable on both sides, otherwise hex; cut around the
            first byte that differs.
    """

    offset: int
    timestamp_ms: int
    key: str
    value: str
    headers: str


@dataclass(frozen=True, slots=True)
class Difference:
    """Where two sides begin to differ.

    Args:
        what: what is wrong in the chunk from there on.
        source, destination: the first records that differ; None where that side has none left.
        is_of_both: whether both sides were read; False if the destination alone shows it.
    """

    what: str
    source: ShownRecord | None
    destination: ShownRecord | None
    is_of_both: bool = True


def show(source: Any, destination: Any) -> tuple[ShownRecord | None, ShownRecord | None]:
    """Return two records as text; either may be None."""
    keys = excerpts(getattr(source, "key", None), getattr(destination, "key", None))
    values = excerpts(getattr(source, "value", None), getattr(destination, "value", None))
    headers = _headers(getattr(source, "headers", ()), getattr(destination, "headers", ()))
    one, other = (
        record
        and ShownRecord(record.offset, record.timestamp, keys[side], values[side], headers[side])
        for side, record in enumerate((source, destination))
    )
    return one, other


def excerpts(one: bytes | None, other: bytes | None) -> tuple[str, str]:
    """Return two values as text, cut around the first byte that differs."""
    pairs = enumerate(zip(one or b"", other or b"", strict=False))
    shorter = min(len(one or b""), len(other or b""))
    differs = next((at for at, (left, right) in pairs if left != right), shorter)
    longer = max(len(one or b""), len(other or b""))
    start = max(0, differs - _CONTEXT_BYTES) if longer > _SHOWN_BYTES else 0
    texts = [_text(one, start), _text(other, start)]
    printable = None not in texts
    first, second = (
        _excerpt(whole, start, text if printable else None)
        for whole, text in zip((one, other), texts, strict=True)
    )
    return first, second


def what_differs(source: Sequence[Hashable], destination: Sequence[Hashable]) -> str:
    """Say what happened to the rest of a chunk, which begins with the first difference.

    Args:
        source, destination: what identifies the records that are left on each side, in order.
    """
    missing = (Counter(source) - Counter(destination)).total()
    added = (Counter(destination) - Counter(source)).total()
    changed = sum(one != other for one, other in zip(source, destination, strict=False))
    if not missing and not added:
        return "the same records are in another order"
    if not destination:
        return f"the copies end here: {_records(missing)} missing"
    if not added:
        return f"{_records(missing)} missing at the destination"
    # records were added, so that as many of the chunk's last ones lie after its copies
    shifted = missing == added and list(source[:-added]) == list(destination[added:])
    if not missing or (shifted and changed > missing):
        return f"{_records(added)} at the destination, but not in the source"
    if len(source) == len(destination) and changed == missing:
        return f"{missing:,} {'record differs' if missing == 1 else 'records differ'}"
    return (
        f"{_records(missing)} missing at the destination, and {_records(added)} there, but not in"
        " the source"
    )


def _records(count: int) -> str:
    return f"{count:,} record is" if count == 1 else f"{count:,} records are"


def _text(whole: bytes | None, start: int) -> str | None:
    """Return what is shown as printable UTF-8, or None; without the parts of cut characters."""
    part = (whole or b"")[start : start + _SHOWN_BYTES]
    begins = (at for at, byte in enumerate(part[:_UTF8_BYTES]) if byte & 0xC0 != _CONTINUATION)
    begin = next(begins, 0) if start else 0
    is_cut = start + len(part) < len(whole or b"")
    for missing in range(_UTF8_BYTES if is_cut else 1):
        with suppress(UnicodeDecodeError):
            text = part[begin : len(part) - missing].decode()
            return text if text.isprintable() else None
    return None


def _excerpt(whole: bytes | None, start: int, text: str | None) -> str:
    if whole is None:
        return "null"
    part = whole[start : start + _SHOWN_BYTES]
    shown = part.hex(" ") if text is None else text
    if len(part) == len(whole):
        return shown
    before, after = "…" if start else "", "…" if start + len(part) < len(whole) else ""
    return f"{before}{shown}{after} ({len(whole):,} bytes, from {start:,})"


def _headers(one: Sequence[Any], other: Sequence[Any]) -> tuple[str, str]:
    """Return both lists of headers as `name=value`, each value cut like those of records."""
    texts: tuple[list[str], list[str]] = [], []
    for pair in zip_longest(one, other):
        values = excerpts(*(header[1] if header else None for header in pair))
        for text, header, value in zip(texts, pair, values, strict=True):
            if header:
                name = header[0].encode("utf-8", "backslashreplace").decode()
                text.append(f"{name}={value}")
    return ", ".join(texts[0]), ", ".join(texts[1])
