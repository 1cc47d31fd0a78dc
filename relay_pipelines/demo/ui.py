"""`relay ui`: the demo's clusters, events that keep arriving, and Dagster in the browser."""

from __future__ import annotations

import re
from contextlib import ExitStack, closing
from pathlib import Path

from relay_pipelines.demo.dagster import Dagster, running
from relay_pipelines.demo.reporter import Reporter
from relay_pipelines.demo.scenario import open_shop
from relay_pipelines.demo.shop import MIRROR, Arrivals, Environment, temporary_folder
from relay_pipelines.errors import RelayError
from relay_pipelines.local_kafka.ports import refuse_taken
from relay_pipelines.orchestration import naming
from relay_pipelines.output.formatting import stdout
from relay_pipelines.protocol.clock import Clock, SystemClock

_EVENTS = 60_000
_PER_SECOND = 100
_WINDOWS = """\
    window:
      every: 5s
      max_records: 10000   # several windows for the history
      lag_target: 2d       # the history is a day old
"""
_PLACES = """\
{folder}/relay.yaml    the mirror: try `relay -c` with it, or change it and reload Dagster
{folder}/dagster.log   what Dagster prints
{folder}               everything else; {kept}"""
_DIED = re.compile(r"(dagster-\w+) process shut down unexpectedly with return code (-?\d+)")
"""What `dagster dev` logs before it ends, because it does not start its processes again."""
GRAPH = "asset-groups/?expanded=" + ",".join(
    f"global@global:{group}"
    for group in (naming.upstreams_group(MIRROR), naming.source_group(MIRROR), naming.group(MIRROR))
)
"""The page of the asset graph, with its groups open."""
_READY = f"""
Open {{url}}/{GRAPH}
{_PER_SECOND} events a second keep arriving; a session copies them every 5 s. Look at:
  {{url}}/assets/{MIRROR}/orders.events?view=partitions   a topic, window by window
  {{url}}/runs                                         what runs, on which upstream
  {{url}}/automation                                   the planner and the health sensor
Ctrl-C ends everything."""


def main(port: int, *, keep: bool = False) -> int:
    """Start everything and wait for Ctrl-C.

    Args:
        port: of the web server.
        keep: leave the folder with relay.yaml, logs, data and Dagster's database.

    Raises:
        RelayError: something could not be started, or Dagster ended.
    """
    refuse_taken(port, "stop the process that listens there, or choose another --port")
    clock = SystemClock()
    reporter = Reporter(stdout(), clock)
    with temporary_folder(keep=keep) as folder:
        kept = "kept, as --keep says" if keep else "deleted at the end, unless you give --keep"
        reporter.console.print(_PLACES.format(folder=folder, kept=kept), soft_wrap=True)
        try:
            with ExitStack() as until_the_end:
                dagster, _ = start_stack(folder, port, reporter, clock, until_the_end)
                reporter.console.print(_READY.format(url=dagster.url), style="bold green")
                raise ended(dagster, folder, keep=keep)
        except KeyboardInterrupt:
            kept = f"; {folder} is kept, as --keep says" if keep else ""
            reporter.console.print(f"\nstopped; nothing is left running{kept}")
    return 0


def ended(dagster: Dagster, folder: Path, *, keep: bool) -> RelayError:
    """Wait until Dagster ends by itself, and return why: one of its processes has ended."""
    code = dagster.process.wait()
    died = _DIED.search(_log(folder).read_text(errors="replace"))
    why = f"with code {code}"
    if died is not None:
        name, number = died[1], int(died[2])
        how = f"was killed by signal {-number}" if number < 0 else f"ended with code {number}"
        why = f"because its process {name} {how}"
    look = f"see {_log(folder)}, kept as --keep says"
    return RelayError(
        f"Dagster has ended {why}",
        remedy=f"{look if keep else 'add --keep to keep its dagster.log'}; start `relay ui` again",
    )


def _log(folder: Path) -> Path:
    return folder / "dagster.log"


def start_stack(
    folder: Path, port: int, reporter: Reporter, clock: Clock, until_the_end: ExitStack
) -> tuple[Dagster, Environment]:
    """Start clusters, events and Dagster with its sensors; they end with the exit stack."""
    opened = open_shop(folder, _EVENTS, reporter, clock)
    environment, shop, writers = until_the_end.enter_context(opened)
    environment.write_relay_yaml(_WINDOWS)
    until_the_end.enter_context(closing(Arrivals(shop, writers, _PER_SECOND, clock)))
    with reporter.step("Start Dagster with its planner and its health sensor"):
        dagster = until_the_end.enter_context(running(folder, port))
        for sensor in dagster.sensors():
            dagster.start_sensor(sensor)
    return dagster, environment
