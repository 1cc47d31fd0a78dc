"""relay.yaml as it is now, for what looks at its mirrors for days.

Whoever copies follows the file, too: by an older one, a command would report topics as held back
because a newer configuration decides their records.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Generic, TypeVar

from relay_pipelines.errors import ConfigError
from relay_pipelines.settings.config_types import file_state
from relay_pipelines.settings.models import Settings

_Part = TypeVar("_Part")


class Followed(Generic[_Part]):
    """A part of relay.yaml, which is read again when it, or a file that it names, is written.

    Args:
        loaded: what was read first.
        load: reads the file.
        part: returns the part; refuses a file that has none.
        say: gets a line about a file that cannot be used, once until it can.
        in_use: which version stays in use meanwhile.

    Attributes:
        settings: the whole file.
        part: by these settings.
    """

    def __init__(
        self,
        loaded: Settings,
        load: Callable[[], Settings],
        part: Callable[[Settings], _Part],
        say: Callable[[str], None],
        in_use: str = "its last version",
    ) -> None:
        self.settings, self.part = loaded, part(loaded)
        self._load = load
        self._part_of = part
        self._say = say
        self._in_use = in_use
        self._problem = ""

    def changed(self) -> bool:
        """Look at the files; return whether the part is another one now."""
        files = self.settings.files
        # one that cannot be used may name files that were not read yet
        if not self._problem and all(file_state(path) == files[path] for path in files):
            return False
        before, problem = self.part, ""
        try:
            loaded = self._load()
            self.part = self._part_of(loaded)
            self.settings = loaded
        except ConfigError as error:
            problem = str(error)
            if problem != self._problem:
                self._say(f"relay.yaml has changed, and {self._in_use} stays in use: {problem}")
        self._problem = problem
        return before != self.part
