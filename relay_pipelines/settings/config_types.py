"""What relay.yaml is made of: its mappings (`Section`) and the types of their values.

A message built here never contains the value: a value may be a secret, and only
`validation_errors.py` decides whether it may be shown.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterable, Iterator
from contextlib import suppress
from decimal import Decimal
from pathlib import Path
from types import UnionType
from typing import Annotated, Any, Self, get_args, get_origin
from urllib.parse import urlsplit

import yaml
from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ByteSize,
    ConfigDict,
    Field,
    SecretStr,
    TypeAdapter,
    ValidationError,
    ValidationInfo,
    model_validator,
)
from pydantic_core import PydanticCustomError

from relay_pipelines import redaction

_INT32_MAX = 2**31 - 1
_INT64_MAX = 2**63 - 1
_PORT_MAX = 65_535
_BYTE_SIZE = TypeAdapter(ByteSize)
_DURATION_UNITS_MS = {"ms": 1, "s": 1_000, "m": 60_000, "h": 3_600_000, "d": 86_400_000}
_DURATION = re.compile(r"(?P<number>\d+(?:\.\d+)?)\s*(?P<unit>ms|s|m|h|d)", re.IGNORECASE)
_HOST_PORT = re.compile(r"(?:\[[0-9A-Fa-f:.]+\]|[^\s:/@\[\]]+):(?P<port>\d{1,5})")
_IN_CONFIG_FOLDER = "relative paths start at the folder of the configuration file"

Location = tuple[str | int, ...]
Problem = tuple[Location, str]
"""Where, below the value that is validated, and what is wrong."""
FileState = tuple[int, int]
"""A file's modification time in nanoseconds and size in bytes; zeros if it is not there."""


def file_state(path: Path) -> FileState:
    """Return how the file is now: one that was written again has another state."""
    try:
        status = path.stat()
    except OSError:
        return 0, 0
    return status.st_mtime_ns, status.st_size


def expected(what: str, why: str = "") -> PydanticCustomError:
    """The value is not `what`; `why` explains the rule if it is not obvious."""
    return PydanticCustomError("expected", "expected {what}", {"what": what, "why": why})


def refuse(problems: Iterable[Problem]) -> None:
    """Raise all problems at once, if there are any."""
    if found := list(problems):
        raise PydanticCustomError("problems", "several problems", {"found": found})


class Filled(str):
    """What a reference such as `${NAME}` stands for, if it is the whole value of a key."""

    __slots__ = ()

    def __reduce__(self) -> tuple[type[str], tuple[str]]:
        return str, (str(self),)

    def as_type(self, annotation: Any) -> Any:
        """Return the list or mapping that it spells in YAML, if the key takes one.

        A list may also be words with commas between them.
        """
        kinds = get_args(annotation) if isinstance(annotation, UnionType) else (annotation,)
        types = [get_origin(kind) or kind for kind in kinds]
        wants_list = tuple in types
        if not wants_list and not any(
            isinstance(kind, type) and issubclass(kind, dict | Section) for kind in types
        ):
            return self
        with suppress(yaml.YAMLError):
            parsed = yaml.safe_load(self)
            if isinstance(parsed, list if wants_list else dict):
                return parsed
        return [word.strip() for word in self.split(",")] if wants_list else self


class Section(BaseModel):
    """A mapping of relay.yaml: unknown keys are errors, a key without a value has its default."""

    model_config = ConfigDict(
        frozen=True, extra="forbid", hide_input_in_errors=True, use_attribute_docstrings=True
    )

    @model_validator(mode="before")
    @classmethod
    def _null_is_default(cls, data: Any) -> Any:
        if not isinstance(data, dict):
            return data
        known = {field.alias or name: field for name, field in cls.model_fields.items()}
        return {
            key: value.as_type(known[key].annotation)
            if isinstance(value, Filled) and key in known
            else value
            for key, value in data.items()
            if value is not None or key not in known
        }

    @model_validator(mode="after")
    def _has_no_problems(self) -> Self:
        refuse(self.problems())
        return self

    def problems(self) -> Iterable[Problem]:
        """Find keys that contradict each other."""
        return ()

    def overridden_by(self, override: Self | None) -> Self:
        """Return these settings with every key that `override` sets replaced, at any depth."""
        if override is None:
            return self
        changed = {}
        for name in override.model_fields_set:
            here, there = getattr(self, name), getattr(override, name)
            changed[name] = (
                here.overridden_by(there)
                if isinstance(here, Section) and isinstance(there, Section)
                else there
            )
        return self.model_copy(update=changed)


def matches(pattern: str, what: str) -> AfterValidator:
    """Accept strings that match the whole pattern; `what` describes them in words."""

    def check(value: str) -> str:
        if not re.fullmatch(pattern, value):
            raise expected(what)
        return value

    return AfterValidator(check)


def code_name(form: str) -> AfterValidator:
    """Accept `module:name`, or the name of an entry point; `form` is the former, for people."""
    return matches(
        r"[A-Za-z_][\w.]*:[A-Za-z_]\w*|[\w.-]+", f"{form}, or the name of an entry point"
    )


def _size_bytes(value: object) -> int:
    """Bytes from `64KiB`, `10MB` (10^6) or a number; not true, which pydantic takes for 1."""
    if isinstance(value, int | str) and not isinstance(value, bool):
        with suppress(ValidationError):
            return int(_BYTE_SIZE.validate_python(value))
    raise expected("a size such as 64KiB, 10MB or a number of bytes")


def _int32_size(value: int) -> int:
    if value > _INT32_MAX:
        raise expected("less than 2GiB", "the protocol stores it in 31 bits")
    return value


def _long_duration_ms(value: object) -> int:
    """Milliseconds from `500ms`, `3s`, `5m`, `2h` or `1d`; a number without a unit is refused."""
    form = "a duration such as 500ms, 3s or 5m"
    match = _DURATION.fullmatch(value.strip()) if isinstance(value, str) else None
    if match is None:
        raise expected(form)
    milliseconds = Decimal(match["number"]) * _DURATION_UNITS_MS[match["unit"].lower()]
    if milliseconds != int(milliseconds):
        raise expected(form, "less than a millisecond cannot be expressed")
    return int(milliseconds)


def _duration_ms(value: object) -> int:
    """The same, as far as Kafka's protocol can express it."""
    milliseconds = _long_duration_ms(value)
    if milliseconds > _INT32_MAX:
        why = "the protocol cannot express more than 24 days"
        raise expected("a duration such as 500ms, 3s or 5m", why)
    return milliseconds


def _duration_or_zero_ms(value: object) -> int:
    return 0 if value in (0, "0") and not isinstance(value, bool) else _duration_ms(value)


def _give_up_after_ms(value: object) -> int:
    if value in (-1, "-1"):
        return -1
    with suppress(PydanticCustomError):
        if milliseconds := _duration_ms(value):
            return milliseconds
    raise expected("a duration such as 500ms, 3s or 5m, or -1 for no limit")


def _whole_number(value: object) -> int:
    """Refuse `true`, which pydantic takes for 1; a string of digits comes from `${ENV_VAR}`."""
    if isinstance(value, str) and re.fullmatch(r"\d{1,19}", value.strip()):
        return int(value)
    if isinstance(value, int) and not isinstance(value, bool):
        return value
    raise expected("a whole number")


def _not_empty_secret(value: SecretStr) -> SecretStr:
    if not value.get_secret_value():
        raise expected("a string that is not empty")
    redaction.hide(value.get_secret_value())
    return value


def _host_port(value: str) -> str:
    """`host:port`, IPv6 hosts in brackets."""
    match = _HOST_PORT.fullmatch(value)
    if match is None or not 0 < int(match["port"]) <= _PORT_MAX:
        raise expected("host:port")
    return value


def _endpoint(value: str) -> str:
    """Refuse a user and password in it: every message that names the address would show them."""
    try:
        parts = urlsplit(value)
        fits = (
            parts.scheme in {"http", "https"}
            and bool(parts.hostname)
            and "@" not in parts.netloc
            and (parts.port or 1) > 0
        )
    except ValueError:  # such as a port of letters
        fits = False
    if not fits:
        raise expected(
            "an address such as https://host/path", "http or https, without user and password"
        )
    return value


def _split_servers(value: Any) -> Any:
    """Split `a:9092,b:9092`, which is how an environment variable can hold a list."""
    parts = [value] if isinstance(value, str) else value
    if not isinstance(parts, list) or not all(isinstance(part, str) for part in parts):
        return parts
    return [server.strip() for part in parts for server in part.split(",")]


def pattern_problem(value: str) -> str:
    """Return why a regular expression cannot be what was meant; empty if it can."""
    try:
        compiled = re.compile(value)
    except re.error as error:
        return f"{error}; write .* for any characters" if value.startswith("*") else str(error)
    if value.endswith("\n") and not compiled.flags & re.VERBOSE:
        return "it ends with a line end, which must match, too; write >- or |- for > or |"
    return ""


def _pattern(value: str) -> str:
    if why := pattern_problem(value):
        raise expected("a regular expression", why)
    return value


def config_folder(context: Any) -> str:
    """Return the folder of relay.yaml by a validation's context; empty if there is no file."""
    return str(context["folder"]) if context else ""


def json_problems(key: str, value: object) -> Iterator[Problem]:
    """Find what cannot be sent to tasks as JSON."""
    try:
        json.dumps(value)
    except (TypeError, ValueError) as error:
        yield (key,), f"cannot be written as JSON: {error}; put dates in quotes"


def _extension_name(value: str) -> str:
    """Accept what KIP-342 does: letters; `auth` is the token's own."""
    if not re.fullmatch("[A-Za-z]+", value) or value == "auth":
        raise expected("a name of letters, and not auth")
    return value


def _in_config_folder(value: str, info: ValidationInfo) -> Path:
    """A relative path starts at the folder of relay.yaml, not where the process was started."""
    folder: Path = info.context["folder"] if info.context else Path()
    return (folder / value).absolute()


def _existing_file(value: str, info: ValidationInfo) -> str:
    path = _in_config_folder(value, info)
    if not os.path.isfile(path):  # noqa: PTH113 - is_file raises for a name that is too long
        raise expected("a file that exists", _IN_CONFIG_FOLDER)
    return str(path)


def _in_existing_folder(value: str, info: ValidationInfo) -> str:
    path = _in_config_folder(value, info)
    if not os.path.isdir(path.parent):  # noqa: PTH112 - as above
        raise expected("a file in a folder that exists", _IN_CONFIG_FOLDER)
    return str(path)


def _spark_value(value: object) -> str:
    """Write YAML's true and 4 as Spark spells them: its configuration is text."""
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, str | int | float):
        return str(value)
    raise expected("a string, a number, true or false")


Size = Annotated[int, BeforeValidator(_size_bytes), Field(ge=0)]
PositiveSize = Annotated[int, BeforeValidator(_size_bytes), Field(gt=0)]
RequestSize = Annotated[PositiveSize, AfterValidator(_int32_size)]
Duration = Annotated[int, BeforeValidator(_duration_ms), Field(gt=0)]
LongDuration = Annotated[int, BeforeValidator(_long_duration_ms), Field(gt=0, le=_INT64_MAX)]
DurationOrZero = Annotated[int, BeforeValidator(_duration_or_zero_ms)]
GiveUpAfter = Annotated[int, BeforeValidator(_give_up_after_ms)]
Count = Annotated[int, BeforeValidator(_whole_number), Field(gt=0, le=_INT32_MAX)]
NotNegative = Annotated[int, BeforeValidator(_whole_number), Field(ge=0, le=_INT64_MAX)]
Text = Annotated[str, Field(min_length=1)]
Secret = Annotated[SecretStr, AfterValidator(_not_empty_secret)]
HostPort = Annotated[str, AfterValidator(_host_port)]
Endpoint = Annotated[str, AfterValidator(_endpoint)]
ExtensionName = Annotated[str, AfterValidator(_extension_name)]
ExtensionValue = Annotated[str, matches(r"[ -~]+", "a string of printable ASCII characters")]
Servers = Annotated[tuple[HostPort, ...], BeforeValidator(_split_servers)]
Pattern = Annotated[str, AfterValidator(_pattern)]
ExistingFile = Annotated[str, AfterValidator(_existing_file)]
FileInExistingFolder = Annotated[str, AfterValidator(_in_existing_folder)]
Name = Annotated[str, matches(r"[A-Za-z0-9._-]+", "a name of letters, digits, '.', '_' and '-'")]
# part of checkpoint keys (where '/' separates), transactional ids and asset keys
MirrorName = Annotated[str, matches(r"[a-z0-9_-]+", "a mirror name of a-z, 0-9, '_' and '-'")]
# part of asset keys; `main` is the lane of all other topics
LaneName = Annotated[
    str, matches(r"(?!main$)[a-z0-9_]+", "a lane name of a-z, 0-9 and '_', and not main")
]
# what Dagster accepts
Owner = Annotated[
    str,
    matches(
        r"team:[A-Za-z0-9_-]+|[A-Za-z0-9_][A-Za-z0-9._%+-]*@[A-Za-z0-9.-]+\.[A-Za-z]{2,7}",
        "an e-mail address or team:name",
    ),
]
SparkValue = Annotated[str, BeforeValidator(_spark_value)]
