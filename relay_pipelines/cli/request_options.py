"""Gives a command the options of a request."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Collection, Mapping
from dataclasses import MISSING
from functools import wraps
from typing import Annotated, Any

import typer
from typer.core import TyperCommand

from relay_pipelines.request import AskedField, asked_fields, filled

Command = Callable[..., int]
_REQUEST = "request"
_STEP = "relay.step"


def asks_for(
    request: type, more: Callable[[typer.Context], Mapping[str, Any]] = lambda _: {}
) -> Callable[[Command], Command]:
    """Replace the parameter `request` of a command by an option for each of its fields.

    Args:
        more: returns fields that nobody is asked for.
    """
    asking = list(asked_fields(request))

    def decorate(command: Command) -> Command:
        @wraps(command)
        def run(**given: Any) -> int:
            answers = {each.name: given.pop(each.field) for each in asking}
            made: Any = filled(request, answers, options=True, **more(given["context"]))
            return command(**given, request=made)

        own = inspect.signature(command, eval_str=True).parameters.values()
        kept = [each.replace(kind=each.KEYWORD_ONLY) for each in own if each.name != _REQUEST]
        at = next(index for index, each in enumerate(own) if each.name == _REQUEST)
        signature = inspect.Signature([*kept[:at], *map(_parameter, asking), *kept[at:]])
        run.__signature__ = signature  # type: ignore[attr-defined]  # what typer reads
        run.__annotations__ = {name: each.annotation for name, each in signature.parameters.items()}
        return run

    return decorate


def steps_of(request: type, steps: Collection[str]) -> type[TyperCommand]:
    """Return the class of a command whose first argument is a step: `--help` after it is of it."""
    of = {asked_field.field: asked_field.asked.of for asked_field in asked_fields(request)}

    class OfSteps(TyperCommand):
        def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
            if not {"--help", "-h"}.isdisjoint(args):
                ctx.meta[_STEP] = next((word for word in args if word in steps), "")
            return super().parse_args(ctx, args)

        def get_params(self, ctx: Any) -> list[Any]:
            step, params = ctx.meta.get(_STEP), super().get_params(ctx)
            if not step:
                return params
            return [param for param in params if step in (of.get(param.name) or (step,))]

    return OfSteps


def _parameter(asked_field: AskedField) -> inspect.Parameter:
    how = asked_field.asked
    kind: Any = str if how.parse is not None else asked_field.kind
    default: Any
    is_given = asked_field.default is not MISSING
    if asked_field.is_repeated:
        kind, default = list[kind] | None, None
    elif how.parse is not None or not is_given:
        default = None
        kind = kind | None if is_given else kind
    else:
        default = asked_field.default
        kind = kind | None if default is None else kind
    names = [] if how.positional else [f"--{asked_field.name.replace('_', '-')}"]
    names += [f"-{how.short}"] if how.short else []
    declare: Callable[..., Any] = typer.Argument if how.positional else typer.Option
    limits = {"min": how.least, "max": how.most}
    info = declare(
        *names,
        metavar=how.metavar,
        help=how.help,
        **{name: limit for name, limit in limits.items() if limit is not None},
    )
    return inspect.Parameter(
        asked_field.field,
        inspect.Parameter.KEYWORD_ONLY,
        default=default if is_given else inspect.Parameter.empty,
        annotation=Annotated[kind, info],
    )
