"""What every command needs: the global options, relay.yaml, and the mirrors that were named."""

from __future__ import annotations

import traceback
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from relay_pipelines.console import messages
from relay_pipelines.errors import RelayError

if TYPE_CHECKING:
    from relay_pipelines.settings import Mirror, Settings


@dataclass(slots=True)
class Invocation:
    """The global options, and the highest exit code so far.

    Args:
        config: where relay.yaml is.
        debug: whether errors show their tracebacks.
    """

    config: Path
    debug: bool = False
    exit_code: int = field(default=0, init=False)
    _printed: set[str] = field(default_factory=set, init=False)
    _printed_before: set[str] = field(default_factory=set, init=False)

    def settings(self) -> Settings:
        """Read relay.yaml."""
        from relay_pipelines.settings import load  # pydantic is slow, and `relay --help` is not

        return load(self.config)

    def raise_exit_code(self, exit_code: int) -> None:
        """Raise the exit code to this one, if it is higher."""
        self.exit_code = max(self.exit_code, exit_code)

    def begin_round(self) -> None:
        """Begin another round of a command that repeats, with an exit code of its own.

        Errors and warnings that the last round has printed are not printed again.
        """
        self.exit_code = 0
        self._printed_before, self._printed = self._printed, set()

    def error(self, line: str) -> None:
        """Print `error: what; remedy`, unless the last round did."""
        if self._is_new(line):
            messages.error(line)

    def warning(self, line: str) -> None:
        """Print `warning: what; remedy`, unless the last round did."""
        if self._is_new(line):
            messages.warning(line)

    def fail(self, error: RelayError, mirror: str = "") -> None:
        """Print the error in one line, with its traceback if `debug`, and raise the exit code."""
        if self.debug:
            traceback.print_exception(error)
        self.error(f"{mirror}: {error}" if mirror else str(error))
        self.raise_exit_code(error.exit_code)

    def _is_new(self, line: str) -> bool:
        self._printed.add(line)
        return line not in self._printed_before

    @contextmanager
    def reporting_errors(self, mirror: str) -> Iterator[None]:
        """Report an error of a mirror, and continue with the next mirror."""
        try:
            yield
        except RelayError as error:
            self.fail(error, mirror)


def selected_mirrors(settings: Settings, names: Iterable[str]) -> dict[str, Mirror]:
    """Return the mirrors of these names, each once and in this order; without names, all mirrors.

    Raises:
        ConfigError: there is no mirror of that name.
    """
    return {name: settings.mirror(name) for name in names} or dict(settings.mirrors)
