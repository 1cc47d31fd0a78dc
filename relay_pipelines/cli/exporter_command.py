"""The command `exporter`: metrics of mirrors that run elsewhere, until Ctrl-C."""

from __future__ import annotations

import threading
from collections.abc import Sequence

import prometheus_client

from relay_pipelines.cli.rounds_command import LastingProblems, problem
from relay_pipelines.errors import RelayError
from relay_pipelines.invocation import Invocation, every_seconds, followed_mirrors
from relay_pipelines.metrics.exporter import Exporter
from relay_pipelines.metrics.run_metrics import HEALTH, Endpoint
from relay_pipelines.offsets.metrics import group_samples
from relay_pipelines.output import messages
from relay_pipelines.output.formatting import plural
from relay_pipelines.protocol.clock import SystemClock
from relay_pipelines.run.session import StopSignal


def run(
    invocation: Invocation,
    names: Sequence[str],
    address: tuple[str, int],
    every: str,
    most_partitions: int,
) -> int:
    """Serve the metrics until a signal, which is how it ends: the exit code is 0.

    Args:
        address: host and port.

    Raises:
        ConfigError: the address cannot be used, `every` is not a duration of a second or more, or
            relay.yaml is not valid.
    """
    pause = every_seconds(every)
    # they would double the number of counters
    prometheus_client.disable_created_metrics()  # type: ignore[no-untyped-call]
    followed = followed_mirrors(invocation, names)
    clock, stop, lock = SystemClock(), StopSignal(), threading.Lock()
    lasting: dict[str, LastingProblems] = {}

    def report(name: str, error: RelayError | None) -> None:
        with lock:
            problems = lasting.setdefault(name, LastingProblems(f"{name}: ", clock))
            problems.update([] if error is None else [problem(error)], complete=True)

    exporter = Exporter(clock, pause, most_partitions, report, group_samples)
    host, port = address
    where = f"{f'[{host}]' if ':' in host else host}:{port}"
    remedy = "name a free port with --port, and an address of this machine with --host"
    endpoint = Endpoint(where, exporter.registry, remedy, exporter.failure)
    with stop.heard():
        endpoint.open()
        exporter.look_at(followed.part)
        served = f"metrics of {plural(len(followed.part), 'mirror')} at http://{where}/metrics"
        messages.note(f"{served}, its own health at {HEALTH}; Ctrl-C ends it")
        try:
            while True:
                clock.sleep(pause)
                if followed.changed():
                    messages.note("relay.yaml has changed")
                    exporter.look_at(followed.part)
        except KeyboardInterrupt:
            messages.note("stopped")
        finally:
            exporter.end()
            endpoint.close()
    return invocation.exit_code
