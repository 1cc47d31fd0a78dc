"""The kinds of value in relay.yaml: sizes, durations, addresses, files, patterns, names.

A validator here raises `expected(...)` or `complaints(...)` and never puts the value into the
message: whether a value may be shown (it may be a secret) is decided in one place, `problems.py`.
"""

from __future__ import annotations

import re
from decimal import Decimal
from pathlib import Path
from typing import Annotated, Any
from urllib.parse import urlsplit

from pydantic import AfterValidator, BeforeValidator, SecretStr, ValidationInfo
from pydantic_core import PydanticCustomError

Location = tuple[str | int, ...]

_INT32_MAX = 2**31 - 1
_PORT_MAX = 65_535
_SIZE_UNITS = {
    "": 1,
    "b": 1,
    "kb": 10**3,
    "mb": 10**6,
    "gb": 10**9,
    "tb": 10**12,
    "kib": 2**10,
    "mib": 2**20,
    "gib": 2**30,
    "tib": 2**40,
}
_DURATION_UNITS_MS = {"ms": 1, "s": 1_000, "m": 60_000, "h": 3_600_000, "d": 86_400_000}
_QUANTITY = re.compile(r"(?P<number>\d+(?:\.\d+)?)\s*(?P<unit>[A-Za-z]*)")
_HOST_PORT = re.compile(r"(?:\[[0-9A-Fa-f:.]+\]|[^\s:/@\[\]]+):(?P<port>\d{1,5})")


def expected(what: str, why: str = "") -> PydanticCustomError:
    """The value is not `what`; `why` in words if that is not plain."""
    return PydanticCustomError("expected", "expected {what}", {"what": what, "why": why})


def complaints(*found: tuple[Location, str]) -> PydanticCustomError:
    """Several problems at once, each with its place below the value that is validated."""
    return PydanticCustomError("complaints", "several problems", {"found": found})


def size_bytes(value: object) -> int:
    """Bytes from `64KiB`, `1.5GiB`, `10MB` (10^6) or a whole number of bytes."""
    wanted = "a size such as 64KiB, 10MB or a number of bytes"
    if isinstance(value, int):
        value = str(value)  # true becomes "True", which is no size
    return _quantity(value, _SIZE_UNITS, wanted)


def duration_ms(value: object) -> int:
    """Milliseconds from `500ms`, `3s`, `5m`, `2h` or `1d`; a bare number has no unit and is refused."""
    wanted = "a duration such as 500ms, 3s or 5m"
    milliseconds = _quantity(value, _DURATION_UNITS_MS, wanted)
    if milliseconds > _INT32_MAX:
        raise expected(wanted, "longer than 24 days, which the protocol cannot express")
    return milliseconds


def _quantity(value: object, units: dict[str, int], wanted: str) -> int:
    match = _QUANTITY.fullmatch(value.strip()) if isinstance(value, str) else None
    if match is None or match["unit"].lower() not in units:
        raise expected(wanted)
    quantity = Decimal(match["number"]) * units[match["unit"].lower()]
    if quantity != int(quantity):
        raise expected(wanted, "a fraction of the smallest unit")
    return int(quantity)


def _positive(value: int) -> int:
    if value < 1:
        raise expected("more than zero")
    return value


def _int32(value: int) -> int:
    if value > _INT32_MAX:
        raise expected("less than 2GiB", "the protocol counts it in 31 bits")
    return value


def _not_empty(value: str) -> str:
    if not value:
        raise expected("a string that is not empty")
    return value


def _not_empty_secret(value: SecretStr) -> SecretStr:
    _not_empty(value.get_secret_value())
    return value


def _whole_number(value: object) -> int:
    """A count. Not left to pydantic, which takes `true` for 1; digits in a string come from `${ENV_VAR}`."""
    if isinstance(value, str) and re.fullmatch(r"\d{1,9}", value.strip()):
        return int(value)
    if isinstance(value, int) and not isinstance(value, bool):
        return _int32(value)
    raise expected("a whole number")


def _patience_ms(value: object) -> int:
    """A duration, or -1 for ever."""
    if value in (-1, "-1"):
        return -1
    try:
        return _positive(duration_ms(value))
    except PydanticCustomError:
        raise expected("a duration such as 500ms, 3s or 5m, or -1 for ever") from None


def host_port(value: str) -> str:
    """`host:port`, IPv6 hosts in brackets."""
    match = _HOST_PORT.fullmatch(value)
    if match is None or not 0 < int(match["port"]) <= _PORT_MAX:
        raise expected("host:port")
    return value


def _endpoint(value: str) -> str:
    """A user and password in it would show wherever it is named."""
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
    """`a:9092,b:9092` is what an environment variable can hold of a list."""
    parts = [value] if isinstance(value, str) else value
    if not isinstance(parts, list) or not all(isinstance(part, str) for part in parts):
        return parts
    return [server.strip() for part in parts for server in part.split(",")]


def _pattern(value: str) -> str:
    try:
        re.compile(value)
    except re.error as error:
        why = str(error)
    else:
        return value
    raise expected("a regular expression", why)


def in_config_folder(value: str, info: ValidationInfo) -> Path:
    """The path, a relative one taken from the folder of relay.yaml (and not from wherever the process was started)."""
    folder: Path = info.context["folder"] if info.context else Path()
    return (folder / value).absolute()


def _existing_file(value: str, info: ValidationInfo) -> str:
    path = in_config_folder(value, info)
    if not path.is_file():
        raise expected(
            "a file that exists", "relative paths start at the folder of the configuration file"
        )
    return str(path)


def _in_existing_folder(value: str, info: ValidationInfo) -> str:
    path = in_config_folder(value, info)
    if not path.parent.is_dir():
        raise expected(
            "a file in a folder that exists",
            "relative paths start at the folder of the configuration file",
        )
    return str(path)


def _name(value: str) -> str:
    if not re.fullmatch(r"[A-Za-z0-9._-]+", value):
        raise expected("a name of letters, digits, '.', '_' and '-'")
    return value


def _mirror_name(value: str) -> str:
    """Mirror names end up in checkpoint keys (parted by '/'), transactional ids and asset keys."""
    if not re.fullmatch(r"[a-z0-9_-]+", value):
        raise expected("a mirror name of a-z, 0-9, '_' and '-'")
    return value


def _lane_name(value: str) -> str:
    """Lane names end up in asset keys; `main` is the lane of all other topics."""
    if not re.fullmatch(r"[a-z0-9_]+", value) or value == "main":
        raise expected("a lane name of a-z, 0-9 and '_', and not main")
    return value


def _owner(value: str) -> str:
    """As Dagster would take it."""
    if not re.fullmatch(
        r"team:[A-Za-z0-9_-]+|\w[A-Za-z0-9._%+-]*@[A-Za-z0-9.-]+\.[A-Za-z]{2,7}", value, re.ASCII
    ):
        raise expected("an e-mail address or team:name")
    return value


def _spark_value(value: object) -> str:
    """Spark's configuration is text; YAML's true and 4 are written as Spark spells them."""
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, str | int | float):
        return str(value)
    raise expected("a string, a number, true or false")


def _not_negative(value: int) -> int:
    if value < 0:
        raise expected("a whole number, not negative")
    return value


Size = Annotated[int, BeforeValidator(size_bytes)]
PositiveSize = Annotated[int, BeforeValidator(size_bytes), AfterValidator(_positive)]
RequestSize = Annotated[
    int, BeforeValidator(size_bytes), AfterValidator(_positive), AfterValidator(_int32)
]
Duration = Annotated[int, BeforeValidator(duration_ms), AfterValidator(_positive)]
Text = Annotated[str, AfterValidator(_not_empty)]
Secret = Annotated[SecretStr, AfterValidator(_not_empty_secret)]
Threshold = Annotated[int, BeforeValidator(_whole_number), AfterValidator(_not_negative)]
Patience = Annotated[int, BeforeValidator(_patience_ms)]
Count = Annotated[int, BeforeValidator(_whole_number), AfterValidator(_positive)]
HostPort = Annotated[str, AfterValidator(host_port)]
Endpoint = Annotated[str, AfterValidator(_endpoint)]
Servers = Annotated[tuple[HostPort, ...], BeforeValidator(_split_servers)]
Pattern = Annotated[str, AfterValidator(_pattern)]
ExistingFile = Annotated[str, AfterValidator(_existing_file)]
FileInExistingFolder = Annotated[str, AfterValidator(_in_existing_folder)]
Name = Annotated[str, AfterValidator(_name)]
MirrorName = Annotated[str, AfterValidator(_mirror_name)]
Owner = Annotated[str, AfterValidator(_owner)]
LaneName = Annotated[str, AfterValidator(_lane_name)]
SparkValue = Annotated[str, BeforeValidator(_spark_value)]
