"""From relay.yaml to `Settings`, or to one error that names all its problems."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml
from pydantic import ValidationError

from relay_pipelines.errors import ConfigError
from relay_pipelines.settings.config_types import FileState, Filled, Location, Problem, file_state
from relay_pipelines.settings.models import VERSION, Settings
from relay_pipelines.settings.validation_errors import describe, dotted

_TAGS = "tag:yaml.org,2002:"
_STRING_TAG = f"{_TAGS}str"
_MERGE_TAG = f"{_TAGS}merge"
_TIMESTAMP_TAG = f"{_TAGS}timestamp"
_QUOTED = re.compile(r"'([^']*)'")
_REFERENCE = re.compile(r"(?P<escaped>\$)?\$\{(?P<inside>[^}]*)(?P<closed>\})?")
# `${A:-${B}}` would end at the first brace, with the default `${B`
_VARIABLE = re.compile(r"(?P<name>[A-Za-z_][A-Za-z0-9_]*)(:-(?P<default>(?:(?!\$\{)[^}])*))?")
_FILE = "file:"
_WHOLE_FILE = "RELAY_CONFIG_YAML"


def load(path: Path, environment: Mapping[str, str] | None = None) -> Settings:
    """Read and check a relay.yaml.

    Args:
        path: the file; relative paths in it start at its folder.
        environment: what `${ENV_VAR}` refers to; the environment of the process when None. Its
            variable RELAY_CONFIG_YAML replaces the content of the file that RELAY_CONFIG names,
            ./relay.yaml by default, and of no other one.

    Raises:
        ConfigError: one line per problem, and a line with their number before several. It never
            contains a secret.
    """
    variables = os.environ if environment is None else environment
    folder = path.absolute().parent
    files = dict[Path, FileState]()
    default = Path(variables.get("RELAY_CONFIG") or "relay.yaml")
    if path.absolute() == default.absolute() and (whole := variables.get(_WHOLE_FILE)):
        path, text = Path(_WHOLE_FILE), whole
    else:
        files[path] = file_state(path)
        text = _text(path)
    interpolation = _Interpolation(variables, folder, files)
    try:
        written, root = _read_yaml(path, text)
        filled = interpolation.fill_in(written)
    except RecursionError:
        raise ConfigError(
            f"{path}: a section is in itself, or very deep", remedy="write aliases out"
        ) from None
    if written is None:
        raise ConfigError(f"{path} is empty", remedy="start from what `relay init` writes")
    _refuse_newer(path, written, root)
    problems = list(interpolation.problems)
    try:
        settings = Settings.model_validate(filled, context={"folder": folder, "files": files})
    except ValidationError as error:
        unresolved = [location for location, _ in problems]
        problems += [
            problem
            for problem in describe(error, Settings, written)
            if not _follows_from(problem, unresolved)
        ]
    if problems:  # raised here and not above: a chained pydantic error would contain the values
        raise ConfigError(_message(path, problems, root))
    return settings


def _refuse_newer(path: Path, written: Any, root: yaml.Node | None) -> None:
    """Refuse a file of a later relay with one line, not with one for each key that is unknown."""
    version = written.get("version") if isinstance(written, dict) else None
    if isinstance(version, int) and version > VERSION:
        raise ConfigError(
            f"{path}:{_line(root, ('version',))}: version: the file has version {version}, and this"
            f" relay knows version {VERSION}",
            remedy="upgrade relay-pipelines, or use the file of before",
        )


def _follows_from(problem: Problem, unresolved: Sequence[Location]) -> bool:
    """Whether the value is only wrong because its reference could not be resolved."""
    return any(problem[0][: len(location)] == location for location in unresolved)


def _message(path: Path, problems: Sequence[Problem], root: yaml.Node | None) -> str:
    numbers = [_line(root, location) for location, _ in problems]
    lines = [f"{dotted(location)}: {text}" if location else text for location, text in problems]
    if len(lines) == 1:
        return f"{path}:{numbers[0]}: {lines[0]}" if numbers[0] else f"{path}: {lines[0]}"
    numbered = [
        f"line {number}: {line}" if number else line
        for number, line in zip(numbers, lines, strict=True)
    ]
    return "\n  ".join([f"{path}: {len(lines)} problems", *numbered])


def _line(node: yaml.Node | None, location: Location) -> int | None:
    """Return the line of the key or entry at a location, or of the nearest section around it."""
    line = None
    for step in location:
        children: dict[Any, tuple[yaml.Node, yaml.Node]] = {}
        if isinstance(node, yaml.MappingNode):
            children = {key.value: (key, value) for key, value in node.value}
        elif isinstance(node, yaml.SequenceNode):
            children = {index: (entry, entry) for index, entry in enumerate(node.value)}
        if step not in children:
            break
        key, node = children[step]
        line = key.start_mark.line + 1
    return line


class _KeyProblemError(yaml.MarkedYAMLError):
    """What YAML allows and relay.yaml does not."""


def _name_of(tag: str) -> str:
    name = tag.removeprefix(_TAGS)
    return f"a value of the type {name}" if tag.startswith(_TAGS) else "a value of its type"


class _StrictLoader(yaml.SafeLoader):
    """Refuses duplicate keys: PyYAML silently takes the last, and half a mirror would vanish.

    A date that does not exist stays text, for the key to refuse it.
    """

    def construct_object(self, node: yaml.Node, deep: bool = False) -> Any:  # noqa: FBT001, FBT002 - PyYAML's signature
        try:
            return super().construct_object(node, deep)
        except (ValueError, LookupError, AttributeError, TypeError, OverflowError):
            # such as !!int x, and numbers of thousands of digits
            problem = f"not {_name_of(node.tag)}"
        raise _KeyProblemError(problem=problem, problem_mark=node.start_mark)

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
                    problem="this key is not a string; put it in quotes",
                    problem_mark=key.start_mark,
                )
            if key.value in lines:
                raise _KeyProblemError(
                    problem=f"duplicate key {key.value!r}, first in line {lines[key.value]};"
                    " remove one",
                    problem_mark=key.start_mark,
                )
            lines[key.value] = key.start_mark.line + 1
        return super().construct_mapping(node, deep)

    def construct_yaml_timestamp(self, node: yaml.ScalarNode) -> Any:
        try:
            return super().construct_yaml_timestamp(node)
        except ValueError:
            return node.value


_StrictLoader.add_constructor(_TIMESTAMP_TAG, _StrictLoader.construct_yaml_timestamp)


def _read_yaml(path: Path, text: str) -> tuple[Any, yaml.Node | None]:
    """Return the text's content and its tree, or raise one line with line and column."""
    try:
        loader = _StrictLoader(text)
        root = loader.get_single_node()
        content = loader.construct_document(root) if root else None
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        where = f"{path}:{mark.line + 1}:{mark.column + 1}" if mark else f"{path}"
        problem = error.problem or "cannot be read"
        if not isinstance(error, _KeyProblemError):
            problem = f"not YAML: {_QUOTED.sub(_without_content, problem)}"
            problem += _remedy(
                problem, text[max(0, mark.index - 1) : mark.index + 1] if mark else ""
            )
    except yaml.reader.ReaderError as error:
        before = text[: error.position]
        where = f"{path}:{before.count(chr(10)) + 1}:{error.position - before.rfind(chr(10))}"
        problem = "not YAML: an unprintable character"
    else:
        return content, root
    raise ConfigError(f"{where}: {problem}")


def _remedy(problem: str, at: str) -> str:
    """Return what to do about what people often write, from the characters before and at it."""
    if at == "${":
        return "; put ${...} in quotes"
    if at.endswith("\t"):
        return "; indent with spaces, not with tabs"
    if "unknown escape character" in problem:
        return "; put a regular expression in single quotes"
    return ""


def _without_content(quoted: re.Match[str]) -> str:
    """Keep `','` and `'<stream end>'`; an alias or tag may be a password without its quotes."""
    return quoted[0] if len(quoted[1]) <= 1 or quoted[1].startswith("<") else "..."


def _text(path: Path) -> str:
    try:
        return path.read_bytes().decode("utf-8-sig")
    except FileNotFoundError:
        raise ConfigError(
            f"{path} does not exist", remedy="name another file, or write one with `relay init`"
        ) from None
    except OSError as error:
        raise ConfigError(f"{path} cannot be read: {error.strerror}") from None
    except UnicodeDecodeError as error:
        position = error.start
    raise ConfigError(f"{path} is not UTF-8 text: byte {position}", remedy="save it as UTF-8")


@dataclass(slots=True)
class _Interpolation:
    """Replaces `${NAME}`, `${NAME:-default}` and `${file:path}` in all strings; `$${` is a `${`.

    It works on the parsed YAML: the content of a variable cannot change the structure of the file.
    A string that is one reference and no more becomes `Filled`.

    Args:
        environment: the environment variables.
        folder: where relative paths start.
        files: those that were read, as they were before; it grows.
        problems: references that could not be resolved; their strings stay unchanged.
    """

    environment: Mapping[str, str]
    folder: Path
    files: dict[Path, FileState]
    problems: list[Problem] = field(default_factory=list)

    def fill_in(self, value: Any, location: Location = ()) -> Any:
        """Return the value with all its strings filled in; the keys of mappings stay unchanged."""
        if isinstance(value, dict):
            return {key: self.fill_in(child, (*location, key)) for key, child in value.items()}
        if isinstance(value, list):
            return [self.fill_in(child, (*location, index)) for index, child in enumerate(value)]
        return self._string(value, location) if isinstance(value, str) else value

    def _string(self, text: str, location: Location) -> str | None:
        try:
            filled = _REFERENCE.sub(self._reference, text)
            alone = _REFERENCE.fullmatch(text)
            if alone is None or alone["escaped"]:
                return filled
            # an empty default leaves the key without a value; an empty variable may be a mistake
            return None if not filled and alone["inside"].endswith(":-") else Filled(filled)
        except LookupError as error:
            self.problems.append((location, str(error.args[0])))
            return text

    def _reference(self, match: re.Match[str]) -> str:
        inside = match["inside"]
        if match["escaped"]:
            return match[0][1:]
        if match["closed"] and inside.startswith(_FILE):
            return self._file(inside.removeprefix(_FILE))
        variable = _VARIABLE.fullmatch(inside) if match["closed"] else None
        if variable is None:
            # the message does not show it: it may be a password that happens to contain "${"
            raise LookupError(
                "expected ${NAME}, ${NAME:-default} or ${file:path}, one not inside another; write"
                " $${ for a plain ${"
            )
        name = variable["name"]
        if variable["default"] is not None:
            return self.environment.get(name) or variable["default"]
        if name not in self.environment:
            raise LookupError(f"the environment variable {name} is not set")
        return self.environment[name]

    def _file(self, name: str) -> str:
        """Return the file's text without the line end that editors and `echo` add."""
        path = self.folder / name
        try:
            self.files[path] = file_state(path)
            content = path.read_bytes()
        except OSError as error:
            raise LookupError(f"cannot read the file {name}: {error.strerror}") from None
        except ValueError:  # a null byte, or half a surrogate pair
            raise LookupError("the name of the file is not one") from None
        try:
            return content.decode().removesuffix("\n").removesuffix("\r")
        except UnicodeDecodeError:
            pass  # its message quotes the content
        raise LookupError(f"the file {name} is not UTF-8 text")
