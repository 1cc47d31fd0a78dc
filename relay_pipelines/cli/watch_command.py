"""`relay status --watch`: the status of the mirrors again and again, until Ctrl-C."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from relay_pipelines.cli.context import Invocation, every_seconds, selected_mirrors
from relay_pipelines.console import json_output, messages, watching
from relay_pipelines.console.formatting import stdout
from relay_pipelines.errors import RelayError
from relay_pipelines.protocol.clock import Clock, SystemClock
from relay_pipelines.run.signals import StopSignal
from relay_pipelines.settings import Mirror
from relay_pipelines.snapshot import cluster_snapshot, hidden_copies, lag
from relay_pipelines.snapshot.rates import PERIOD_SECONDS, Rates
from relay_pipelines.state.checkpoint import CheckpointCache


def run(invocation: Invocation, names: Sequence[str], every: str, *, as_json: bool) -> int:
    """Show the status of the mirrors until a signal, which is how it ends: the exit code is 0.

    Raises:
        ConfigError: `every` is not a duration of a second or more, or relay.yaml is not valid.
    """
    pause = every_seconds(every)
    mirrors = selected_mirrors(invocation.settings(), names)
    clock, stop = SystemClock(), StopSignal()
    looks = {name: _Look(name, mirror, clock) for name, mirror in mirrors.items()}
    with stop.heard(), watching.view(stdout(), as_json=as_json) as show:
        try:
            while True:
                began = clock.monotonic()
                show([look.take() for look in looks.values()], clock.now_ms())
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
    _cache: CheckpointCache = field(default_factory=CheckpointCache, init=False)
    _rates: Rates = field(default_factory=lambda: Rates(PERIOD_SECONDS), init=False)
    _status: Mapping[str, Any] = field(default_factory=dict, init=False)
    _last_error: Mapping[str, str] | None = field(default=None, init=False)
    _away_since_ms: int | None = field(default=None, init=False)

    def take(self) -> dict[str, Any]:
        """Ask the clusters, and return the document of the mirror."""
        answers = True
        try:
            snapshot = cluster_snapshot.take_snapshot(
                self.name, self.mirror, self.clock, configs=False, patient=False, cache=self._cache
            )
            lags = lag.measure(snapshot, self.mirror.copy_options, self.clock)
            rates = self._rates.learn(snapshot, self.clock.now_ms())
            options, now_ms = self.mirror.copy_options, self.clock.now_ms()
            hidden = hidden_copies.find(snapshot, options, self.clock)
            self._status = json_output.watched(snapshot, lags, rates, now_ms, hidden)
            problems = json_output.problems(self._status)
            held_up = hidden_copies.hanging(hidden, snapshot.destination, options, now_ms)
            problems += map(str, held_up)
        except RelayError as error:
            answers, problems = False, [str(error)]
        now_ms = self.clock.now_ms()
        self._away_since_ms = None if answers else self._away_since_ms or now_ms
        if problems:
            self._last_error = json_output.last_error(problems[0], self._away_since_ms or now_ms)
        return {
            "mirror": self.name,
            **self._status,
            "answers": answers,
            "last_error": self._last_error,
        }
