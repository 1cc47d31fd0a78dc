"""`${ENV_VAR}` and `${file:path}` in any string of relay.yaml; `$${` stands for a plain `${`.

Filled in after the YAML is parsed: what a variable holds can change neither the structure of the
    file nor its other keys.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from relay_pipelines.settings.validation_errors import Problem
from relay_pipelines.settings.values import Location

_REFERENCE = re.compile(r"(?P<escaped>\$)?\$\{(?P<inside>[^}]*)(?P<closed>\})?")
_VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_FILE = "file:"


@dataclass(slots=True)
class Interpolation:
    """Fills in references and collects what could not be filled in.

    Args:
        environment: the environment variables.
        folder: where relative paths start.
        problems: place and text of every reference that leads nowhere; the string is then left as
            it was.
    """

    environment: Mapping[str, str]
    folder: Path
    problems: list[Problem] = field(default_factory=list)

    def fill_in(self, value: Any, location: Location = ()) -> Any:
        """The value with every string in it filled in; keys of mappings are taken as they are."""
        if isinstance(value, dict):
            return {key: self.fill_in(child, (*location, key)) for key, child in value.items()}
        if isinstance(value, list):
            return [self.fill_in(child, (*location, index)) for index, child in enumerate(value)]
        return self._text(value, location) if isinstance(value, str) else value

    def _text(self, text: str, location: Location) -> str:
        try:
            return _REFERENCE.sub(self._reference, text)
        except LookupError as error:
            self.problems.append((location, str(error.args[0])))
            return text

    def _reference(self, match: re.Match[str]) -> str:
        inside = match["inside"]
        if match["escaped"]:
            return match[0][1:]
        if match["closed"] and inside.startswith(_FILE):
            return self._file(inside.removeprefix(_FILE))
        if not match["closed"] or not _VARIABLE.fullmatch(inside):
            # not echoed: it may be a password that happens to contain "${"
            raise LookupError(
                "expected ${NAME} or ${file:path} after the '$'; write $${ for a plain ${"
            )
        if inside not in self.environment:
            raise LookupError(f"the environment variable {inside} is not set")
        return self.environment[inside]

    def _file(self, name: str) -> str:
        """The file's text without the line end that editors and `echo` add."""
        try:
            content = (self.folder / name).read_bytes()
        except OSError as error:
            raise LookupError(f"cannot read the file {name}: {error.strerror}") from None
        try:
            return content.decode().removesuffix("\n").removesuffix("\r")
        except UnicodeDecodeError:
            pass  # its message quotes the content
        raise LookupError(f"the file {name} is not UTF-8 text")
