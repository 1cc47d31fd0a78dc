"""Problems of relay.yaml as lines: dotted path, what was expected, what was found.

What was found is shown as in the file, before `${...}` is filled in, and never for keys that may
hold secrets.
"""

from __future__ import annotations

import datetime as dt
import difflib
import re
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from types import UnionType
from typing import Any, TypeVar, get_args

from pydantic import BaseModel, ValidationError
from pydantic_core import ErrorDetails

from relay_pipelines.errors import ConfigError
from relay_pipelines.settings.config_types import Location, Problem

Model = TypeVar("Model", bound=BaseModel)

# a refused address may contain a password
_SECRET_KEYS = frozenset(
    {"password", "key_password", "client_secret", "token_endpoint", "token_provider_config"}
)
_SHOWN_CHARACTERS = 80
_NAME_ALONE = re.compile(r"\$\{\w+\}")  # a default may be a secret
# such as `name: a password:b`, which YAML makes of two lines
_ASSIGNMENT = re.compile(r"(password|secret)\s*[:=]|token\s*=", re.IGNORECASE)
_KEY = "[key]"  # pydantic's mark for a problem with a mapping's key rather than its value
_WANTED = {
    "string_type": "a string",
    "dict_type": "a mapping",
    "model_type": "a mapping",
    "tuple_type": "a list",
    "bool_type": "true or false",
    "bool_parsing": "true or false",
    "string_too_short": "a string that is not empty",
    "too_short": "at least one entry",
    "greater_than": "more than {gt}",
    "greater_than_equal": "at least {ge}",
    "less_than_equal": "at most {le}",
    "literal_error": "{expected}",
    "enum": "{expected}",
    "expected": "{what}",
}
_KINDS = {
    dict: "a mapping",
    list: "a list",
    str: "a string",
    bool: "true or false",
    int: "a whole number",
    float: "a number",
    type(None): "nothing",
    dt.date: "a date",
    dt.datetime: "a date",
}


def nearest(name: str, valid: Iterable[str], kind: str, otherwise: str = "") -> str:
    """Return the remedy for a wrong name: the most similar valid name, or all of them.

    Args:
        otherwise: what to say instead of all of them, which may be thousands.
    """
    names = sorted(valid)
    close = difflib.get_close_matches(name, names, n=1)
    if close:
        return f"did you mean {close[0]!r}?"
    return otherwise or f"valid {kind}: {', '.join(names)}"


def dotted(location: Location) -> str:
    """Return a location as `mirrors.orders.source.upstreams[0].name`."""
    path = "".join(f"[{step}]" if isinstance(step, int) else f".{step}" for step in location)
    return path.removeprefix(".")


def describe(error: ValidationError, root: type[BaseModel], written: Any) -> list[Problem]:
    """Return location and text of every problem that pydantic found.

    Args:
        error: the error of pydantic.
        root: the model of the whole file.
        written: the file's content before interpolation.
    """
    details = error.errors(include_url=False, include_input=False)
    return [
        problem
        for detail in details
        if not _follows_from_entries(detail, details)
        for problem in _problems(detail, root, written)
    ]


def _follows_from_entries(detail: ErrorDetails, details: Iterable[ErrorDetails]) -> bool:
    """Whether a list is only too short because some of its entries were refused."""
    location = detail["loc"]
    return detail["type"] == "too_short" and any(
        len(other["loc"]) > len(location) and other["loc"][: len(location)] == location
        for other in details
    )


def _problems(detail: ErrorDetails, root: type[BaseModel], written: Any) -> Iterator[Problem]:
    kind, location = detail["type"], tuple(step for step in detail["loc"] if step != _KEY)
    if kind == "problems":
        yield from ((location + below, text) for below, text in detail["ctx"]["found"])
    elif kind == "extra_forbidden":
        remedy = _right_key(str(location[-1]), root, location[:-1])
        if "security" in location and _value_at(location, written) is None:
            # it may be a password without its key
            yield location[:-1], f"an unknown key without a value; {remedy}"
        else:
            yield location, f"unknown key; {remedy}"
    elif kind == "missing":
        yield location, "is missing"
    else:
        yield location, _mismatch(detail, location, written)


def _mismatch(detail: ErrorDetails, location: Location, written: Any) -> str:
    kind, context = detail["type"], detail.get("ctx", {})
    # an unknown kind is shown as such: pydantic's own message may quote the value
    form = _WANTED.get(kind, kind.replace("_", " ")).format_map(context)
    text = f"expected {form}"
    if _KEY not in detail["loc"]:
        text += f", got {_found(location, written, kind_only=kind.endswith('_type'))}"
    if kind == "string_type" and isinstance(
        _value_at(location, written), bool | int | float | dt.date
    ):
        return f"{text}; put it in quotes"
    return f"{text}: {context['why']}" if context.get("why") else text


def _found(location: Location, written: Any, *, kind_only: bool) -> str:
    value = _value_at(location, written)
    # a user and a password may stand before the host, and a token after the port
    is_secret = (
        _is_secret(location)
        or _ASSIGNMENT.search(str(value))
        or (_is_address(location) and re.search("[@;]", str(value)))
    )
    is_filled = isinstance(value, str) and "${" in value
    if is_secret and is_filled and _NAME_ALONE.fullmatch(value):
        return f"the value of {value!r}"
    if is_secret or isinstance(value, dict | list) or (kind_only and not is_filled):
        return _KINDS.get(type(value), type(value).__name__)
    if value is None or isinstance(value, bool):
        return {None: "nothing", True: "true", False: "false"}[value]
    shown = repr(value)
    if len(shown) > _SHOWN_CHARACTERS:
        shown = shown[:_SHOWN_CHARACTERS] + "..."
    return f"the value of {shown}" if is_filled else shown


def _is_address(location: Location) -> bool:
    return "bootstrap_servers" in location or location in {("spark", "remote"), ("spark", "master")}


def _is_secret(location: Location) -> bool:
    return location[:2] == ("spark", "conf") or not _SECRET_KEYS.isdisjoint(location)


def _value_at(location: Location, written: Any) -> Any:
    """Return the written value; for an entry of a string that was split, the whole string."""
    for step in location:
        if not isinstance(written, dict | list):
            break
        try:
            written = written[step]  # type: ignore[index]
        except (KeyError, IndexError):
            break
    return written


def _right_key(key: str, root: type[BaseModel], location: Location) -> str:
    """Return the remedy for a wrong key: its own section around this one or in it, or its name."""
    here = _valid_keys(root, location)
    around = [location[:steps] for steps in reversed(range(len(location)))]
    for section in (*around, *((*location, name) for name in here)):
        if key in _valid_keys(root, section):
            return f"it belongs to {dotted(section) or 'the top level'}"
    return nearest(key, here, "keys")


def _valid_keys(root: type[BaseModel], location: Location) -> list[str]:
    """Return the keys of the section at the location; none if it is no section with fixed keys."""
    annotation: Any = root
    for step in location:
        if isinstance(annotation, type) and issubclass(annotation, BaseModel):
            annotation = {
                field.alias or name: field.annotation
                for name, field in annotation.model_fields.items()
            }[str(step)]
        else:
            arguments = get_args(annotation)  # tuple[Upstream, ...] or dict[str, Mirror]
            annotation = arguments[0] if arguments[-1] is Ellipsis else arguments[1]
        if isinstance(annotation, UnionType):  # Window | None
            annotation = get_args(annotation)[0]
    fields: Mapping[str, Any] = getattr(annotation, "model_fields", {})
    return [field.alias or name for name, field in fields.items()]


def in_section(section: type[Model], given: Mapping[str, Any], folder: Path, remedy: str) -> Model:
    """Check what is given beside relay.yaml, with the keys that it has.

    Args:
        folder: of relay.yaml, which is searched for classes.

    Raises:
        ConfigError: something is wrong.
    """
    try:
        return section.model_validate(given, context={"folder": folder})
    except ValidationError as error:
        location, what = describe(error, section, given)[0]
    raise ConfigError(f"{dotted(location)}: {what}", remedy=remedy)
