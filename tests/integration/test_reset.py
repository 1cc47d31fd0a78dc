"""`relay reset` on real brokers: how the copy goes on when the copies are elsewhere, or gone."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from relay_pipelines import errors
from relay_pipelines.audit import audit
from relay_pipelines.audit.request import AuditRequest, Level
from relay_pipelines.cli import inspect_commands
from relay_pipelines.copy.task import copy_ranges
from relay_pipelines.errors import CheckpointLostError, ConfigError, DestinationChangedError
from relay_pipelines.invocation import Invocation
from relay_pipelines.ledger import checkpoint, reader
from relay_pipelines.model import CopyJob, Status, TopicPartition
from relay_pipelines.recovery import command, reset
from relay_pipelines.recovery.reset import ResetTo
from relay_pipelines.run import preflight, run_plan
from relay_pipelines.sides import Sides
from relay_pipelines.snapshot import read_clusters
from tests.copying import KEPT, Clusters, records_of
from tests.support import commands, copied_topic
from tests.support.copied_topic import CLOCK, Copied, destination_deleted, put_back
from tests.support.findings import compared, differences, unreadable
from tests.support.independent import Record, create, delete, delete_before


class Moved(Copied):
    """A topic-partition of which ten records were copied; relay.yaml may then name another one."""

    folder: Path
    capsys: pytest.CaptureFixture[str]

    def rename(self, name: str = "other", partition: int = 0) -> None:
        """Let relay.yaml name another destination from now on."""
        self.to = TopicPartition(f"{name}.{self.topic}", partition)
        self.expected = []

    def create_destination(self) -> None:
        create(self.destination, self.to.topic, self.to.partition + 1, KEPT)

    def reset(self, to: ResetTo, *, execute: bool = True) -> tuple[int, str]:
        """Run the command; return its exit code and its lines."""
        config = commands.configured(self.folder, {self.name: self.settings()})
        code = command.run_reset(Invocation(config), None, self.topic, to, execute=execute)
        out, err = self.capsys.readouterr()
        return code, (out + err).replace(f"{self.name}: ", "")

    def inspect(self) -> dict[str, Any]:
        """Return exit code and errors of `plan` and `status`, and what `status --json` shows."""
        config = commands.configured(self.folder, {self.name: self.settings()})
        plan = inspect_commands.plan(Invocation(config), [], None, why=False, as_json=False)
        planned = self.capsys.readouterr().err
        status = inspect_commands.status(Invocation(config), [], everything=False, as_json=False)
        shown = self.capsys.readouterr().out
        inspect_commands.status(Invocation(config), [], everything=False, as_json=True)
        document = json.loads(self.capsys.readouterr().out)
        (topic,) = document["mirrors"][0]["topics"]
        return {
            "plan": (plan, planned),
            "status": (status, shown),
            "topic_partitions": topic["topic_partitions"],
        }

    def copy_new(self) -> None:
        self.copy(self.snapshot())

    def audits(self) -> list[tuple[str, int]]:
        """Return outcome and audited offsets of the audits of every level."""
        found: list[tuple[str, int]] = []
        for level in (Level.LEDGER, Level.RECOUNT, Level.FULL):
            sides = Sides(self.name, self.mirror(), CLOCK)
            audited = compared(audit.begin(sides, AuditRequest(level=level)))
            assert (differences(audited), unreadable(audited)) == ([], [])
            offsets = sum(len(each.coverage.range) for each in audited.partitions.values())
            found.append((audited.verdict.state, offsets))
        return found


@pytest.fixture
def moved(
    sides: Clusters, topic_name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> Moved:
    made = Moved(*sides, topic_name)
    made.folder, made.capsys = tmp_path, capsys
    return made


def agreeing(offsets: int) -> list[tuple[str, int]]:
    """Return what `audits` returns if every level agrees; the ledger's own reads no record."""
    return [("agrees", offsets)] * 3


def test_a_topic_is_copied_again_elsewhere(moved: Moved) -> None:
    """First it is only shown; then everything that the source still has is copied again."""
    former, copies = moved.to, moved.arrived()
    delete_before(moved.source, moved.at, 4)
    moved.rename()
    moved.create_destination()

    shown = moved.reset(ResetTo.EARLIEST, execute=False)
    where = f"from offset 4 into {moved.to}; the copies of the offsets before 10 are in {former}"
    assert shown == (
        0,
        f"{moved.at}: is copied again {where}\nnothing is changed; add --execute to do it\n",
    )
    assert (len(moved.ledger()), moved.reached()) == (1, {moved.at: 10})

    assert moved.reset(ResetTo.EARLIEST) == (0, f"{moved.at}: is copied again {where}\n")
    stays = f"none of its records is copied to {moved.to} yet, and it goes on at offset"
    for to in ResetTo:
        assert moved.reset(to) == (0, f"{moved.at}: stays as it is: {stays} 4\n")
    nothing = [("agrees", 0), ("nothing to verify", 0), ("nothing to verify", 0)]
    assert moved.audits() == nothing
    moved.write(10, 5)
    moved.copy_new()
    assert moved.arrived() == records_of(moved.source, moved.at)
    assert records_of(moved.destination, former) == copies
    before, reset, after = moved.ledger()
    assert (reset.source.start, reset.source.end, after.source.start) == (4, 4, 4)
    assert reset.gap == f"`relay reset --to-earliest`: it is copied again {where}"
    assert [entry.generation for entry in (before, reset, after)] == [0, 1, 1]
    assert not moved.chain().breaks
    assert moved.audits() == agreeing(11)

    _, shown_again = moved.reset(ResetTo.EARLIEST)
    assert f"stays as it is: its copies are in {moved.to}, as relay.yaml says" in shown_again


def test_a_topic_goes_on_elsewhere(moved: Moved) -> None:
    """Earlier copies stay where they are; what is copied again after a later reset says so."""
    former = moved.to
    moved.rename()
    moved.create_destination()
    where = f"into {moved.to}; the copies of the offsets before 10 are in {former}"
    assert moved.reset(ResetTo.CURRENT) == (0, f"{moved.at}: goes on at offset 10 {where}\n")
    moved.write(10, 5)
    moved.copy_new()
    assert moved.arrived() == moved.expected
    assert moved.audits() == agreeing(5)

    moved.to = former
    code, lines = moved.reset(ResetTo.EARLIEST)
    assert code == 0
    assert f"is copied again from offset 0 into {former}" in lines
    assert f"{former} already holds the offsets [0, 11)" in lines
    moved.copy_new()
    assert moved.arrived()[10:] == records_of(moved.source, moved.at)
    assert moved.audits() == agreeing(15)


@pytest.mark.parametrize("to", ResetTo)
@pytest.mark.parametrize("kept", ["before the reset", "after the reset"])
def test_a_checkpoint_that_was_put_back_decides_nothing(
    moved: Moved, kept: str, to: ResetTo
) -> None:
    """One of before a reset, or of right after it, does not make the records since come again."""
    saved = [checkpoint_of(moved)]
    moved.rename()
    moved.create_destination()
    assert moved.reset(ResetTo.CURRENT)[0] == 0
    saved.append(checkpoint_of(moved))
    moved.write(10, 5)
    moved.copy_new()
    assert moved.audits() == agreeing(5)
    put_back(moved, [saved[kept == "after the reset"]], "written again")

    moved.write(15, 5)
    assert isinstance(held_back(moved), CheckpointLostError)
    code, lines = moved.reset(to)
    assert (code, "is copied again" in lines, "goes on at" in lines) == (3, False, False)
    assert "according to the ledger it was copied up to offset 15" in lines
    assert "`relay restore --mirror" in lines
    assert [entry.number for entry in moved.ledger()] == [1, 2, 3]
    assert moved.arrived() == moved.expected[:5]


def checkpoint_of(moved: Moved) -> Record:
    key = checkpoint.key_of(moved.name, moved.at)
    found = records_of(moved.destination, checkpoint.home(checkpoint.TOPIC, key))
    return [record for record in found if record.key == key][-1]


def test_a_lost_destination_is_copied_again(moved: Moved) -> None:
    """The destination topic was deleted, and is created again under the same name."""
    destination_deleted(moved)
    code, lines = moved.reset(ResetTo.EARLIEST)
    where = f"from offset 0 into {moved.to}; the copies of the offsets before 10 are gone"
    assert (code, lines) == (0, f"{moved.at}: is copied again {where}\n")
    moved.create_destination()
    moved.copy_new()
    assert moved.arrived() == records_of(moved.source, moved.at)
    assert moved.audits() == agreeing(15)


def test_a_reset_says_what_it_gives_up(moved: Moved) -> None:
    """Retention took records that were copied nowhere: each reset and the ledger say which."""
    moved.write(10, 10)
    delete_before(moved.source, moved.at, 14)
    moved.rename()
    moved.create_destination()
    lost = "retention took the offsets [10, 14) before they were copied"
    assert lost in moved.reset(ResetTo.EARLIEST, execute=False)[1]
    code, lines = moved.reset(ResetTo.EARLIEST)
    assert (code, lines.endswith(f"; {lost}\n")) == (0, True)
    delete_before(moved.source, moved.at, 16)
    again = "retention took the offsets [14, 16) before they were copied"
    assert again in str(held_back(moved))
    code, lines = moved.reset(ResetTo.EARLIEST)
    assert (code, f"is copied again from offset 16 into {moved.to}" in lines) == (0, True)
    assert lines.endswith(f"; {again}\n")
    moved.copy_new()
    assert moved.arrived() == records_of(moved.source, moved.at)
    gaps = [entry.gap.rpartition("; ")[2] for entry in moved.ledger()]
    assert gaps == ["", lost, again, ""]
    assert moved.audits() == agreeing(4)


def test_a_topic_partition_without_a_leader_is_not_reset(
    moved: Moved, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The command says which ones it leaves as they are, and fails."""
    moved.rename()
    taken, at = moved.snapshot(), TopicPartition(moved.topic, 1)
    unknown = {at: errors.SourceError("has no leader", topic_partition=at)}
    known = replace(taken, facts=replace(taken.facts, unknown=unknown))
    monkeypatch.setattr(read_clusters, "take_snapshot", lambda *_args, **_options: known)
    code, lines = moved.reset(ResetTo.CURRENT, execute=False)
    assert (code, f"{at}: has no leader" in lines) == (1, True)


def test_a_source_created_again_is_copied_elsewhere(moved: Moved) -> None:
    """A new name alone decides nothing; with a reset, the new topic gets a copy of its own."""
    former, copies = moved.to, moved.arrived()
    copied_topic.source_recreated(moved)
    moved.rename()
    moved.create_destination()
    assert isinstance(held_back(moved), errors.TopicRecreatedError)
    code, lines = moved.reset(ResetTo.EARLIEST)
    assert (code, f"is copied again from offset 0 into {moved.to}" in lines) == (0, True)
    assert moved.comes_from(), "as of an accepted loss"
    moved.copy_new()
    assert moved.arrived() == records_of(moved.source, moved.at)
    assert records_of(moved.destination, former) == copies
    assert moved.audits() == agreeing(12)


def test_a_run_that_copies_at_the_same_time(moved: Moved) -> None:
    """A reset leaves alone what was copied meanwhile; a task planned before it copies no more."""
    former = moved.to
    moved.write(10, 5)
    ours = moved.snapshot()
    moved.rename()
    moved.create_destination()
    planned_before = read_clusters.take_snapshot(Sides(moved.name, moved.mirror(), CLOCK))
    job = CopyJob(ours.name, "run", ours.upstream, moved.destination)
    (outcome,) = copy_ranges(job, run_plan.plan(ours).ranges)
    assert outcome.status is Status.DONE
    resets = reset.plan_resets(planned_before, ResetTo.EARLIEST)
    done = reset.execute(planned_before, resets)
    assert [is_moved for _, is_moved in done] == [False]
    assert moved.reached() == {moved.at: 15}

    copies = records_of(moved.destination, former)
    assert moved.reset(ResetTo.EARLIEST)[0] == 0
    (outcome,) = copy_ranges(job, run_plan.plan(ours).ranges)
    assert (outcome.status, outcome.records) == (Status.FENCED, 0)
    assert "a loss was accepted, or the topic reset, since this run planned it" in outcome.error
    moved.copy_new()
    assert moved.arrived() == records_of(moved.source, moved.at)
    assert records_of(moved.destination, former) == copies


def held_back(moved: Moved, on_data_loss: str = "fail") -> errors.RelayError:
    """Return what holds the topic-partition back; nothing is planned for it."""
    plan = run_plan.plan(moved.snapshot(on_data_loss))
    assert not plan.planned
    (error,) = plan.held
    return error


def test_a_changed_name_is_a_decision(moved: Moved) -> None:
    """Whatever is configured, nothing is copied elsewhere until a person has decided."""
    former = moved.to
    moved.write(10, 5)
    ours = moved.snapshot()
    command = f"relay reset --mirror {moved.name} --topic {moved.topic}"

    def says(where: str) -> None:
        error = held_back(moved, "continue")
        assert (type(error), error.exit_code) == (DestinationChangedError, 3)
        assert error.needs_operator
        assert str(error) == (
            f"{moved.at} at offset 10: what was copied before is in {where}, and relay.yaml now"
            f" names {moved.to}; to copy it again there: `{command} --to-earliest --execute`;"
            f" to go on there without it: `{command} --to-current --execute`"
        )
        assert len(moved.ledger()) == 1

    for name, partition in (("other", 0), ("copy", 1), ("other", 1)):
        moved.rename(name, partition)
        says(str(former))
    seen = moved.inspect()
    line = f"error: {moved.name}: {held_back(moved)}\n"
    code, page = seen["status"]
    assert (seen["plan"], code) == ((3, line), 0), "status only shows"
    assert f"  held back  {moved.at} (5 records, " in page
    for part in (held_back(moved).what, held_back(moved).remedy):
        assert part in page
    (found,) = seen["topic_partitions"]
    assert (found["copies"], found["problem"]) == (str(former), str(held_back(moved)))
    findings = [*preflight.check(Sides(moved.name, moved.mirror(), CLOCK))]
    assert str(held_back(moved)) in " ".join(map(str, findings))
    assert max(finding.exit_code for finding in findings) == 3
    assert moved.audits() == agreeing(10), "the copies are where they were"
    # a task that was planned when nothing was copied yet, or with the former relay.yaml
    (planned,) = run_plan.plan(ours).ranges
    job = CopyJob(ours.name, "run", ours.upstream, moved.destination)
    moved.create_destination()
    (outcome,) = copy_ranges(job, [replace(planned, destination=moved.to)])
    assert (outcome.error_kind, outcome.records) == ("DestinationChangedError", 0)

    delete(moved.destination, former.topic)
    says(f"{former} (which does not exist at the destination)")
    create(moved.destination, former.topic, 1, KEPT)
    says(f"{former} (which was deleted at the destination and created again)")
    assert moved.reset(ResetTo.EARLIEST)[0] == 0
    moved.copy_new()
    assert moved.arrived() == records_of(moved.source, moved.at)
    assert moved.audits() == agreeing(15)


def test_there_and_back_again(moved: Moved) -> None:
    """The way back is a decision, too; a name that is changed back before is none."""
    former = moved.to
    moved.rename()
    moved.create_destination()
    assert isinstance(held_back(moved), DestinationChangedError)
    there, moved.to = moved.to, former
    assert not run_plan.plan(moved.snapshot()).held
    moved.to = there
    moved.reset(ResetTo.CURRENT)
    moved.to = TopicPartition(f"third.{moved.topic}", 0)
    assert f"let the copy go on in {there}, and relay.yaml now names" in str(held_back(moved))
    moved.to = there
    moved.write(10, 5)
    moved.copy_new()
    delete(moved.destination, former.topic)
    moved.to = former
    assert f"what was copied before is in {there}, and" in str(held_back(moved))


@pytest.mark.parametrize("to", ResetTo)
def test_a_reset_decides_where_even_before_a_record_is_copied(moved: Moved, to: ResetTo) -> None:
    """The former name again, before the first record, is a decision of its own: nothing doubles."""
    former, copies = moved.to, moved.arrived()
    moved.write(10, 5)
    ours = read_clusters.take_snapshot(Sides(moved.name, moved.mirror(), CLOCK))
    moved.rename()
    moved.create_destination()
    assert moved.reset(to)[0] == 0
    there, moved.to = moved.to, former
    error = held_back(moved, "continue")
    assert isinstance(error, DestinationChangedError)
    assert f"let the copy go on in {there}, and relay.yaml now names {former}" in str(error)
    # a task with the former relay.yaml that was planned after the reset
    assert there.topic not in moved.snapshot().copied_to, "nothing is there that could be altered"
    now = reader.read_checkpoints(Sides(moved.name, moved.mirror(), CLOCK)).checkpoints[moved.at]
    (planned,) = run_plan.plan(ours).ranges
    job = CopyJob(ours.name, "run", ours.upstream, moved.destination)
    (outcome,) = copy_ranges(job, [replace(planned, checkpoint=now)])
    assert (outcome.error_kind, outcome.records) == ("DestinationChangedError", 0)
    assert records_of(moved.destination, former) == copies

    code, lines = moved.reset(to, execute=False)
    doing = "is copied again from offset 0" if to is ResetTo.EARLIEST else "goes on at offset 10"
    assert (code, f"{doing} into {former}; no record" in lines) == (0, True)
    assert f"{former} already holds the offsets [0, 11)" in lines
    moved.to = there
    moved.copy_new()
    first = 0 if to is ResetTo.EARLIEST else 10
    assert moved.arrived() == records_of(moved.source, moved.at)[first:]
    assert records_of(moved.destination, former) == copies


@pytest.mark.parametrize("both", [True, False])
def test_one_place_to_go_on(*, both: bool) -> None:
    """It is either the earliest record or the current offset."""
    with pytest.raises(ConfigError, match="--to-earliest to copy again"):
        command.where(to_earliest=both, to_current=both)
