"""The configuration of a job that is asked for something."""

from collections.abc import Mapping
from dataclasses import MISSING
from enum import Enum
from typing import Any

import dagster as dg
from pydantic import Field, create_model

from relay_pipelines.request import AskedField, asked_fields


def config_schema(
    request: type, defaults: Mapping[str, Any] | None = None, **more: tuple[Any, Any]
) -> Any:
    """Return the schema of a request's configuration, which the launchpad shows with its defaults.

    Args:
        defaults: by key, instead of those of the request.
        more: name -> type and `pydantic.Field` of what the job asks for besides.
    """
    name = request.__name__.removesuffix("Request")
    asked = {
        each.key: _field(name, each, (defaults or {}).get(each.key, each.default))
        for each in asked_fields(request)
    }
    fields: dict[str, Any] = {**more, **asked}
    return create_model(f"{name}Config", __base__=dg.Config, **fields).to_config_schema()


def _field(request: str, each: AskedField, default: Any) -> tuple[Any, Any]:
    kind: Any = each.asked.plain or (str if each.asked.parse is not None else each.kind)
    if each.is_choice:
        # people write its values, and Dagster takes the names of an enumeration
        choices = {str(one): str(one) for one in each.kind}
        kind = Enum(f"{request}{each.kind.__name__}", choices)  # type: ignore[misc,no-redef]
        default = kind[str(default)]
    if each.is_repeated and each.asked.collect is None:
        kind, default = list[kind], list(default)
    elif default is None:
        kind = kind | None
    if default is MISSING:
        return kind, Field(description=each.asked.help)
    return kind, Field(default, description=each.asked.help)
