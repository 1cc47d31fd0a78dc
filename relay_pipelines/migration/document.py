"""What a conversion builds: a relay.yaml, and notes on what is not translated and why."""

from __future__ import annotations

import copy
import re
import tempfile
import textwrap
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

from relay_pipelines import settings
from relay_pipelines.errors import ConfigError

_FILES = ("ca_location", "certificate_location", "key_location")
_WIDTH = 100


class Keys:
    """The keys of another mirror's configuration; each is taken, or noted with the reason why not.

    Args:
        found: values by dotted key.
    """

    def __init__(self, found: dict[str, Any]) -> None:
        self.found = found
        self.notes: dict[str, str] = {}
        self._taken: set[str] = set()

    def take(self, key: str, default: Any = None) -> Any:
        """Return a value that is translated."""
        if key in self.found:
            self._taken.add(key)
        return self.found.get(key, default)

    def note(self, key: str, why: str) -> None:
        """Say why a key is not translated, or what to do about it; nothing if it is not there."""
        if key in self.found:
            self.notes[key] = why

    def rest(self) -> Iterator[str]:
        """Yield the keys that nobody took or noted."""
        return (key for key in self.found if key not in self._taken and key not in self.notes)


@dataclass(slots=True)
class Document:
    """A relay.yaml under construction.

    Args:
        tree: its keys.
        variables: environment variables that it refers to, with what belongs into them.
    """

    tree: dict[str, Any] = field(default_factory=dict)
    variables: dict[str, str] = field(default_factory=dict)

    def secret(self, owner: str, what: str) -> str:
        """Return a reference to an environment variable: secrets do not belong into relay.yaml."""
        name = re.sub(r"\W+", "_", f"{owner}_{what}").upper().strip("_")
        name = name if name[0].isalpha() else f"_{name}"
        content = f"the {what} for {owner}"
        while self.variables.get(name, content) != content:  # of another owner: `a-b`, `a_b`
            name += "_"
        self.variables[name] = content
        return f"${{{name}}}"

    def render(self, origin: str, notes: dict[str, str]) -> str:
        """Return the file's text, with the notes as comments.

        Raises:
            ConfigError: relay's own loader refuses it.
        """
        missing = self._validate()
        lines = [f"Converted from {origin}. Read the notes, then run relay check and relay plan."]
        if self.variables:
            lines += ["", "Set these environment variables:"]
            lines += [f"  {name}: {what}" for name, what in self.variables.items()]
        if missing:
            lines += ["", "These files do not exist here:", *(f"  {name}" for name in missing)]
        if notes:
            lines += ["", "Not translated, or only in part:"]
            for key, why in notes.items():
                lines += textwrap.wrap(
                    f"  {key}: {why}",
                    _WIDTH - 2,
                    subsequent_indent="    ",
                    break_long_words=False,
                    break_on_hyphens=False,
                )
        head = "\n".join(f"# {line}".rstrip() for line in lines)
        body = yaml.safe_dump(self.tree, sort_keys=False, allow_unicode=True, width=_WIDTH)
        return f"{head}\n{body}"

    def _validate(self) -> list[str]:
        """Load it, with stand-ins for files that are not on this machine; return their names."""
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "relay.yaml"
            tree = copy.deepcopy(self.tree)
            missing = sorted(set(_replace_missing(tree, str(path))))
            path.write_text(yaml.safe_dump(tree), encoding="utf-8")
            try:
                settings.load(path, dict.fromkeys(self.variables, "x"))
            except ConfigError as error:
                what = str(error).replace(f"{path}:", "").strip()
                raise ConfigError(
                    f"the converted configuration is not valid: {what}",
                    remedy="correct the configuration that is converted",
                ) from None
        return missing


def _replace_missing(tree: Any, stand_in: str) -> Iterator[str]:
    for key, value in tree.items() if isinstance(tree, dict) else enumerate(tree):
        if isinstance(value, dict | list):
            yield from _replace_missing(value, stand_in)
        elif key in _FILES and not Path(value).is_file():
            yield value
            tree[key] = stand_in


def mirror_name(text: str) -> str:
    """Return a valid name for a mirror."""
    name = re.sub(r"[^a-z0-9_-]+", "-", text.lower()).strip("-") or "mirror"
    return name if name != "once" else "mirror-once"


def literal(topic: str) -> str:
    """Return the regular expression for exactly this topic."""
    return topic.replace(".", r"\.")
