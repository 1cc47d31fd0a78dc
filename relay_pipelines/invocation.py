"""What every command needs: the global options, relay.yaml, and the mirrors that were named."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from relay_pipelines.errors import INTERRUPTED, ConfigError, RelayError
from relay_pipelines.finding import Finding, Severity
from relay_pipelines.output import messages
from relay_pipelines.protocol.clock import SystemClock

if TYPE_CHECKING:
    from relay_pipelines.metrics import Publication
    from relay_pipelines.run.session import Session
    from relay_pipelines.settings import Metrics, Mirror, Settings
    from relay_pipelines.settings.followed import Followed
    from relay_pipelines.sides import Sides

_LEAST_MS = 1_000
_CONFIG = Path("relay.yaml")


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

    @property
    def relay(self) -> str:
        """How the reader calls a command with the same relay.yaml."""
        return "relay" if self.config == _CONFIG else f"relay -c {self.config}"

    def settings(self) -> Settings:
        """Read relay.yaml."""
        from relay_pipelines.settings import load  # pydantic is slow, and `relay --help` is not

        return load(self.config)

    @contextmanager
    def session(
        self, settings: Settings, when_interrupted: str, purpose: str = ""
    ) -> Iterator[Session]:
        """Yield a Spark session for as long as a command lasts, which signals stop.

        Args:
            when_interrupted: what to do then, in words.
            purpose: as of `Session`.
        """
        from relay_pipelines.run.session import Session, StopSignal  # settings are slow to import

        stop = StopSignal()
        session = Session(settings.spark, stop, purpose=purpose, verbose=self.debug)
        with stop.heard():
            try:
                yield session
            except KeyboardInterrupt:
                self.raise_exit_code(INTERRUPTED)
                messages.error(f"interrupted; {when_interrupted}")
            finally:
                session.stop()

    def raise_exit_code(self, exit_code: int) -> None:
        """Raise the exit code to this one, if it is higher."""
        self.exit_code = max(self.exit_code, exit_code)

    def fail(self, error: RelayError, mirror: str = "") -> None:
        """Print the error in one line, with its traceback if `debug`, and raise the exit code."""
        self.note(error)
        messages.error(f"{mirror}: {error}" if mirror else str(error))

    def note(self, error: RelayError) -> None:
        """Print the traceback if `debug`, and raise the exit code; the caller shows the error."""
        if self.debug:
            messages.trace(error)
        self.raise_exit_code(error.exit_code)

    def report(self, findings: Iterable[Finding], mirror: str) -> None:
        """Print a line for each finding of a mirror, and raise the exit code to the highest."""
        for finding in findings:
            say = messages.error if finding.severity is Severity.ERROR else messages.warning
            say(f"{mirror}: {finding}")
            self.raise_exit_code(finding.exit_code)

    @contextmanager
    def reporting_errors(self, mirror: str = "") -> Iterator[None]:
        """Report an error, such as that of a mirror, and continue, such as with the next one."""
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


def followed_mirrors(
    invocation: Invocation, names: Sequence[str], in_use: str = "its last version"
) -> Followed[dict[str, Mirror]]:
    """Follow the mirrors of these names, as in `selected_mirrors`."""
    from relay_pipelines.settings.followed import Followed

    part = partial(selected_mirrors, names=names)
    return Followed(invocation.settings(), invocation.settings, part, messages.note, in_use)


def the_mirror(
    settings: Settings, named: str | Iterable[str] | None, what: str = "a statement is about"
) -> Sides:
    """Return the one mirror that a command is about.

    Args:
        named: None if the command names none.
        what: begins the error if there are several.

    Raises:
        ConfigError: there are several, or none of that name.
    """
    from relay_pipelines.sides import Sides  # its settings are slow to import

    names = ([named] if isinstance(named, str) else named) if named else ()
    (only, *more) = selected_mirrors(settings, names).items()
    if more:
        raise ConfigError(
            f"{what} one mirror",
            remedy=f"name it with --mirror: {', '.join(settings.mirrors)}",
        )
    return Sides(*only)


def every_seconds(text: str) -> float:
    """Return the seconds of the option `--every`.

    Raises:
        ConfigError: it is not a duration of a second or more.
    """
    from pydantic import TypeAdapter, ValidationError

    from relay_pipelines.settings.config_types import Duration

    try:
        every_ms = TypeAdapter(Duration).validate_python(text)
    except ValidationError:
        every_ms = 0
    if every_ms < _LEAST_MS:
        raise ConfigError(
            f"--every {text!r} is not a duration of 1s or more", remedy="write it as 1s, 10s or 5m"
        )
    return every_ms / 1000


@contextmanager
def observed(settings: Metrics) -> Iterator[Publication | None]:
    """Yield where metrics are published in this context, if the settings say so."""
    if settings.address is None and settings.textfile is None:
        yield None
        return
    from relay_pipelines.metrics import MetricsObserver, published

    with published(MetricsObserver(SystemClock()), settings) as publication:
        yield publication


def require_writable(option: str, file: Path) -> None:
    """Refuse a file that cannot be written, before the work of which it gets the result.

    Raises:
        ConfigError: it cannot; a full disk shows when it is written.
    """
    _require_folder(option, file)
    exists = file.exists()
    needed = os.W_OK if exists else os.W_OK | os.X_OK
    if file.is_dir() or not os.access(file if exists else file.parent, needed):
        raise ConfigError(f"{option}: {file} cannot be written", remedy="name another file")


def require_replaceable(option: str, file: Path) -> None:
    """Refuse a file that cannot be replaced by another one, which is written beside it first.

    Raises:
        ConfigError: it cannot; a full disk shows when it is written.
    """
    _require_folder(option, file)
    if not os.access(file.parent, os.R_OK | os.W_OK | os.X_OK):
        raise ConfigError(
            f"{option}: the folder {file.parent} cannot be written",
            remedy="name a file in another folder",
        )
    if file.exists() and not file.is_file():  # a device would be replaced, too
        raise ConfigError(f"{option}: {file} cannot be written", remedy="name another file")


def _require_folder(option: str, file: Path) -> None:
    if not file.parent.is_dir():
        raise ConfigError(f"{option}: there is no folder {file.parent}", remedy="create it first")
