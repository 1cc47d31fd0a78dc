"""A broker whose disk was put back to an earlier time, and that has grown past the checkpoints.

Topic ids, cluster id and leader epochs are those of before: the broker was restarted as often. Only
the records tell. What a mirror finds so is not copied until a person decides.
"""

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from unittest.mock import Mock, patch

import pytest

from relay_pipelines.copy.task import copy_ranges
from relay_pipelines.local_kafka import LocalCluster
from relay_pipelines.model import CopyJob, TopicPartition
from relay_pipelines.run import other_writers, run_plan
from relay_pipelines.run.session import StoppableClock
from tests.copying import KEPT, numbered, records_of
from tests.support import commands
from tests.support.copied_topic import Copied
from tests.support.independent import create, write

pytestmark = pytest.mark.newer_kafka  # before, topic ids do not prove anything either
TOPICS = ("short", "grown", "upstreams", "filtered")
SAVED = 5
COPIED = 15
KEEPS_SAVED = {"class": "tests.property.failing_filter:KeepsBelow", "config": {"offset": SAVED}}
OTHER = 1_000


@pytest.fixture(scope="module")
def put_back(
    tmp_path_factory: pytest.TempPathFactory,
    source_cluster: LocalCluster,
    destination_cluster: LocalCluster,
) -> Iterator[dict[str, Copied]]:
    """Fifteen records were copied, the broker has five again; of `upstreams`, another has all.

    Of `filtered`, those five alone were copied, and the others left out.
    """
    cluster = LocalCluster("back", folder=tmp_path_factory.mktemp("back"))
    cluster.start()
    (broker,) = cluster.brokers
    home, saved = cluster.folder / "broker-1", cluster.folder / "saved"
    names = {topic: f"back-{topic}-{cluster.folder.name}" for topic in TOPICS}
    for name in names.values():
        create(cluster.cluster(), name, 1, KEPT)
        write(cluster.cluster(), TopicPartition(name, 0), numbered(SAVED, first=500))
    broker.stop()
    shutil.copytree(home, saved)
    broker.start()
    to = destination_cluster.cluster()
    copied = {
        topic: Copied(
            *(cluster.cluster(), to, name), filters=[KEEPS_SAVED] if topic == "filtered" else ()
        )
        for topic, name in names.items()
    }
    there = source_cluster.cluster()
    create(there, names["upstreams"], 1, KEPT)
    write(there, TopicPartition(names["upstreams"], 0), numbered(SAVED, first=500), numbered(10))
    broker.stop()
    shutil.rmtree(home)
    shutil.copytree(saved, home)
    broker.start()
    yield copied
    cluster.discard()


def grow(copied: Copied, count: int = 30) -> None:
    write(copied.source, copied.at, numbered(count, first=OTHER))


@contextmanager
def rounds(count: int) -> Iterator[None]:
    """End `run --every` after so many rounds, as Ctrl-C does; it waits for no other deployment."""
    pauses = Mock(side_effect=[None] * (count - 1) + [KeyboardInterrupt])
    with (
        patch.object(StoppableClock, "sleep", pauses),
        patch.object(other_writers, "QUIET_SECONDS", 0.0),
        patch.object(other_writers, "_INTERVALS", 0.0),
    ):
        yield


@pytest.mark.usefixtures("local_session")
def test_a_source_that_was_put_back_stops_every_run(
    put_back: dict[str, Copied], tmp_path: Path
) -> None:
    """And every round, whether one saw it while it was short or not, until somebody decides."""
    short, grown = put_back["short"], put_back["grown"]
    before = {each.topic: each.arrived() for each in (short, grown)}
    assert [len(records) for records in before.values()] == [COPIED] * 2
    grow(grown)

    def relay(*arguments: str, **settings: Any) -> Any:
        mirrors = {each.name: each.settings(**settings) for each in (short, grown)}
        return commands.relay_here(commands.configured(tmp_path, mirrors), *arguments)

    with rounds(3):
        first = relay("run", "--every", "1s")
    assert (first.returncode, " in 3 rounds" in first.stderr) == (3, True), first.stderr
    assert ": over after" not in first.stderr
    for copied in (short, grown):
        assert copied.arrived() == before[copied.topic]
    assert f"{short.at} at offset {COPIED}: " in first.stderr
    assert f"{grown.at} at offset " in first.stderr

    assert " ends at 5 on this upstream, and was copied up to 15" in relay("upstreams").stdout
    grow(short)
    again = relay("run")
    assert again.returncode == 3, again.stdout + again.stderr
    for copied in (short, grown):
        assert f"{copied.at} at offset " in again.stderr
        assert copied.arrived() == before[copied.topic]
    assert "on_data_loss: continue" in again.stderr
    for look in ("plan", "status"):
        said = relay(look)
        assert "put back to an earlier time" in said.stdout + said.stderr, look

    accepted = relay("run", on_data_loss="continue")
    assert accepted.returncode == 0, accepted.stderr
    for copied in (short, grown):
        has = records_of(copied.source, copied.at)
        assert copied.arrived() == before[copied.topic] + has
    assert relay("run").returncode == 0


@pytest.mark.usefixtures("local_session")
def test_the_other_upstream_is_read_instead(
    put_back: dict[str, Copied], source_cluster: LocalCluster, tmp_path: Path
) -> None:
    """Of two upstreams, one was put back: the other one's records are copied, none is lost."""
    copied, there = put_back["upstreams"], source_cluster.cluster()
    grow(copied)
    write(there, copied.at, numbered(20, first=10))
    settings = copied.settings()
    settings["source"]["upstreams"].append({"name": "two", **commands.at(there)})
    config = commands.configured(tmp_path, {copied.name: settings})
    done = commands.relay_here(config, "run")
    assert done.returncode == 0, done.stderr
    assert copied.arrived() == records_of(there, copied.at)


def test_what_was_left_out_is_compared_too(put_back: dict[str, Copied]) -> None:
    """The last record copied is there, and others where a filter had left out all that followed."""
    copied = put_back["filtered"]
    grow(copied)
    taken = copied.snapshot()
    job = CopyJob(taken.name, "run", taken.upstream, taken.destination)
    (outcome,) = copy_ranges(job, run_plan.plan(taken).ranges)
    assert (outcome.error_kind, outcome.exit_code) == ("TopicRecreatedError", 3)
    assert f"{copied.at} at offset {COPIED - 1}: " in outcome.error
    assert len(copied.arrived()) == SAVED
