"""A real `dagster dev` between real brokers, used by GraphQL, killed and wiped."""

import os
import shutil
import signal
import sys
import time
from contextlib import suppress
from typing import Any

import psutil
import pytest

from relay_pipelines.demo import ui
from relay_pipelines.demo.dagster import Dagster, running
from relay_pipelines.errors import RelayError
from relay_pipelines.model import TopicPartition
from relay_pipelines.orchestration import naming
from tests.orchestration import graphql
from tests.orchestration.dev_environment import DevEnvironment, process_of
from tests.support.commands import ran
from tests.support.http_server import Answer, serving
from tests.support.independent import Record, create, read, write


@pytest.mark.quick
def test_a_session(dev: DevEnvironment) -> None:
    """Its windows are on the page within seconds; it is replaced if it, or all of Dagster, dies."""
    dev.configure(copy={"chunk": "1kB", "coalesce_below": "0"})
    with dev.dagster() as dagster:
        dev.produce(3)
        dev.all_arrived()
        for _ in range(5):
            dev.produce(1)
            dev.all_arrived(30)
        (session,) = graphql.runs(dagster)
        found = session.status, session.job, session.tags[naming.TAG_UPSTREAM]
        assert found == ("STARTED", f"mirror_{dev.name}", "a")
        assert not [tag for tag in session.tags if "heartbeat" in tag], "technical tags are hidden"
        stdout = [*(dev.folder / "var/dagster/logs" / session.id).rglob("*.out")]
        lines = [line for path in stdout for line in path.read_text().splitlines()]
        assert len(lines) >= 2, "ending windows takes a tenth of the time: a window has some rounds"
        assert all(line.startswith("window 20") for line in lines), lines
        graphql.wait(
            lambda: len(graphql.partitions(dagster, dev.asset)["materialized"]) >= 2,
            "the windows of a session that has not ended",
        )
        windows = graphql.partitions(dagster, dev.asset)
        assert not windows["unmaterialized"]
        evaluations = graphql.checks(dagster, dev.asset, naming.MESSAGE_COUNTS)
        assert {each["partition"] for each in evaluations} == set(windows["materialized"])
        assert all(evaluation["success"] for evaluation in evaluations)
        all_green(dev, dagster)

        dev.produce(300)
        os.kill(process_of(dagster, session.id), signal.SIGKILL)
        dev.produce(1)  # in case that it had copied all of them
        dev.all_arrived(120)
        assert graphql.ended(dagster, session.id).status == "FAILURE"
        runs = [run for run in graphql.runs(dagster) if run.job == session.job]
        (following,) = [run for run in runs if run.id != session.id]
        process = psutil.Process(process_of(dagster, following.id))
        os.killpg(dagster.process.pid, signal.SIGKILL)
        dagster.process.wait()
        with suppress(psutil.NoSuchProcess):
            process.kill()
    dev.produce(2)
    with dev.dagster() as dagster:
        dev.all_arrived(240)  # nobody tells Dagster that the session is dead
        assert graphql.ended(dagster, following.id).status == "FAILURE"


def all_green(dev: DevEnvironment, dagster: Dagster) -> None:
    """Assert that the graph shows nothing in grey, even after windows that came after a check."""
    passed = dict.fromkeys(("lag", "configs", "source_topics", "other_deployments"), "SUCCEEDED")
    expected = {
        "/".join(dev.asset): dict.fromkeys((naming.MESSAGE_COUNTS, naming.LAG_TARGET), "SUCCEEDED"),
        f"{dev.name}/main/windows": passed,
        f"source/{dev.name}/source.{dev.topic}": {},
        f"upstreams/{dev.name}/a": {naming.AVAILABLE: "SUCCEEDED", naming.DIVERGENCE: "SUCCEEDED"},
    }

    wanted = {key: (True, found) for key, found in expected.items()}
    # the lag of records of 2023 fails until a tick finds them copied
    with suppress(AssertionError):
        graphql.wait(lambda: graphql.graph(dagster) == wanted, "a green graph", 12)
    assert graphql.graph(dagster) == wanted


@pytest.mark.long
def test_what_people_do(dev: DevEnvironment) -> None:
    """A new topic is copied and a check asks for the reload; mistakes are one run and one line.

    Dagster cannot tell the new topic from the first one, so that it makes a part of the lane, of
    which nobody switches anything on: its records arrive also when the session has ended that
    copied it before the reload. A window by hand, a backfill and a backfill by date end no session.
    With Dagster's database wiped while records wait, it resumes from the checkpoints.
    """
    new = dev.topic.replace("-", ".")
    dev.configure(
        automation=False,
        topics={"allow": [dev.topic.replace("-", "[.-]")], "rename": f"{dev.name}.{{topic}}"},
    )
    plan = [dev.name, "main", "windows"]
    with dev.dagster() as dagster:
        dagster.start_sensor(naming.planner(dev.name))
        dev.produce(1)
        dev.all_arrived()
        create(dev.source, new, 1, {"retention.ms": "-1"})
        write(dev.source, TopicPartition(new, 0), [Record(b"k", b"first")])
        copy = TopicPartition(f"{dev.name}.{new}", 0)
        graphql.wait(lambda: dev.has(copy), "the new topic")

        def said() -> str:
            found = graphql.checks(dagster, plan, naming.SOURCE_TOPICS)
            return "" if not found or found[0]["success"] else found[0]["description"]

        graphql.wait(lambda: new in said(), "the check")
        assert "reload the code location" in said()
        graphql.reload(dagster)
        graphql.wait(lambda: not said(), "the check after the reload")
        assert graphql.partitions(dagster, [dev.name, new])["materialized"]
        dev.produce(1)
        dev.all_arrived()
        sessions = [run for run in graphql.runs(dagster) if run.status == "STARTED"]
        assert sessions, "they do not mind the reload"
        for session in sessions:
            graphql.terminate(dagster, session.id)
            graphql.ended(dagster, session.id)
        for number in range(2):
            write(dev.source, TopicPartition(new, 0), [Record(b"k", f"later{number}".encode())])
            dev.produce(1)
            dev.all_arrived()
            graphql.wait(
                lambda number=number: len(read(dev.destination, copy)) == number + 2,
                "the record of the new part",
            )

        people_work_beside_sessions(dev, dagster, [dev.asset, [dev.name, new]])
    shutil.rmtree(dev.folder / "var" / "dagster")
    dev.produce(2)
    with dev.dagster() as dagster:
        dagster.start_sensor(naming.planner(dev.name))
        dev.all_arrived()
        assert not [run for run in graphql.runs(dagster) if run.status == "FAILURE"]


def people_work_beside_sessions(dev: DevEnvironment, dagster: Dagster, keys: list[Any]) -> None:
    """Backfill the first window of each asset, and a span of time; make mistakes."""

    def by_date(span: dict[str, str]) -> str:
        config = {"ops": {"copy_time_span": {"config": span}}}
        return graphql.launch(dagster, "backfill_by_date", config)

    before = graphql.runs(dagster)  # Dagster may call a run failed that a person has terminated
    sessions = [run.id for run in before if run.status == "STARTED"]
    first = [graphql.partitions(dagster, key)["materialized"][:1] for key in keys]
    backfill = graphql.backfill(dagster, *zip(keys, first, strict=True))
    assert graphql.backfill_ended(dagster, backfill) == "COMPLETED_SUCCESS", "also from main"
    never = naming.window_key(0, 0)
    graphql.add_partition(dagster, naming.windows_name(dev.name, dev.topic), never)
    launched = [
        graphql.materialize(dagster, [dev.asset], first[0][0]),
        # the records of the tests are of November 2023
        by_date({"mirror": dev.name, "from": "2023-11-01", "to": "2023-12-01"}),
        by_date({"from": "yesterday"}),
        graphql.materialize(dagster, [dev.asset], never),
    ]
    ended = [graphql.ended(dagster, run_id).status for run_id in launched]
    assert ended == ["SUCCESS", "SUCCESS", "FAILURE", "FAILURE"]
    dev.produce(1)
    dev.all_arrived()
    assert {graphql.status(dagster, run_id) for run_id in sessions} == {"STARTED"}
    time.sleep(10)  # a retry would be requested within seconds
    red = {run.id for run in graphql.runs(dagster) if run.status == "FAILURE"}
    assert red - {run.id for run in before} == {*launched[2:]}


def test_another_dagster_on_the_port(dev: DevEnvironment) -> None:
    """`relay ui` refuses a taken port at once; one taken later is not mistaken for its own."""
    requests: list[str] = []

    def stranger(_path: str, _authorization: str, asked: str) -> Answer:
        """Answer as a Dagster does that somebody else started to serve relay_pipelines."""
        requests.append(asked)
        sockets = {"key": "socket", "value": "/tmp/tmpstranger"}
        sensor = {"repositories": [{"sensors": [{"name": "theirs"}]}]}
        entry = {"locationOrLoadError": sensor, "displayMetadata": [sockets]}
        return 200, {"data": {"workspaceOrError": {"locationEntries": [entry]}}}

    with serving(stranger) as port:
        with pytest.raises(RelayError, match=f"port {port} of 127.0.0.1 cannot be used"):
            ui.main(port)
        assert not requests
        with pytest.raises(RelayError, match="another process"), running(dev.folder, port):
            pass
        assert not any("startSensor" in asked for asked in requests)


def test_a_broken_configuration(dev: DevEnvironment) -> None:
    """Dagster shows the line of `relay check` first, above its own; validating it fails."""
    dev.configure(windw={"every": "10s"})
    with pytest.raises(RelayError) as refused, dev.dagster():
        pass
    config = dev.folder / "relay.yaml"
    number = config.read_text().splitlines().index("    windw:") + 1
    problem = f"mirrors.{dev.name}.windw: unknown key; did you mean 'window'?"
    error = "dagster._core.errors.DagsterInvalidDefinitionError"
    assert str(refused.value) == f"{error}: {config}:{number}: {problem}"

    config.write_text("mirrors:\n  - a\n  b: 1\n")
    command = [sys.executable, "-m", "dagster", "definitions", "validate"]
    own = os.environ | {"RELAY_CONFIG": str(config)}
    validated = ran(*command, cwd=dev.folder, env=own)
    assert validated.returncode == 1
    _, _, shown = validated.stdout.partition("Validation failed for code location")
    assert shown.startswith(
        f" relay_pipelines:\n\n{error}: {config}:3:3: not YAML: expected <block end>"
    )
