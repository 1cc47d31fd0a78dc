"""`relay ui`: the demo's clusters, a shop whose events keep coming, and Dagster mirroring them in the browser."""

from __future__ import annotations

from contextlib import ExitStack
from pathlib import Path

from relay_pipelines.console.formatting import count, stdout
from relay_pipelines.demo import scene
from relay_pipelines.demo.dagster import Dagster, running
from relay_pipelines.demo.events import PARTITIONS, Shop, orders_for
from relay_pipelines.demo.scene import MIRROR, Scene
from relay_pipelines.demo.telling import Reporter
from relay_pipelines.demo.upstream import Arrivals, Upstream
from relay_pipelines.errors import RelayError
from relay_pipelines.lanes.topic_catalog import Catalog
from relay_pipelines.protocol.clock import Clock, SystemClock
from relay_pipelines.run.signals import StopSignal

_EVENTS = 60_000
_PER_SECOND = 100
_NIGHT_MS = 4 * 3600 * 1000
_WINDOWS = """\
    window:
      every: 15s
      max_records: 20000   # so that the history becomes several windows
      lag_target: 2d       # it is a day old
"""


def main(port: int, *, keep: bool = False) -> int:
    """Start everything and stay until Ctrl-C.

    Args:
        port: of the web server.
        keep: leave the folder with relay.yaml, logs, data and Dagster's database.

    Returns:
        0; people end it.

    Raises:
        RelayError: something could not be started.
    """
    clock = SystemClock()
    teller = Reporter(stdout(), clock)
    with StopSignal().heard(), scene.folder(keep=keep) as folder:
        try:
            with ExitStack() as open_until_the_end:
                dagster, _ = start_stack(folder, port, teller, clock, open_until_the_end)
                _serve(dagster)
        except KeyboardInterrupt:
            teller.console.print(
                "\nstopped; nothing is left running" + (f"; kept in {folder}" if keep else "")
            )
    return 0


def start_stack(
    folder: Path, port: int, teller: Reporter, clock: Clock, until_the_end: ExitStack
) -> tuple[Dagster, Scene]:
    """Start clusters, events and Dagster with its sensors; all of it ends with the stack."""
    with (
        teller.step("Start three clusters: upstream-a, upstream-b, destination"),
        teller.busy("brokers start"),
    ):
        stage = until_the_end.enter_context(scene.clusters(folder))
        stage.create_topics()
    shop, upstream = Shop(orders_for(_EVENTS)), Upstream(stage.nodes)
    with (
        teller.step(f"Write {count(_EVENTS)} events of a web shop to both upstream clusters"),
        teller.busy("writing"),
    ):
        upstream.write(shop.history(_EVENTS, clock.now_ms() - _NIGHT_MS))
        upstream.flush()
    stage.write_relay_yaml("8MiB", _WINDOWS)
    Catalog.beside(stage.folder / "relay.yaml").learn(MIRROR, PARTITIONS)
    until_the_end.enter_context(Arrivals(shop, upstream, _PER_SECOND, clock))
    with (
        teller.step("Start Dagster, and in it the planner and the health sensor"),
        teller.busy("Dagster starts"),
    ):
        dagster = until_the_end.enter_context(running(stage.folder, port))
        for sensor in dagster.sensors():
            dagster.start_sensor(sensor)
    teller.console.print(
        _READY.format(url=dagster.url, mirror=MIRROR, every=_PER_SECOND), style="bold green"
    )
    return dagster, stage


def _serve(dagster: Dagster) -> None:
    """Stay until Ctrl-C, or until Dagster ends by itself."""
    code = dagster.process.wait()
    raise RelayError(
        f"Dagster has ended with code {code}", remedy="run it again with --keep and see dagster.log"
    )


_READY = """
Open {url}/asset-groups/{mirror}
The first window is copied within a minute; {every} events a second keep coming. Look at:
  {url}/assets/{mirror}/orders.events?view=partitions   a topic, window by window
  {url}/runs                                         what runs, on which node
  {url}/automation                                   the planner and the health sensor
Ctrl-C ends everything."""
