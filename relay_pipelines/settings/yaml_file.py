"""A YAML file as plain values, strictly: a key that stands twice, or is not text, is an error with line and column."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import yaml

from relay_pipelines.errors import ConfigError

_STRING_TAG = "tag:yaml.org,2002:str"
_MERGE_TAG = "tag:yaml.org,2002:merge"
_QUOTED = re.compile(r"'([^']*)'")


class _KeyProblemError(yaml.MarkedYAMLError):
    """A key that YAML allows and we do not."""


class _StrictLoader(yaml.SafeLoader):
    """PyYAML takes the last of two equal keys without a word: half of a mirror would vanish."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:  # noqa: FBT001, FBT002 - PyYAML's signature
        lines: dict[str, int] = {}
        own_keys = (
            [key for key, _ in node.value if key.tag != _MERGE_TAG]
            if isinstance(node, yaml.MappingNode)
            else []
        )
        for key in own_keys:
            if key.tag != _STRING_TAG:
                raise _KeyProblemError(
                    problem="this key is not text; put it in quotes", problem_mark=key.start_mark
                )
            if key.value in lines:
                first = lines[key.value]
                raise _KeyProblemError(
                    problem=f"the key {key.value!r} stands twice, first in line {first}; remove one",
                    problem_mark=key.start_mark,
                )
            lines[key.value] = key.start_mark.line + 1
        return super().construct_mapping(node, deep)


def read(path: Path) -> Any:
    """The file's content.

    Raises:
        ConfigError: the file cannot be read, or is not YAML; one line with line and column.
    """
    text = _text(path)
    try:
        return yaml.load(text, Loader=_StrictLoader)  # noqa: S506 - a SafeLoader
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        where = f"{path}:{mark.line + 1}:{mark.column + 1}" if mark else f"{path}"
        problem = error.problem or "cannot be read"
        problem = (
            problem
            if isinstance(error, _KeyProblemError)
            else f"not YAML: {_QUOTED.sub(_without_content, problem)}"
        )
    except yaml.reader.ReaderError as error:
        before = text[: error.position]
        where = f"{path}:{before.count(chr(10)) + 1}:{error.position - before.rfind(chr(10))}"
        problem = "not YAML: an unprintable character"
    raise ConfigError(f"{where}: {problem}")


def _without_content(quoted: re.Match[str]) -> str:
    """Keeps `','` and `'<stream end>'`; an alias or tag may be a password that was written without quotes."""
    return quoted[0] if len(quoted[1]) <= 1 or quoted[1].startswith("<") else "..."


def _text(path: Path) -> str:
    try:
        return path.read_bytes().decode("utf-8-sig")
    except FileNotFoundError:
        raise ConfigError(
            f"{path} does not exist", remedy="name another file, or start from relay.example.yaml"
        ) from None
    except OSError as error:
        raise ConfigError(f"{path} cannot be read: {error.strerror}") from None
    except UnicodeDecodeError as error:
        position = error.start
    raise ConfigError(f"{path} is not UTF-8 text: byte {position}", remedy="save it as UTF-8")
