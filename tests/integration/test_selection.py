"""Topics that relay.yaml names and the source does not list: misspelt, missing or hidden."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from relay_pipelines.cli import main
from relay_pipelines.embedded import EmbeddedCluster, Listener
from relay_pipelines.model import TopicPartition
from tests.copying import KEPT, numbered
from tests.support.commands import configured, mirror
from tests.support.independent import create, records_of, write


@pytest.fixture
def topic(source_cluster: EmbeddedCluster, topic_name: str) -> str:
    """Ten records in a topic whose name has a dot."""
    name = f"{topic_name}.orders"
    create(source_cluster.cluster(), name, 1, KEPT)
    write(source_cluster.cluster(), TopicPartition(name, 0), numbered(10))
    return name


def test_a_missing_topic_name_fails_every_command(
    source_cluster: EmbeddedCluster,
    destination_cluster: EmbeddedCluster,
    topic: str,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Commands fail in one line with the nearest name; the other topics are copied."""
    source, destination = source_cluster.cluster(), destination_cluster.cluster()
    create(destination, topic, 1, KEPT)
    misspelt = topic.replace("orders", "odrers")
    allow = [name.replace(".", r"\.") for name in (topic, misspelt)]
    config = configured(tmp_path, {"m": mirror(source, destination, *allow)})
    what = f"m: topics.allow names {misspelt!r}, and node one (127.0.0.1:"
    meant = f"shows no such topic; did you mean {topic!r}"  # and perhaps topics of other tests

    assert main(["check", "-c", str(config)]) == 1
    (line,) = [line for line in capsys.readouterr().out.splitlines() if misspelt in line]
    assert line.startswith(f"error   {what}")
    assert meant in line
    assert line.endswith("? If it exists, grant the user Describe on it")
    assert main(["plan", "-c", str(config)]) == 1
    said = capsys.readouterr()
    assert topic in said.out
    assert said.err.startswith(f"error: {what}")
    assert main(["status", "-c", str(config)]) == 0
    assert capsys.readouterr().err.startswith(f"warning: {what}")
    assert main(["run", "-c", str(config)]) == 1
    (line,) = [line for line in capsys.readouterr().err.splitlines() if line.startswith("error: ")]
    assert line.startswith(f"error: {what}")
    assert meant in line
    assert line.endswith("? If it exists, grant the user Describe on it")
    assert len(records_of(destination, TopicPartition(topic, 0))) == 10
    assert main(["run", "-c", str(config)]) == 1, "also with nothing new"
    assert main(["run", "-c", str(config), "--topic", topic]) == 0, "the others do not matter"


def test_a_pattern_without_a_match_is_a_warning(
    source_cluster: EmbeddedCluster,
    destination_cluster: EmbeddedCluster,
    topic: str,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """The topic may not exist yet, so commands warn with the nearest names."""
    pattern = topic.replace("orders", "odrers") + ".*"
    config = configured(
        tmp_path, {"m": mirror(source_cluster.cluster(), destination_cluster.cluster(), pattern)}
    )
    for command in ("plan", "status", "run"):
        assert main([command, "-c", str(config)]) == 0
        (line,) = capsys.readouterr().err.splitlines()
        assert re.match(
            r"warning: m: no topic is selected: topics.allow and topics.deny select none of"
            r" the \d+ topics that node one \(.*\) shows",
            line,
        ), line
        assert f"did you mean {topic!r}" in line
        assert line.endswith("If there are more, grant the user Describe on them")
    assert main(["plan", "-c", str(config), "--json"]) == 0
    (shown,) = json.loads(capsys.readouterr().out)["mirrors"]
    assert shown["windows"] == []


def test_a_user_without_describe_sees_an_empty_cluster(
    guarded: EmbeddedCluster,
    destination_cluster: EmbeddedCluster,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Brokers hide topics that a user may not describe, and the line says so."""
    hidden = guarded.cluster(Listener.SASL_PLAINTEXT, username="unfollowed")
    create(guarded.cluster(), "hidden-orders")
    config = configured(tmp_path, {"m": mirror(hidden, destination_cluster.cluster(), "hidden-.*")})
    assert main(["run", "-c", str(config)]) == 0
    said = capsys.readouterr()
    assert said.out == "m: nothing new in 0 topics\n"
    assert said.err.startswith("warning: m: no topic is selected: ")
    assert "grant the user Describe" in said.err
