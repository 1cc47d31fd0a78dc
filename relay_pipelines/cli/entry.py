"""The entry point: every error becomes one line on stderr and an exit code."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence

import typer

from relay_pipelines.cli.app import app
from relay_pipelines.errors import INTERRUPTED, RelayError
from relay_pipelines.output import messages

_FAILED = 1
_GLOBAL_FLAGS = ("--debug",)
_GLOBAL_OPTIONS = ("--config", "-c")


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line and return the exit code.

    Args:
        arguments: without the program's name; the process's own when None.
    """
    given = _globals_first(sys.argv[1:] if arguments is None else arguments)
    debug = "--debug" in given
    try:
        result = app(given, prog_name="relay", standalone_mode=False)
        sys.stdout.flush()
    except (RelayError, typer.TyperException) as error:
        return _failed(error, debug=debug)
    except (KeyboardInterrupt, typer.Abort):  # before or during the command
        messages.error("interrupted")
        return INTERRUPTED
    except BrokenPipeError:  # such as `relay ledger | head`
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return _FAILED
    except Exception as error:  # noqa: BLE001 - a bug; users still get one line
        if debug:
            messages.trace(error)
        messages.error(
            f"unexpected {type(error).__name__}: {_first_line(error)}"
            + ("" if debug else "; run with --debug to see where")
        )
        return _FAILED
    return int(result or 0)


def _failed(error: RelayError | typer.TyperException, *, debug: bool) -> int:
    if debug:
        messages.trace(error)
    if isinstance(error, RelayError):
        messages.error(str(error))
    else:
        context = getattr(error, "ctx", None)
        command = context.command_path if context else "relay"
        messages.error(f"{error.format_message().rstrip('.')}; see `{command} --help`")
    return error.exit_code


def _first_line(error: Exception) -> str:
    return next(iter(str(error).splitlines()), "")


def _globals_first(arguments: Sequence[str]) -> list[str]:
    """Allow the global options anywhere: people type `relay run -c other.yaml`."""
    first: list[str] = []
    others: list[str] = []
    remaining = iter(arguments)
    for argument in remaining:
        if argument in _GLOBAL_OPTIONS:
            first += [argument, *[value for value in [next(remaining, None)] if value is not None]]
        elif argument in _GLOBAL_FLAGS or argument.startswith(
            tuple(f"{option}=" for option in _GLOBAL_OPTIONS)
        ):
            first.append(argument)
        else:
            others.append(argument)
    return first + others
