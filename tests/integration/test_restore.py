"""Checkpoints and ledger are lost, or put back: a run stops, and `relay restore` is the way on."""

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest

from relay_pipelines.cli import main
from relay_pipelines.errors import (
    CheckpointLostError,
    LedgerLostError,
    TopicRecreatedError,
    WrongClusterError,
)
from relay_pipelines.ledger import checkpoint, ledger_topic, reader, state_table
from relay_pipelines.model import Checkpoint, LedgerEntry, OffsetRange, TopicPartition
from relay_pipelines.recovery import restore
from relay_pipelines.recovery.restore import Act
from relay_pipelines.run import run_plan
from relay_pipelines.settings import Mirror
from relay_pipelines.sides import Sides
from relay_pipelines.snapshot.read_clusters import take_snapshot
from tests.copying import KEPT, Clusters, forget_homes, numbered, records_of
from tests.support import commands
from tests.support.address import Address
from tests.support.copied_topic import CLOCK, Copied, put_back, source_recreated
from tests.support.independent import CREATE_TIME, Record, create, delete, settled_end, write


@pytest.fixture
def copied(sides: Clusters, topic_name: str) -> Iterator[Copied]:
    """Ten records were copied, then ten more; ten wait."""
    made = Copied(*sides, topic_name)
    made.write(10, 10)
    yield made
    forget_homes(made.destination)


def run_on(copied: Copied) -> None:
    """Copy the next ten, and write ten more."""
    copied.copy(copied.snapshot())
    copied.write(20, 10)


def state_of(copied: Copied, topic: str) -> list[Record]:
    """Return what a state topic holds of the mirror, with the times of its records."""
    return [
        record
        for home in checkpoint.homes(topic)
        for record in records_of(copied.destination, home)
        if (record.key or b"").startswith(f"{copied.name}/".encode())
    ]


class Command:
    """The command line, on a relay.yaml with one mirror."""

    def __init__(self, copied: Copied, folder: Path) -> None:
        self._config = str(commands.configured(folder, {copied.name: copied.settings()}))

    def __call__(self, *arguments: str) -> int:
        return main(["-c", self._config, *arguments])


@pytest.fixture
def relay(copied: Copied, tmp_path: Path) -> Command:
    return Command(copied, tmp_path)


def assert_goes_on(copied: Copied, relay: Command) -> None:
    """Copy what waits; every record arrives once, and audits find nothing wrong."""
    (went_on,) = copied.copy(copied.snapshot())
    assert (went_on.start, went_on.end) == (20, 30)
    assert copied.arrived() == copied.expected
    assert relay("audit", "--level", "ledger") == 0
    assert not copied.chain().breaks


@pytest.mark.parametrize("how", ["created again", "written again", "created empty"])
def test_checkpoints_are_made_again(
    copied: Copied, relay: Command, how: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """Whatever the topic holds now, the ledger has the newest entries, and the copies are there."""
    saved = state_of(copied, checkpoint.TOPIC)
    run_on(copied)
    put_back(copied, saved, how)
    assert type(copied.loss()) is CheckpointLostError

    capsys.readouterr()
    assert relay("restore") == 0
    said = capsys.readouterr().out
    was = "it is gone" if how == "created empty" else "it said offset 10"
    line = f"{copied.at}: its checkpoint is made again: at offset 20, as ledger entry 2 says; {was}"
    assert line in said
    assert "nothing is changed; add --execute to do it" in said
    assert type(copied.loss()) is CheckpointLostError, "it has only shown it"

    assert relay("restore", "--execute") == 0
    assert_goes_on(copied, relay)
    assert relay("restore") == 0
    assert "1 topic-partition of 1 need nothing" in capsys.readouterr().out


def test_another_cluster_gets_no_checkpoint(copied: Copied) -> None:
    """One that answers at the address once it is planned was not looked at."""
    delete(copied.destination, checkpoint.TOPIC)
    with Address(copied.destination) as address:
        settings = copied.settings() | {"destination": commands.at(address.cluster)}
        sides = Sides(copied.name, Mirror.model_validate(settings), CLOCK)
        (planned,) = restore.plan_restores(sides)
        assert planned.act is Act.AGAIN
        address.lead_to(copied.source)
        with pytest.raises(WrongClusterError):
            list(restore.execute(sides, [planned]))


def test_a_source_that_was_created_again_meanwhile(copied: Copied, relay: Command) -> None:
    """The record that the restore takes from the copies tells that the source has another log."""
    run_on(copied)
    put_back(copied, [], "created empty")
    delete(copied.source, copied.topic)
    create(copied.source, copied.topic, 1, KEPT)
    write(copied.source, copied.at, numbered(40, first=500))
    assert relay("restore", "--execute") == 0
    assert type(copied.loss()) is TopicRecreatedError


NOTHING: dict[str, Any] = {
    "records": 0,
    "batches": 0,
    "size_bytes": 0,
    "codecs": {},
    "digest": f"{0:08x}",
}


def forge(copied: Copied, known: Checkpoint, entry: LedgerEntry) -> None:
    """Write a ledger entry that links to the newest one."""
    _, (key, value, at_ms) = ledger_topic.chained(known, entry)
    home = checkpoint.home(ledger_topic.TOPIC, key)
    write(copied.destination, home, [Record(key, value, (), (CREATE_TIME, at_ms))])


@pytest.mark.parametrize(
    ("generation", "gap", "source"),
    [(0, "", (20, 30)), (0, ledger_topic.ENTRIES_LOST, (5_000, 5_000)), (1, "reset", (0, 0))],
    ids=["never copied", "entries lost", "reset"],
)
def test_what_no_copies_confirm_is_not_gone_on_from(
    copied: Copied,
    relay: Command,
    generation: int,
    gap: str,
    source: tuple[int, int],
    capsys: pytest.CaptureFixture[str],
) -> None:
    """A forged entry would move the checkpoint anywhere: a restore looks at the copies."""
    run_on(copied)
    known, entry = checkpoint_of(copied), copied.ledger()[-1]
    start = settled_end(copied.destination, copied.to)
    write(copied.destination, copied.to, numbered(10, first=900))
    forged = replace(entry, gap=gap, source=OffsetRange(copied.at, *source))
    to = OffsetRange(copied.to, start, start + 10)
    forged = replace(forged, **NOTHING) if gap else replace(forged, destination=to)
    forge(copied, replace(known, generation=known.generation + generation), forged)
    assert type(copied.loss()) is CheckpointLostError
    assert relay("restore", "--execute") == 4
    error = capsys.readouterr().err
    assert f"{copied.at}: cannot be restored: {copied.to}@" in error or "ledger entry 3" in error
    assert checkpoint_of(copied) == known


def test_copies_of_another_entry_confirm_none(copied: Copied, relay: Command) -> None:
    """A forged entry of records that are not copied yet names the copies of an earlier one."""
    run_on(copied)
    known = checkpoint_of(copied)
    forge(copied, known, replace(copied.ledger()[-1], source=OffsetRange(copied.at, 20, 30)))
    write(copied.destination, copied.to, numbered(1, first=900))
    assert type(copied.loss()) is CheckpointLostError
    assert relay("restore", "--execute") == 4
    assert checkpoint_of(copied) == known


def checkpoint_of(copied: Copied) -> Checkpoint:
    return take_snapshot(Sides(copied.name, copied.mirror(), CLOCK)).checkpoints[copied.at]


@pytest.mark.parametrize("change", ["no checkpoint", "another offset"])
def test_a_checkpoint_that_no_mirror_wrote(
    copied: Copied, relay: Command, change: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """Whatever looks says so in a line; a restore makes the last one again."""
    run_on(copied)
    known = checkpoint_of(copied)
    key, value, at_ms = checkpoint.to_record(replace(known, next_offset=0))
    value = b"rubbish" if change == "no checkpoint" else value
    home = checkpoint.home(checkpoint.TOPIC, key)
    write(copied.destination, home, [Record(key, value, (), (CREATE_TIME, at_ms))])
    assert relay("audit", "--level", "ledger") == 4
    error = capsys.readouterr().err
    assert "unexpected" not in error
    assert ("is no checkpoint of it" in error) or ("checkpoint says another source" in error)
    assert relay("restore", "--execute") == 0
    assert_goes_on(copied, relay)


@pytest.mark.parametrize("how", ["deleted", "created again"])
def test_a_ledger_is_made_again(
    copied: Copied, relay: Command, how: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """The checkpoints stay; what their heads name is noted as lost, and the chain goes on."""
    run_on(copied)
    delete(copied.destination, ledger_topic.TOPIC)
    if how == "deleted":
        loss = copied.loss()
        assert (type(loss), loss.exit_code) == (LedgerLostError, 3)
        assert relay("check") == 3
        assert f"{copied.at}: the topic __relay_ledger is gone" in capsys.readouterr().out
    else:
        create(copied.destination, ledger_topic.TOPIC, checkpoint.PARTITIONS, ledger_topic.CONFIGS)
    assert relay("audit", "--level", "ledger") == 4
    assert relay("restore") == 0
    assert (
        f"{copied.at}: its checkpoint stays, and the ledger goes on: ledger entries 1 to 2: missing"
        in capsys.readouterr().out
    )
    assert relay("restore", "--execute") == 0
    assert copied.chain().lost == 2
    assert_goes_on(copied, relay)
    assert relay("audit", "--level", "ledger") == 0
    said = capsys.readouterr().out
    assert "ledger entries that were lost, as `relay restore` has noted: 2" in said


def put_both_back(copied: Copied) -> None:
    """Copy ten more records, then put checkpoints and ledger back to before that."""
    saved = {topic: state_of(copied, topic) for topic in (checkpoint.TOPIC, ledger_topic.TOPIC)}
    run_on(copied)
    for topic, configs in (
        (checkpoint.TOPIC, checkpoint.CONFIGS),
        (ledger_topic.TOPIC, ledger_topic.CONFIGS),
    ):
        delete(copied.destination, topic)
        create(copied.destination, topic, checkpoint.PARTITIONS, configs)
        for record in saved[topic]:
            key = (record.key or b"").removesuffix(b"/owner")
            write(copied.destination, checkpoint.home(topic, key), [record])


@pytest.mark.parametrize("source", ["the same", "created again"])
def test_a_copy_that_nothing_knows_is_made_again(
    copied: Copied, tmp_path: Path, source: str
) -> None:
    """Only the copies show who wrote it; nothing accepts it twice, all is copied anew."""
    put_both_back(copied)
    assert (
        reader.read_checkpoints(Sides(copied.name, copied.mirror(), CLOCK)).next_offsets[copied.at]
        == 10
    )
    (planned,) = restore.plan_restores(Sides(copied.name, copied.mirror(), CLOCK))
    assert planned.act is Act.STAYS
    assert Command(copied, tmp_path)("audit", "--level", "recount") == 4
    if source == "created again":
        source_recreated(copied)
    (held,) = run_plan.plan(copied.snapshot("continue")).held
    assert type(held) is CheckpointLostError
    goes_on = "the mirror's own records go on at offset 11 of the destination"
    assert source == "created again" or goes_on in str(held)

    copied.to = TopicPartition(f"again.{copied.topic}", 0)
    create(copied.destination, copied.to.topic, 1, KEPT)
    relay = Command(copied, tmp_path)
    assert relay("reset", "--topic", copied.topic, "--to-earliest", "--execute") == 0
    (again,) = copied.copy(copied.snapshot())
    assert (again.start, again.end) == (0, 12 if source == "created again" else 30)
    assert copied.arrived() == records_of(copied.source, copied.at)


def test_a_run_beside_another_one_loses_no_checkpoint(copied: Copied) -> None:
    """It reads the checkpoints before the other one commits, and its copies after that."""
    reading = state_table.read_state
    others: list[str] = []

    def read_before_others(*told: Any, **more: Any) -> Any:
        found = reading(*told, **more)
        if not others:
            others.append("a run")
            run_on(copied)
        return found

    with patch("relay_pipelines.snapshot.read_clusters.read_state", read_before_others):
        taken = take_snapshot(Sides(copied.name, copied.mirror(), CLOCK))
    assert not run_plan.plan(taken).held
    assert taken.checkpoints[copied.at].next_offset == 20
