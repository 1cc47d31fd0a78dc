"""Topics that relay.yaml names and the source does not list: misspelt, missing or hidden."""

import json
import re
from pathlib import Path

import pytest
from confluent_kafka.admin import AclOperation

from relay_pipelines.cli import main
from relay_pipelines.errors import PermissionDeniedError, RelayError, SourceError
from relay_pipelines.ledger import checkpoint
from relay_pipelines.local_kafka import Listener, LocalCluster
from relay_pipelines.metrics.exporter import samples
from relay_pipelines.model import TopicPartition
from relay_pipelines.page.look import Looker
from relay_pipelines.prepare import topics
from relay_pipelines.recovery.reset import ResetTo, plan_resets
from relay_pipelines.run import run_plan
from relay_pipelines.settings import Mirror, load
from relay_pipelines.sides import Sides
from relay_pipelines.snapshot import read_clusters
from tests.copying import KEPT, Clusters, ensure_homes, numbered, records_of
from tests.integration.guarded import Permitted
from tests.support.acls import DENY, acl, grant
from tests.support.commands import at, configured, mirror, relay_here
from tests.support.consumers import commit
from tests.support.independent import create, delete, delete_before, write
from tests.support.planned_copy import at_destination, copy_planned, prepared

pytestmark = pytest.mark.usefixtures("local_session")


@pytest.fixture
def topic(source_cluster: LocalCluster, topic_name: str) -> str:
    """Ten records in a topic whose name has a dot."""
    name = f"{topic_name}.orders"
    create(source_cluster.cluster(), name, 1, KEPT)
    write(source_cluster.cluster(), TopicPartition(name, 0), numbered(10))
    return name


def test_a_missing_topic_name_fails_every_command(
    sides: Clusters, topic: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Commands fail in one line with the nearest name; the other topics are copied."""
    source, destination = sides
    create(destination, topic, 1, KEPT)
    misspelt = topic.replace("orders", "odrers")
    allow = [name.replace(".", r"\.") for name in (topic, misspelt)]
    config = configured(tmp_path, {"m": mirror(source, destination, *allow)})
    what = f"m: topics.allow names {misspelt!r}, and upstream one (127.0.0.1:"
    meant = f"has no such topic; did you mean {topic!r}"  # and perhaps topics of other tests

    assert main(["check", "-c", str(config)]) == 1
    (line,) = [line for line in capsys.readouterr().out.splitlines() if misspelt in line]
    assert line.startswith(f"error   {what}")
    assert meant in line
    assert line.endswith("? create it, or remove it from topics.allow")
    assert main(["plan", "-c", str(config)]) == 1
    said = capsys.readouterr()
    assert topic in said.out
    assert said.err.startswith(f"error: {what}")
    assert main(["status", "-c", str(config)]) == 0
    assert f"  note       {what.removeprefix('m: ')}" in capsys.readouterr().out
    assert main(["run", "-c", str(config)]) == 1
    (line,) = [line for line in capsys.readouterr().err.splitlines() if line.startswith("error: ")]
    assert line.startswith(f"error: {what}")
    assert meant in line
    assert line.endswith("? create it, or remove it from topics.allow")
    assert len(records_of(destination, TopicPartition(topic, 0))) == 10
    assert main(["run", "-c", str(config)]) == 1, "also with nothing new"
    assert main(["run", "-c", str(config), "--topic", topic]) == 0, "the others do not matter"


def test_a_hidden_topic_that_relay_yaml_names(
    guarded: LocalCluster,
    destination_cluster: LocalCluster,
    topic_name: str,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Brokers hide topics that a user may not describe."""
    hidden = guarded.cluster(Listener.SASL_PLAINTEXT, username="unfollowed")
    there, name = destination_cluster.cluster(), f"{topic_name}.hidden"
    create(guarded.cluster(), name)
    for spelling in (name, name.replace(".", r"\.")):
        config = configured(tmp_path, {"m": mirror(hidden, there, spelling)})
        assert main(["run", "-c", str(config)]) == 1, spelling
        said = capsys.readouterr()
        assert said_of(said.err, "m") == [name]
        assert "nothing new" not in said.out
    config = configured(tmp_path, {"m": mirror(hidden, there, f"{name}.*")})
    assert main(["run", "-c", str(config)]) == 0, "nobody knows that it exists"
    said = capsys.readouterr()
    none = "m: no topic is selected: "
    assert said.out == f"{none}nothing was compared, and there is nothing to copy\n"
    assert said.err.startswith(f"warning: {none}")
    assert "grant the user Describe" in said.err


@pytest.mark.parametrize("side", [0, 1])
def test_what_a_comparison_may_not_read(
    guarded: LocalCluster,
    destination_cluster: LocalCluster,
    topic_name: str,
    tmp_path: Path,
    side: int,
) -> None:
    """It names a topic or group that is hidden or unreadable on one side, and does not pass."""
    permitted, other = Permitted(guarded, topic_name), destination_cluster.cluster()
    hidden, unread, undescribed, group = (
        f"{topic_name}-{what}" for what in ("hidden", "unread", "undescribed", "group")
    )
    for topic in (topic_name, hidden, unread, undescribed):
        permitted.create(topic)
        create(other, topic, 1, KEPT)
        for cluster in (guarded.cluster(), other):
            write(cluster, TopicPartition(topic, 0), numbered(3))
    for cluster in (guarded.cluster(), other):
        commit(cluster, group, TopicPartition(topic_name, 0), 1)
    permitted.allow()
    permitted.hide(hidden)
    permitted.forbid_reading(unread)
    grant(
        guarded.cluster(), [acl(undescribed, permitted.user, AclOperation.DESCRIBE_CONFIGS, DENY)]
    )
    sides = [permitted.as_user(), other]
    clusters = sides[side], sides[1 - side]
    config = configured(tmp_path, {"m": mirror(*clusters, topic_name, hidden)})
    for asked, code, named in (
        (["--topics", topic_name], 0, ""),
        ([], 1, hidden),
        (["--topics", topic_name, "--topics", hidden], 1, hidden),
        (["--topics", f"{topic_name}(-unread)?"], 1, unread),
        (["--topics", f"{topic_name}(-undescribed)?"], 1, undescribed),
        (["--topics", topic_name, "--groups", f"{group}.*"], 1, group),
    ):
        done = relay_here(config, "compare", *asked)
        assert done.returncode == code, done.stderr
        assert named in done.stderr
        is_compared = "3 of 3 records compared by content" in f"{done.stdout}{done.stderr}"
        assert is_compared == (named != group), done.stderr
    part = ["--topics", f"{topic_name}(-unread)?", "--partition", "0", "--from", "1"]
    done = relay_here(config, "compare", *part, "--json")
    assert (done.returncode, unread in done.stderr) == (1, True)
    assert topic_name in [pair["topic"] for pair in json.loads(done.stdout)["pairs"]]


def test_a_topic_that_the_mirror_knows_is_hidden(
    guarded: LocalCluster,
    destination_cluster: LocalCluster,
    topic_name: str,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Every command fails in one line per topic, and copies the other topics."""
    permitted = Permitted(guarded, topic_name)
    shown, copied, fresh, gone = (
        permitted.create(f"{topic_name}{suffix}") for suffix in ("", "-copied", "-fresh", "-gone")
    )
    named = permitted.create(f"{topic_name}-named")
    permitted.allow()
    permitted.hide(named)
    destination = destination_cluster.cluster()
    name = f"m-{topic_name[-8:]}"
    patterns = [f"{topic_name}(-copied|-fresh|-gone)?", named]
    settings = mirror(permitted.as_user(), destination, *patterns, start="latest")
    config = str(configured(tmp_path, {name: settings}))
    for topic in (shown, copied):
        create(destination, topic, 1, KEPT)
    hidden = [copied, fresh, named]

    assert main(["run", "-c", config]) == 1, "the first run fixes where the topics start"
    assert said_of(capsys.readouterr().err, name) == [named]
    for topic, count in ((shown, 3), (copied, 3)):
        permitted.write(topic, count)
    assert main(["run", "-c", config]) == 1
    capsys.readouterr()
    for topic in (shown, copied, fresh):
        permitted.write(topic, 7)
    permitted.hide(copied, fresh)
    delete(guarded.cluster(), gone)
    permitted.wait(gone, is_shown=False)

    assert main(["check", "-c", config]) == 1
    lines = [line for line in capsys.readouterr().out.splitlines() if line.startswith("error")]
    assert said_of("\n".join(lines).replace("error  ", "error:"), name) == hidden
    assert main(["status", "-c", config]) == 1
    page = capsys.readouterr().out
    for line in (
        f"  held back  {', '.join(hidden)} (3 topic-partitions, unknown how much waits)",
        f"  note       {gone}: it was selected",
        "  waiting    7 records",
    ):
        assert line in page
    for command in ("plan", "run", "run"):
        assert main([command, "-c", config]) == 1
        said = capsys.readouterr()
        assert said_of(said.err, name) == hidden, command
        assert f"warning: {name}: {gone}: it was selected" in said.err
    assert main(["status", "-c", config, "--json"]) == 1
    ((held,),) = (each["held"] for each in json.loads(capsys.readouterr().out)["mirrors"])
    assert (held["reason"], held["lag_records"]) == ("PermissionDeniedError", None)
    assert main(["run", "-c", config, "--topic", copied]) == 1
    assert said_of(capsys.readouterr().err, name) == [copied]
    assert main(["run", "-c", config, "--topic", shown]) == 0
    assert len(records_of(destination, TopicPartition(shown, 0))) == 10
    assert len(records_of(destination, TopicPartition(copied, 0))) == 3
    capsys.readouterr()

    looker = Looker(Sides(name, load(Path(config)).mirror(name)))
    found = samples(looker.look(), by_partition=True)
    held_back = {sample.labels: sample.value for sample in found if sample.name == "held_back"}
    assert held_back == {(name, topic, "", "PermissionDeniedError"): 1 for topic in hidden}

    permitted.show(*hidden)
    assert main(["run", "-c", config]) == 0
    assert len(records_of(destination, TopicPartition(copied, 0))) == 10
    assert len(records_of(destination, TopicPartition(fresh, 0))) == 7


def said_of(text: str, name: str) -> list[str]:
    """The hidden topics of the error lines, each of which says what to do."""
    found = []
    for line in text.splitlines():
        if line.startswith("error:"):
            match = re.fullmatch(
                rf"error: {name}: (.*)-0: one \(.*\) answered Metadata of topic (.*) with"
                r" TOPIC_AUTHORIZATION_FAILED; grant the user Describe on topic (.*), or, if it was"
                r" deleted, add it to topics.deny",
                line,
            )
            assert match, line
            assert len(set(match.groups())) == 1
            found.append(match[1])
    return found


def test_a_topic_that_may_not_be_read_holds_back_no_other(
    guarded: LocalCluster, destination_cluster: LocalCluster, topic_name: str
) -> None:
    """It was created again, so that its last record would have to be compared."""
    permitted, destination = Permitted(guarded, topic_name), destination_cluster.cluster()
    refused, other = (permitted.create(topic_name + suffix) for suffix in ("", "-other"))
    for topic in (refused, other):
        permitted.write(topic, 5)
        create(destination, topic, 1, KEPT)
    ensure_homes(destination)
    permitted.allow()
    read = Mirror.model_validate(mirror(permitted.as_user(), destination, refused, other))

    def copy() -> list[RelayError]:
        taken = read_clusters.take_snapshot(Sides(topic_name[-8:], read))
        copy_planned(taken)
        return list(run_plan.plan(taken).held)

    assert copy() == []
    permitted.forbid_reading(refused)
    delete(guarded.cluster(), refused)
    permitted.create(refused)
    permitted.wait(refused, is_shown=True)
    for topic in (refused, other):
        permitted.write(topic, 7)
    (held,) = copy()
    assert (type(held), held.topic_partition) == (PermissionDeniedError, TopicPartition(refused, 0))
    arrived = [len(records_of(destination, TopicPartition(topic, 0))) for topic in (refused, other)]
    assert arrived == [5, 12]


def test_an_upstream_that_hides_a_topic_may_have_its_records(
    guarded: LocalCluster, sides: Clusters, topic: str
) -> None:
    """What the other upstream lost is not given up, and no new copy begins after it."""
    permitted, (source, destination) = Permitted(guarded, topic), sides
    fresh, name = f"{topic}-fresh", f"m-{topic[-15:-7]}"
    for each in (permitted.create(topic), permitted.create(fresh)):
        permitted.write(each, 10)
        create(destination, f"copy.{each}", 1, KEPT)
    ensure_homes(destination)
    permitted.allow()
    settings = mirror(
        source,
        destination,
        *(topic, fresh),
        topics={"rename": "copy.{topic}"},
        on_data_loss="continue",
        give_up_after="1s",
    )
    hiding = {"name": "two", **at(permitted.as_user())}
    settings["source"]["upstreams"].append(hiding)
    both = Mirror.model_validate(settings)

    copy_planned(prepared(name, both, topic))
    for cluster in (source, guarded.cluster()):
        write(cluster, TopicPartition(topic, 0), numbered(10, first=10))
    create(source, fresh, 1, KEPT)
    write(source, TopicPartition(fresh, 0), numbered(10))
    for each, offset in ((topic, 15), (fresh, 5)):
        delete_before(source, TopicPartition(each, 0), offset)
    permitted.hide(topic, fresh)

    taken = prepared(name, both)
    assert (taken.upstream.name, taken.accepted, taken.news) == ("one", (), [])
    held = {error.topic_partition: error for error in run_plan.plan(taken).held}
    assert held.keys() == {TopicPartition(topic, 0), TopicPartition(fresh, 0)}
    for error in held.values():
        assert (type(error), error.exit_code) == (SourceError, 1)
        assert "two does not answer: the user lacks Describe on the topic there" in str(error)
        assert "start that upstream, grant what it refuses, or remove it" in str(error)
    permitted.show(topic, fresh)
    copy_planned(prepared(name, both))
    for each, count in ((topic, 20), (fresh, 10)):
        copies = records_of(destination, TopicPartition(f"copy.{each}", 0))
        assert copies == records_of(guarded.cluster(), TopicPartition(each, 0))
        assert len(copies) == count


def test_copies_that_are_hidden_are_not_gone(
    guarded: LocalCluster, source_cluster: LocalCluster, topic: str
) -> None:
    """Nothing is accepted or reset, as if their topic had been deleted; others are copied."""
    source, permitted = source_cluster.cluster(), Permitted(guarded, topic, "owner")
    ensure_homes(guarded.cluster())
    name, other = f"m-{topic[-15:-7]}", f"{topic}-other"
    create(source, other, 1, KEPT)
    write(source, TopicPartition(other, 0), numbered(10))
    for each in (topic, other):
        permitted.create(each)
    mine = Mirror.model_validate(
        mirror(
            *(source, permitted.as_user(), topic, other),
            on_data_loss="continue",
            give_up_after="1s",
        )
    )
    copy_planned(prepared(name, mine))
    for each in (topic, other):
        write(source, TopicPartition(each, 0), numbered(5, first=10))
    permitted.hide(topic)

    taken = prepared(name, mine)
    assert taken.accepted == ()
    (error,) = run_plan.plan(taken).held
    assert str(error).endswith(f"; grant the user Describe on topic {topic}")
    assert not [each for each in plan_resets(taken, ResetTo.EARLIEST) if not each.stays]
    assert at_destination(taken, topics.create) == {}
    copy_planned(taken)
    permitted.hide(checkpoint.TOPIC)
    try:
        with pytest.raises(PermissionDeniedError, match=f"Describe on topic {checkpoint.TOPIC}$"):
            prepared(name, mine)
    finally:
        permitted.show(topic, checkpoint.TOPIC)
    copy_planned(prepared(name, mine))
    for each in (topic, other):
        at_source = records_of(source, TopicPartition(each, 0))
        assert records_of(guarded.cluster(), TopicPartition(each, 0)) == at_source
