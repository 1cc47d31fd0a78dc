"""`relay run --every` as a subprocess against real brokers."""

import json
import re
import signal
import subprocess
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import psutil
import pytest

from relay_pipelines import load
from relay_pipelines.local_kafka import LocalCluster
from relay_pipelines.local_kafka.ports import free_ports
from relay_pipelines.model import TopicPartition
from relay_pipelines.protocol.clock import SystemClock
from relay_pipelines.run.other_writers import OtherWriters
from tests.copying import Clusters, recent, records_of
from tests.support import independent
from tests.support.commands import RELAY, configured, environment, mirror
from tests.support.independent import (
    CREATE_TIME,
    Record,
    assert_equal,
    create,
    open_transactions,
    read,
    until,
    write,
)
from tests.support.trap import Trap

PAUSE_SECONDS = 0.2  # between two looks that read a topic, and take the processor from the rounds


class Rounds:
    """A running `relay run --every 1s`, and what it has printed."""

    def __init__(self, config: Path, *options: str) -> None:
        self._out, self._err = config.with_suffix(".out"), config.with_suffix(".err")
        self.folder = config.parent
        with self._out.open("w") as out, self._err.open("w") as err:
            self.process = subprocess.Popen(
                [RELAY, "-c", config, "run", "--every", "1s", *options],
                stdout=out,
                stderr=err,
                env=environment(),
            )

    @property
    def stdout(self) -> list[str]:
        return self._out.read_text().splitlines()

    @property
    def stderr(self) -> list[str]:
        """What it has reported, without the progress that only a slow round shows."""
        lines = self._err.read_text().splitlines()
        return [line for line in lines if not re.match(r"\S+: [\d,]+ of [\d,]+ records \(", line)]

    def jvms(self) -> list[psutil.Process]:
        children = psutil.Process(self.process.pid).children()
        return [child for child in children if child.name() == "java"]

    def stop(self, number: signal.Signals) -> int:
        self.process.send_signal(number)
        return self.process.wait(300)


@contextmanager
def running(config: Path, *options: str) -> Iterator[Rounds]:
    rounds = Rounds(config, *options)
    try:
        yield rounds
    finally:
        rounds.process.kill()
        rounds.process.wait()


EDITED = """
import pathlib

import letters_{name}

class Begins:
    def __init__(self):
        folder = pathlib.Path(__file__).parent
        edit = folder / "edit"
        if edit.exists():
            edit.rename(folder / "letters_{name}.py")

    def keep(self, record):
        return record.value.decode().startswith(letters_{name}.LETTER)
"""


def test_a_filter_that_changes_does_so_between_two_rounds(
    sides: Clusters, tmp_path: Path, topic_name: str
) -> None:
    """A round has the files of its beginning, on the driver and in all tasks; the next says it."""
    source, destination = sides
    partitions = [TopicPartition(topic_name, number) for number in range(3)]
    for cluster in (source, destination):
        create(cluster, topic_name, len(partitions))
    name = topic_name.replace("-", "_").replace(".", "_")
    (tmp_path / f"filter_{name}.py").write_text(EDITED.format(name=name))
    letters = tmp_path / f"letters_{name}.py"
    letters.write_text("LETTER = 'a'")
    section = mirror(source, destination, topic_name, filters=[{"class": f"filter_{name}:Begins"}])
    config = configured(tmp_path, {"m": section}, spark={"master": "local[2]"})

    def put(number: int) -> None:
        """Write a record that each version of the filter keeps."""
        both = [f"{letter}{number}".encode() for letter in "abc"]
        for at in partitions:
            write(source, at, [Record(None, each, (), (CREATE_TIME, 1)) for each in both])

    def arrive(number: int, kept: str) -> None:
        put(number)
        everywhere = f"{kept} everywhere"
        until(lambda: all(values_of(at)[-1:] == [kept] for at in partitions), everywhere, 60)

    def values_of(at: TopicPartition) -> list[str]:
        return [(record.value or b"").decode() for record in records_of(destination, at)]

    def lines() -> list[str]:
        return [line for line in rounds.stderr if "has changed" in line]

    put(0)
    (tmp_path / "edit").write_text("LETTER = 'b'")
    with running(config, "--json") as rounds:
        until(lambda: all(read(destination, at) for at in partitions), "a round", 60, PAUSE_SECONDS)
        assert [values_of(at) for at in partitions] == [["a0"]] * 3, "one version in a round"
        until(lines, "the line")
        arrive(1, "b1")
        letters.write_text("LETTER = 'c'")
        until(lambda: len(lines()) == 2, "the second line")
        arrive(2, "c2")
        assert [values_of(at) for at in partitions] == [["a0", "b1", "c2"]] * 3
        until(lambda: len(documents(rounds)) >= 3, "the results of the rounds")
        codes = [code for document in documents(rounds) for code in document["topics"][0]["code"]]
        assert len(codes) == len(documents(rounds)), "each round has one version"
        assert len(set(codes)) == 3
        assert lines() == [f"{letters.name} has changed: the rounds from this one on use it"] * 2
        assert rounds.stop(signal.SIGTERM) == 130


def test_new_records_arrive_in_every_round(
    sides: Clusters, tmp_path: Path, topic_name: str
) -> None:
    """They arrive in order and exactly once, also after idle rounds and after Spark was killed."""
    source, destination = sides
    here = TopicPartition(topic_name, 0)
    for cluster in (source, destination):
        create(cluster, topic_name)
    address, textfile = f"127.0.0.1:{free_ports(1)[0]}", tmp_path / "relay.prom"
    config = configured(
        tmp_path,
        {"m": mirror(source, destination, topic_name)},
        metrics={"address": address, "textfile": str(textfile)},
    )
    written = 0

    def arrive(count: int) -> None:
        nonlocal written
        written += count
        write(source, here, recent(count))
        until(lambda: len(read(destination, here)) >= written, "the records", 60, PAUSE_SECONDS)

    def said(text: str, count: int) -> str:
        config.write_text(text)
        until(lambda: len(rounds.stderr) == count, "the line", 60, PAUSE_SECONDS)
        return rounds.stderr[-1]

    with running(config, "--json") as rounds:
        until(textfile.exists, "the first round", 60, PAUSE_SECONDS)
        assert rounds.jvms() == [], "nothing to copy starts no Spark"
        arrive(10)
        (first,) = rounds.jvms()
        for _ in range(3):
            arrive(10)
        until(lambda: len(documents(rounds)) == 4, "the line of the last round", 30)
        time.sleep(3)  # idle rounds
        assert len(documents(rounds)) == 4
        arrive(10)
        assert rounds.jvms() == [first], "Spark stays warm"
        until(lambda: len(documents(rounds)) == 5, "the end of the round", 30)
        first.kill()
        arrive(10)
        assert [jvm == first for jvm in rounds.jvms()] == [False]
        counter = "kafka_relay_consumed_messages_total{topic=" + f'"{topic_name}"}} {written}.0'
        until(lambda: counter in textfile.read_text(), "metrics in the file", 30)
        with urllib.request.urlopen(f"http://{address}/metrics", timeout=5) as answer:
            assert counter in answer.read().decode()
        assert rounds.stderr == [], "a Spark that was killed between two rounds is no error"

        good, begin = config.read_text(), "relay.yaml has changed, and the version of the start"
        assert said("mirrors: {", 1).startswith(f"{begin} stays in use: ")
        arrive(10)
        assert said(good.replace(topic_name, "other"), 2).startswith(f"{begin} stays")
        arrive(10)
        assert len(rounds.stderr) == 2

        assert_the_port_is_handed_over(rounds, sides, f"{topic_name}-other", address)
        found = documents(rounds)
        assert sum(document["records"] for document in found) == written
        assert {(each["mirror"], each["topics"][0]["topic"]) for each in found} == {
            ("m", topic_name)
        }
        assert re.match(rf"stopped after .*: {written} records, ", rounds.stderr[-1])
    assert_equal(records_of(source, here), records_of(destination, here))
    assert open_transactions(destination, topic_name) == []
    config.write_text(good)
    assert_nobody_copies(config)


def assert_nobody_copies(config: Path) -> None:
    """A daemon that starts waits for nobody: the one before it has said that it ended."""
    said: list[str] = []
    successor = OtherWriters({"next"}.__contains__, 300.0, SystemClock(), said.append)
    assert not successor.look(load(config)["m"].snapshot())
    assert said == []


def assert_the_port_is_handed_over(
    first: Rounds, sides: Clusters, topic: str, address: str
) -> None:
    """Let another daemon want the metrics port of one that ends."""

    def served() -> bool:
        with suppress(OSError), urllib.request.urlopen(f"http://{address}/healthz") as answer:
            return bool(answer.read() == b"ok\n")
        return False

    create(sides[0], topic)
    mirrors = {"other": mirror(*sides, topic)}
    config = configured(first.folder, mirrors, metrics={"address": address})
    with running(config) as second:
        until(lambda: second.stderr, "the error", 60)
        (error,) = second.stderr
        assert error == (
            f"error: metrics cannot be served at {address}: Address already in use;"
            " set metrics.address to a free port of this machine, or leave it out"
        )
        assert served()
        assert first.stop(signal.SIGTERM) == 130
        until(lambda: len(second.stderr) == 2, "the end of the problem", 30)
        assert second.stderr[1].startswith("over after ")
        assert served()
        assert second.stop(signal.SIGTERM) == 130, "nothing fails any more"


@pytest.mark.long
def test_a_spark_that_hangs_is_replaced(
    sides: Clusters, tmp_path: Path, topic_name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A JVM that is stopped, between two rounds or in one, is killed; one line says so."""
    source, destination = sides
    here = TopicPartition(topic_name, 0)
    for cluster in (source, destination):
        create(cluster, topic_name)
    config = configured(tmp_path, {"m": mirror(source, destination, topic_name)})
    armed = tmp_path / "armed"  # a task hangs once the file is away
    armed.touch()
    monkeypatch.setenv("RELAY_FAULT", f"before_outcome=SIGSTOP@1:{armed}")

    def put() -> None:
        write(source, here, recent(10))

    def arrive() -> psutil.Process:
        """Write records; return the JVM that has copied them."""
        before = len(read(destination, here))
        put()
        until(lambda: len(read(destination, here)) > before, "the records", 120)
        (jvm,) = rounds.jvms()
        return jvm

    def hang(jvm: psutil.Process) -> None:
        armed.unlink()
        put()
        until(armed.exists, "a task that hangs")
        jvm.suspend()

    with running(config) as rounds:
        first = arrive()
        until(lambda: len(rounds.stdout) == 1, "the end of the round")
        first.suspend()
        second = arrive()
        until(lambda: len(rounds.stdout) == 2, "the end of the round")
        assert rounds.stderr == []
        hang(second)
        until(lambda: rounds.stderr, "the line", 90)
        assert "\n".join(rounds.stderr) == (
            "error: m: Spark has not answered for 30 s: it hangs, and was ended; what is committed"
            " stays, run again to copy the rest"
        )
        third = arrive()
        until(lambda: len(rounds.stderr) == 2, "the end of the outage")
        assert rounds.stderr[1].startswith("m: over after ")
        assert len({first.pid, second.pid, third.pid}) == 3
        hang(third)
        assert rounds.stop(signal.SIGTERM) == 130
    assert not any(jvm.is_running() for jvm in (first, second, third))
    assert_equal(records_of(source, here), records_of(destination, here))
    assert open_transactions(destination, topic_name) == []


def documents(rounds: Rounds) -> list[dict[str, Any]]:
    return [json.loads(line) for line in rounds.stdout]


def test_an_outage_is_reported_once_and_holds_up_no_other_mirror(
    sides: Clusters, own_cluster: LocalCluster, tmp_path: Path, topic_name: str
) -> None:
    """An upstream that is killed is a line, its return another, and meanwhile the rounds go on."""
    source, destination, own = *sides, own_cluster.cluster()
    steady, shaky = (TopicPartition(f"{topic_name}-{name}", 0) for name in ("steady", "shaky"))
    for cluster in (source, destination):
        create(cluster, steady.topic)
    for cluster in (own, destination):
        create(cluster, shaky.topic, 2)
    trimmed = TopicPartition(shaky.topic, 1)
    write(own, trimmed, recent(5))
    mirrors = {
        "shaky": mirror(own, destination, shaky.topic, give_up_after="1s"),
        "steady": mirror(source, destination, steady.topic),
    }

    def arrive(at: TopicPartition, expected: int) -> None:
        until(lambda: len(read(destination, at)) == expected, f"{at}", 60, PAUSE_SECONDS)

    with running(configured(tmp_path, mirrors)) as rounds:
        arrive(trimmed, 5)
        own_cluster.brokers[0].kill()
        until(lambda: len(rounds.stderr) == 1, "the error", 60)
        write(source, steady, recent(10))
        arrive(steady, 10)
        own_cluster.brokers[0].launch()
        own_cluster.brokers[0].wait_until_serving()
        write(own, shaky, recent(10))
        arrive(shaky, 10)
        until(lambda: len(rounds.stderr) == 2, "the end of the outage", 30)
        error, over = rounds.stderr
        assert error.startswith(f"error: shaky: one broker {own.bootstrap_servers[0]} cannot be")
        assert over.startswith("shaky: over after ")
        assert f": one broker {own.bootstrap_servers[0]} cannot be reached" in over

        rounds.process.send_signal(signal.SIGSTOP)  # so that retention is faster than a round
        write(own, trimmed, recent(5))
        independent.delete_before(own, trimmed, 10)
        rounds.process.send_signal(signal.SIGCONT)
        until(lambda: len(rounds.stderr) == 3, "the loss", 30)
        write(own, shaky, recent(10))
        arrive(shaky, 20)
        assert rounds.stop(signal.SIGINT) == 3
        assert "retention took the offsets" in rounds.stderr[2]
        assert rounds.stderr[2].startswith(f"error: shaky: {trimmed} at offset ")
        assert [line.partition(" after ")[0] for line in rounds.stderr[3:]] == ["stopped"]
        assert {line.partition(": ")[0] for line in rounds.stdout} == {"shaky", "steady"}


@pytest.mark.long
def test_of_two_daemons_one_copies(
    sides: Clusters, tmp_path: Path, topic_name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The second takes over what the first has begun, which then waits, and says so once."""
    source, destination = sides
    here, trap = TopicPartition(topic_name, 0), Trap.unset(tmp_path)
    for cluster in (source, destination):
        create(cluster, topic_name)
    write(source, here, recent(1000))
    mirrors = {"m": mirror(source, destination, topic_name)}

    def arrive() -> None:
        count = len(read(source, here))
        until(lambda: len(read(destination, here)) >= count, "the records", 90, PAUSE_SECONDS)

    trap.set()
    monkeypatch.setenv("RELAY_FAULT", trap.fault)
    with running(configured(tmp_path, mirrors)) as first:
        until(lambda: trap.sprung, "the middle of the copy")
        monkeypatch.delenv("RELAY_FAULT")
        with running(configured(tmp_path, mirrors)) as second:
            arrive()
            for process in psutil.Process(first.process.pid).children(recursive=True):
                process.resume()
            write(source, here, recent(1100)[1000:])
            arrive()
            until(lambda: first.stderr, "what the first says", 30)
            for count in range(1200, 1700, 100):  # both live: one alone copies
                write(source, here, recent(count)[count - 100 :])
                arrive()
                time.sleep(1)
            (waits,) = first.stderr
            assert waits.startswith("m: run ")
            assert waits.endswith("; this one waits until it has ended")
            assert second.stderr == []
            with running(configured(tmp_path, mirrors)) as third:
                until(lambda: third.stderr, "what a third one says", 60)
                assert "which this deployment does not know, copies" in third.stderr[0]
                assert "this mirror, last at 20" in third.stderr[0]
                assert third.stop(signal.SIGTERM) == 130
            second.process.kill()
            second.process.wait()
            write(source, here, recent(1700)[1600:])
            arrive()
            assert "has copied nothing for " in first.stderr[1]
            assert first.stderr[1].endswith(": taking over")
            assert first.stop(signal.SIGTERM) == 130
    assert_equal(records_of(source, here), records_of(destination, here))
