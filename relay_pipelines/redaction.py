"""Keeps secrets out of every message: errors, logs, JSON, and what Dagster stores.

Whoever reads a secret from a configuration calls `hide`. Messages pass through `redacted`: those of
`RelayError` when it is made, those of commands when they are printed. That is the last line of
defence, because libraries may quote what they were given; a message is written without secrets in
the first place.
"""

from __future__ import annotations

import re
import threading
from collections.abc import Iterable, Mapping
from typing import Any
from urllib.parse import quote, unquote

HIDDEN = "***"
SECRET_NAME = re.compile(
    r"secret|password|passwd|passphrase|token|credential|access[._-]?key|account[._]key|key$",
    re.IGNORECASE,
)
"""Names of settings whose values are hidden; it contains what Spark itself redacts."""
# what is shorter would hide parts of ordinary words
_LEAST_CHARACTERS = 4
# what is shorter is hidden as a word alone: the user of a demo may be called as its password
_LEAST_INSIDE_WORDS = 8
_IN_ADDRESS = re.compile(r"(?<=://)[^\s/@'\"]+@")
_ASSIGNED = re.compile(r"((?:password|secret|token)=)[^;,&\s'\"]+", re.IGNORECASE)

_values: set[str] = set()
_pattern: re.Pattern[str] | None = None
_lock = threading.Lock()


def hide(*secrets: str) -> None:
    """Keep these values out of all later messages of this process."""
    global _pattern  # noqa: PLW0603 - messages come from everywhere, and secrets are the process's
    new = {value for value in secrets if len(value) >= _LEAST_CHARACTERS} - _values
    if not new:
        return
    with _lock:
        _values.update(new)
        spellings = {each for value in _values for each in (value, quote(value, safe=""))}
        # the longest first, because one secret may contain another
        _pattern = re.compile(
            "|".join(_searched(spelling) for spelling in sorted(spellings, key=len, reverse=True))
        )


def hide_named(settings: Mapping[str, Any]) -> None:
    """Hide the values of a mapping whose names say that they are secret, at any depth."""
    hide(*_secrets_in(settings))


def hide_parameters(address: str) -> None:
    """Hide the values that follow a Spark Connect address: `sc://host:port/;token=...`."""
    for parameter in address.split(";")[1:]:
        name, _, value = parameter.partition("=")
        if SECRET_NAME.search(name):
            hide(value, unquote(value))


def redacted(text: str) -> str:
    """Return the text with `***` in place of every secret, and of what an address may carry."""
    if _pattern is not None:
        text = _pattern.sub(HIDDEN, text)
    return _ASSIGNED.sub(rf"\1{HIDDEN}", _IN_ADDRESS.sub(f"{HIDDEN}@", text))


def _secrets_in(value: Any, *, named: bool = False) -> Iterable[str]:
    if isinstance(value, Mapping):
        for name, child in value.items():
            yield from _secrets_in(child, named=named or bool(SECRET_NAME.search(str(name))))
    elif isinstance(value, list | tuple):
        for child in value:
            yield from _secrets_in(child, named=named)
    elif named and not isinstance(value, bool) and value is not None:
        yield str(value)


def _searched(value: str) -> str:
    whole = re.escape(value)
    return whole if len(value) >= _LEAST_INSIDE_WORDS else rf"(?<![\w./-]){whole}(?![\w/-]|\.\w)"
