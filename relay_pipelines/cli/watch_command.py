"""`relay status --watch`: the status of the mirrors again and again, until Ctrl-C."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from relay_pipelines.errors import RelayError
from relay_pipelines.invocation import Invocation, every_seconds, followed_mirrors
from relay_pipelines.output import json_output, messages, watching
from relay_pipelines.output.formatting import stdout
from relay_pipelines.output.watching import Watched
from relay_pipelines.page.look import Looker
from relay_pipelines.page.page import page_of, page_unreachable
from relay_pipelines.protocol.clock import Clock, SystemClock
from relay_pipelines.run.session import StopSignal
from relay_pipelines.settings import Mirror
from relay_pipelines.sides import Sides
from relay_pipelines.snapshot.lag import PERIOD_SECONDS, Rates


def run(invocation: Invocation, names: Sequence[str], every: str, *, as_json: bool) -> int:
    """Show the status of the mirrors until a signal, which is how it ends: the exit code is 0.

    Raises:
        ConfigError: `every` is not a duration of a second or more, or relay.yaml is not valid.
    """
    pause = every_seconds(every)
    followed = followed_mirrors(invocation, names)
    clock, stop = SystemClock(), StopSignal()
    looks: list[_Look] = []
    with stop.heard(), watching.view(stdout(), invocation.relay, as_json=as_json) as show:
        try:
            while True:
                began = clock.monotonic()
                if followed.changed() or not looks:
                    looks = [_Look(*named, clock) for named in followed.part.items()]
                show([look.take() for look in looks], clock.now_ms())
                clock.sleep(max(0.0, began + pause - clock.monotonic()))
        except KeyboardInterrupt:
            pass
    messages.note("stopped")
    return invocation.exit_code


@dataclass(slots=True)
class _Look:
    """What is known of a mirror from look to look: a failed look leaves the last status."""

    name: str
    mirror: Mirror
    clock: Clock
    _looker: Looker = field(init=False)
    _rates: Rates = field(default_factory=lambda: Rates(PERIOD_SECONDS), init=False)
    _status: Mapping[str, Any] = field(default_factory=dict, init=False)
    _last_error: Mapping[str, str] | None = field(default=None, init=False)
    _away_since_ms: int | None = field(default=None, init=False)

    def __post_init__(self) -> None:
        self._looker = Looker(Sides(self.name, self.mirror, self.clock))

    def take(self) -> Watched:
        """Ask the clusters, and return the page of the mirror with its document."""
        try:
            look = self._looker.look()
            shown, self._away_since_ms = page_of(look), None
            rates = self._rates.learn(look.snapshot, look.taken_ms)
            self._status = json_output.watched(look, shown, rates)
        except RelayError as error:
            now_ms = self.clock.now_ms()
            self._away_since_ms = self._away_since_ms or now_ms
            shown = page_unreachable(self.name, error, now_ms, self._away_since_ms)
            self._status = {**self._status, **json_output.outage(shown)}
            self._last_error = {"error": str(error), "at": self._status["since"]}
        return Watched(shown, {**self._status, "last_error": self._last_error})
