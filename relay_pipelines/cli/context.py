"""What every command starts from: the global options, relay.yaml, and the mirrors asked for."""

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
    """The global options, and the gravest exit code so far.

    Args:
        config: where relay.yaml is.
        debug: whether errors show their traces.
    """

    config: Path
    debug: bool = False
    exit_code: int = field(default=0, init=False)

    def settings(self) -> Settings:
        """Read relay.yaml."""
        from relay_pipelines.settings import (
            load,
        )  # pydantic: nothing that `relay --help` should wait for

        return load(self.config)

    def raise_exit_code(self, exit_code: int) -> None:
        """Take the exit code if it is graver than what went wrong before."""
        self.exit_code = max(self.exit_code, exit_code)

    def fail(self, error: RelayError, mirror: str = "") -> None:
        """Say the error in one line, with its trace if asked for, and remember its exit code."""
        if self.debug:
            traceback.print_exception(error)
        messages.error(f"{mirror}: {error}" if mirror else str(error))
        self.raise_exit_code(error.exit_code)

    @contextmanager
    def tolerating(self, mirror: str) -> Iterator[None]:
        """Let a mirror fail without stopping the next."""
        try:
            yield
        except RelayError as error:
            self.fail(error, mirror)


def chosen(settings: Settings, names: Iterable[str]) -> dict[str, Mirror]:
    """Return the mirrors of these names, in this order, each once; all of them if there are no names.

    Raises:
        ConfigError: there is no mirror of that name.
    """
    return {name: settings.mirror(name) for name in names} or dict(settings.mirrors)
