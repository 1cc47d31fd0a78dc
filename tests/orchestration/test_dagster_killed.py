"""A real `dagster dev` whose sessions, servers and processes end, or are killed."""

import sqlite3
import sys
import time
from contextlib import closing, suppress
from pathlib import Path

import psutil
import pytest

from relay_pipelines.demo import ui
from relay_pipelines.demo.dagster import Dagster
from relay_pipelines.errors import RelayError
from relay_pipelines.orchestration import naming
from relay_pipelines.orchestration.turns import Turn
from tests.integration import spark_processes
from tests.orchestration import graphql
from tests.orchestration.dev_environment import DevEnvironment, process_of
from tests.support.independent import until


@pytest.mark.long
def test_sessions_hand_over(dev: DevEnvironment) -> None:
    """They follow each other; one that is terminated is replaced, although its Spark hangs."""
    dev.configure(window={"every": "1s", "session": "25s"})

    def sessions(status: str) -> list[graphql.Run]:
        return [run for run in graphql.runs(dagster) if run.status == status]

    with dev.dagster() as dagster:
        while len(sessions("SUCCESS")) < 2:
            dev.produce(1)
            dev.all_arrived(60)
        assert not sessions("FAILURE")
        (newest, *_) = sessions("STARTED")

        _hang_spark(dagster, newest.id)
        dev.produce(1)
        time.sleep(2)
        graphql.terminate(dagster, newest.id)

        assert graphql.ended(dagster, newest.id, 60).status == "CANCELED"
        dev.produce(1)
        dev.all_arrived(60)
        assert sessions("STARTED")

        def is_alone() -> bool:
            """Whether one session is in progress, which will not be replaced soon."""
            alive = [run for run in graphql.runs(dagster) if run.status not in graphql.ENDED]
            begun = [run.id for run in alive if time.time() - run.started < 16]
            return len(alive) == 1 and [_turn(dev, run) for run in begun] == [Turn.COPIES]

        # Dagster calls a run failed that is interrupted while its process still starts
        graphql.wait(is_alone, "a session that has just begun", 180)
    # Ctrl-C ends the last session, too
    with closing(sqlite3.connect(dev.folder / "var/dagster/history/runs.db")) as database:
        left = dict(database.execute("select run_id, status from runs"))
    # between two events of a run, only Dagster hears the signal, and calls the run failed
    failed = [run for run, status in left.items() if status == "FAILURE"]
    assert set(left.values()) <= {"SUCCESS", "CANCELED", "FAILURE"}
    assert len(failed) <= 1
    for run in failed:
        events = _events(dev, run)
        assert any("Execution was interrupted unexpectedly" in event for event in events), events


def _hang_spark(dagster: Dagster, run_id: str) -> None:
    below = psutil.Process(process_of(dagster, run_id)).children()
    (jvm,) = [child for child in below if child.name() == "java"]
    jvm.suspend()


def _turn(dev: DevEnvironment, run: str) -> str:
    """What a run does, by the tag that Dagster shows nobody."""
    tag = "select value from run_tags where run_id = ? and key = ?"
    with closing(sqlite3.connect(dev.folder / "var/dagster/history/runs.db")) as database:
        return str(database.execute(tag, (run, naming.TAG_TURN)).fetchone()[0])


def _events(dev: DevEnvironment, run: str) -> list[str]:
    """What the log of a run says, while no Dagster runs."""
    with closing(sqlite3.connect(dev.folder / f"var/dagster/history/runs/{run}.db")) as database:
        return [event for (event,) in database.execute("select event from event_logs order by id")]


@pytest.mark.long
def test_the_spark_server_dies(dev: DevEnvironment) -> None:
    """The session says it in one line, and goes on with the server that is started instead."""
    python = Path(sys.executable)
    with spark_processes.connect_process(dev.folder / "spark", python, {}, {}) as server:
        dev.configure(remote=f"sc://127.0.0.1:{server.port}")
        with dev.dagster() as dagster:
            dev.produce(1)
            dev.all_arrived()
            (session,) = graphql.runs(dagster)
            server.kill_with_children()
            dev.produce(1)

            def said() -> list[str]:
                found = graphql.messages(dagster, session.id)
                lines = [line for line in found if not line.startswith("Asset check")]
                gone = f"no Spark answers at sc://127.0.0.1:{server.port}"
                return [line for line in lines if gone in line]

            graphql.wait(said, "the line")
            time.sleep(5)  # the next windows fail, too
            server.start()
            dev.all_arrived()
            assert len(said()) == 1
            assert graphql.status(dagster, session.id) == "STARTED"


@pytest.mark.long
def test_the_daemon_is_killed_in_the_middle_of_a_tick(dev: DevEnvironment) -> None:
    """At two points: it still starts one run a window; `relay ui` says why Dagster has ended."""
    dev.configure(window={"every": "1s", "session": 0}, automation=False)
    dev.produce(5)
    for point in ("after_events", "before_run"):
        token = dev.folder / point
        with (
            # the second time the sensor is on, and Dagster may end before it answers
            suppress(OSError, RelayError),
            dev.dagster(RELAY_KILL_DAEMON=f"{point}:{token}") as dagster,
        ):
            dagster.start_sensor(naming.planner(dev.name))
            until(token.exists, f"the daemon's end {point}")
            said = str(ui.ended(dagster, dev.folder, keep=True))
            log = f"{dev.folder}/dagster.log"
            assert said == (
                "Dagster has ended because its process dagster-daemon was killed by signal 9;"
                f" see {log}, kept as --keep says; start `relay ui` again"
            )
        assert token.exists()
        assert dev.copied() == 0
    with dev.dagster() as dagster:
        dev.all_arrived()
        found = dev.all_succeeded(dagster)
        assert len(found["materialized"]) == 1
        assert not found["unmaterialized"]
        dev.produce(2)
        dev.all_arrived()
        found = dev.all_succeeded(dagster)
        assert len(graphql.runs(dagster)) == len(found["materialized"]) >= 2
        assert not found["unmaterialized"]
