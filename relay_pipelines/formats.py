"""The formats that are read for ever: their versions, and what a reader does with a newer one.

What a process writes for later ones is JSON, with its `version` first. A version is the number of
the release that made it: 100 is 1.0, 103 is 1.3. So an older reader can say what to upgrade to.
ADR 0049 argues the rules:

- A writer adds nothing without a new version: no field, no value of a word, no kind of record.
- A reader reads every version from 1.0 to its own. What a field says that came later is its
  default (`json_codec.SINCE`).
- A newer version is refused. Only what may be forgotten counts as nothing (`Format.recalled`).
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeVar

from relay_pipelines.errors import UnsupportedError
from relay_pipelines.json_codec import NOT_READABLE, UnknownFieldsError, from_fields, to_json

FIRST = 100
"""No commit before the first release has used this number, or a larger one."""
_MINORS = 100

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Format:
    """A kind of what is stored.

    Args:
        what: a value of it, as a message names it.
        version: the newest that this relay reads, and the one that it writes.
        instead: what else to do than to upgrade.
    """

    what: str
    version: int = FIRST
    instead: str = ""

    def text(self, value: Any, **first: Any) -> str:
        """Return a slotted dataclass as it is stored.

        Args:
            first: further fields, before the version.
        """
        return to_json(value, **first, version=self.version)

    def read(self, kind: Callable[..., T], text: str | bytes, name: str = "") -> T:
        """Return the dataclass of a stored text.

        Args:
            name: of the value, for messages.

        Raises:
            UnsupportedError: another version of relay_pipelines wrote it.
            AttributeError, KeyError, RecursionError, TypeError, ValueError: another program wrote
                it (`NOT_READABLE`).
        """
        decoded = text if isinstance(text, str) else text.decode()
        fields = json.loads(decoded)
        if "\\u" in decoded:  # half a character, which nobody can print or send
            json.dumps(fields, ensure_ascii=False).encode()
        return self.of_fields(kind, fields, name)

    def of_fields(self, kind: Callable[..., T], fields: Any, name: str = "") -> T:
        """Return the dataclass of parsed JSON; raises as `read`."""
        version = fields["version"]
        if type(version) is not int:
            raise TypeError("version")
        if version > self.version:
            major, minor = divmod(version, _MINORS)
            raise self._refused(name, f"by relay_pipelines {major}.{minor} or later")
        if version < FIRST:
            raise UnsupportedError(
                f"{self._named(name)} was written before relay_pipelines 1.0, by no release",
                remedy=self.instead or "mirror to another destination",
            )
        try:
            rest = {key: value for key, value in fields.items() if key != "version"}
            return from_fields(kind, rest, version)
        except UnknownFieldsError:
            raise self._refused(name, "by a later relay_pipelines") from None

    def recalled(self, kind: Callable[[], T], text: str | None) -> T:
        """Return what may be forgotten; an empty one for what this relay cannot read."""
        try:
            return self.read(kind, text) if text else kind()
        except (*NOT_READABLE, UnsupportedError):
            return kind()

    def _named(self, name: str) -> str:
        return f"{self.what} {name}".strip()

    def _refused(self, name: str, writer: str) -> UnsupportedError:
        from importlib import metadata

        return UnsupportedError(
            f"{self._named(name)} was written {writer}; this is"
            f" {metadata.version('relay_pipelines')}",
            remedy="upgrade" + (f", or {self.instead}" if self.instead else ""),
        )


CHECKPOINTS = Format("a record of __relay_checkpoints")
LEDGER = Format("a record of __relay_ledger")
STATEMENT = Format("the statement")
WINDOW = Format("the plan of window", instead="plan a window of this version")
STREAM = Format(
    "the checkpoint folder of the query",
    instead="start another query, with a checkpoint folder of its own",
)
PLANNER_CURSOR = Format("the cursor of a planner")
HEALTH_CURSOR = Format("the cursor of a health sensor")
OPEN_WINDOW = Format("the window that is open")
FAILED_WINDOWS = Format("the windows that failed")
CATALOG = Format("the file of topics")
FORGOTTEN = (
    *(PLANNER_CURSOR, HEALTH_CURSOR, OPEN_WINDOW),
    *(FAILED_WINDOWS, CATALOG),
)
"""Of these, a newer one counts as nothing, because the next run says or finds it again."""
