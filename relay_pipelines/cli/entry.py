"""The entry point: every error becomes one line on stderr and an exit code."""

from __future__ import annotations

import errno
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TextIO

import typer

from relay_pipelines.cli.app import app
from relay_pipelines.errors import INTERRUPTED, ConfigError, RelayError
from relay_pipelines.output import messages

_FAILED = 1
_DEVICE_FAILS = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO}
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
        _open_streams()
        result = app(given, prog_name="relay", standalone_mode=False)
        sys.stdout.flush()
    except (KeyboardInterrupt, typer.Abort):  # before or during the command
        _say("interrupted")
        return INTERRUPTED
    except BrokenPipeError:  # such as `relay ledger | head`
        _discard(sys.stdout)
        return _FAILED
    except Exception as error:  # noqa: BLE001 - also of a bug, users get one line
        return _failed(_expected(error) or error, debug=debug)
    return int(result or 0)


def _open_streams() -> None:
    """Open /dev/null where a stream is closed: a connection must not get its number.

    Raises:
        ConfigError: it is stdout, and nobody would see what the command says.
    """
    is_closed = sys.stdout is None
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
        if getattr(sys, name) is None:
            stream = Path(os.devnull).open(mode, encoding="utf-8")  # noqa: SIM115 - stays open
            setattr(sys, name, stream)
    if is_closed:
        raise ConfigError("stdout is closed", remedy="write to a file, or to /dev/null")


def _expected(error: Exception) -> Exception | None:
    """Return what a user can do something about as such an error; None if it is none."""
    if isinstance(error, UnicodeEncodeError):
        what = f"{error.object[error.start]!a} cannot be written as {error.encoding}"
        return ConfigError(what, remedy="set LC_ALL=C.UTF-8")
    if not isinstance(error, OSError):
        return None
    if error.filename is not None:
        what = f"{error.filename} cannot be opened: {error.strerror}"
        return ConfigError(what, remedy="name another one")
    if error.errno in _DEVICE_FAILS:
        _discard(sys.stdout)
        what = f"the output cannot be written: {error.strerror}"
        return RelayError(what, remedy="write to another file")
    return None


def _discard(stream: TextIO) -> None:
    """Send what a stream has left to /dev/null, because Python writes it when it ends."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())


def _failed(error: Exception, *, debug: bool) -> int:
    """Say in one line what has failed, and return its exit code."""
    code = _FAILED
    if isinstance(error, RelayError):
        code, line = error.exit_code, str(error)
    elif isinstance(error, typer.TyperException):
        context = getattr(error, "ctx", None)
        command = context.command_path if context else "relay"
        message = " ".join(error.format_message().split()).rstrip(".")
        code, line = error.exit_code, f"{message}; see `{command} --help`"
    else:
        line = f"unexpected {type(error).__name__}: {_first_line(error)}"
        line += "" if debug else "; run with --debug to see where"
    _say(line, error if debug else None)
    return code


def _say(line: str, traced: Exception | None = None) -> None:
    try:
        if traced is not None:
            messages.trace(traced)
        messages.error(line)
    except OSError:  # nobody can be told, and the exit code still says it
        _discard(sys.stderr)


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
