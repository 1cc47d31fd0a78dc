"""Two deployments of one mirror whose filters differ: one decides the records, never both."""

import sys
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest

from relay_pipelines import settings
from relay_pipelines.audit import audit
from relay_pipelines.audit import command as audit_command
from relay_pipelines.audit.request import AuditRequest, Level
from relay_pipelines.audit.verdict import State
from relay_pipelines.cli import inspect_commands
from relay_pipelines.copy.task import copy_ranges
from relay_pipelines.errors import PolicySupersededError
from relay_pipelines.invocation import Invocation
from relay_pipelines.ledger import reader
from relay_pipelines.ledger.checkpoint import TOPIC, home, to_record
from relay_pipelines.model import Checkpoint, Cluster, CopyJob, TopicPartition, policy_id
from relay_pipelines.prepare import prepared_snapshot
from relay_pipelines.protocol.clock import SystemClock
from relay_pipelines.recovery import command, restore
from relay_pipelines.recovery.reset import ResetTo
from relay_pipelines.replay.replay import Replay, plan_replay, start_replay
from relay_pipelines.replay.request import ReplayRequest
from relay_pipelines.run import preflight, run_plan
from relay_pipelines.run.run_plan import RunPlan
from relay_pipelines.settings import Mirror
from relay_pipelines.sides import Sides
from relay_pipelines.snapshot import read_clusters
from tests.copying import KEPT, Clusters, ensure_homes, numbered, records_of
from tests.support import commands
from tests.support.findings import compared
from tests.support.independent import CREATE_TIME, Record, create, delete_before, until, write
from tests.support.ledgers import ledger_entries

CLOCK = SystemClock()

FILTER = """
class Multiples:
    def __init__(self, of):
        self.of = of

    def keep(self, record):
        return int(record.value) % self.of == 0
"""


@dataclass
class Deployment:
    """A relay.yaml, with its own filters beside it."""

    folder: Path
    source: Cluster
    destination: Cluster
    topic: str
    of: int = 1

    def __post_init__(self) -> None:
        self.name = f"policy-{self.topic[-8:]}"
        self.folder.mkdir()
        self.edit(FILTER)

    @property
    def module(self) -> str:
        return f"multiples_{self.topic.replace('-', '_').replace('.', '_')}"

    def edit(self, text: str) -> None:
        (self.folder / f"{self.module}.py").write_text(text)

    def config(self, **more: Any) -> Path:
        records: dict[str, Any] = {}
        if self.of > 1:
            chosen = {"class": f"{self.module}:Multiples", "config": {"of": self.of}}
            records = {"filters": [chosen]}
        made = commands.mirror(self.source, self.destination, self.topic, **records, **more)
        return commands.configured(self.folder, {self.name: made})

    def mirror(self, **more: Any) -> Mirror:
        return settings.load(self.config(**more)).mirror(self.name)

    def plan(self, **more: Any) -> RunPlan:
        self.forget_imports()
        mirror = self.mirror(**more)
        return run_plan.plan(
            prepared_snapshot.prepare_snapshot(
                lambda: read_clusters.take_snapshot(Sides(self.name, mirror, CLOCK))
            )
        )

    def copy(self, planned: RunPlan | None = None) -> list[str]:
        """Copy what is planned, and return why ranges were not copied."""
        planned = planned or self.plan()
        self.forget_imports()
        snapshot = planned.snapshot
        job = CopyJob(
            *(snapshot.name, f"run of {self.folder.name}"), snapshot.upstream, self.destination
        )
        outcomes = list(copy_ranges(job, planned.ranges))
        ends = {
            each.range.topic_partition: each.range.end for each in outcomes if not each.error_kind
        }
        until(lambda: self.has_reached(ends), "the checkpoints")
        return [outcome.error_kind for outcome in outcomes if outcome.error_kind]

    def reset(self) -> int:
        """Let this configuration decide from here on."""
        to, config = ResetTo.CURRENT, Invocation(self.config())
        return command.run_reset(config, None, self.topic, to, execute=True)

    def forget_imports(self) -> None:
        """Forget those of the other deployment, whose process has its own."""
        others = str(self.folder.parent)
        sys.path[:] = [path for path in sys.path if not path.startswith(others)]
        sys.modules.pop(self.module, None)

    def held_back(self, **more: Any) -> list[str]:
        """Return why nothing is planned."""
        planned = self.plan(**more)
        assert not planned.planned
        assert {type(error) for error in planned.held} == {PolicySupersededError}
        return [str(error) for error in planned.held]

    def has_reached(self, ends: dict[TopicPartition, int]) -> bool:
        """Whether the checkpoints show it; an open transaction of others hides them."""
        stored = reader.read_checkpoints(Sides(self.name, self.mirror(), CLOCK)).checkpoints
        return all(at in stored and stored[at].next_offset >= end for at, end in ends.items())

    def checkpoint(self, at: TopicPartition) -> Checkpoint:
        stored = reader.read_checkpoints(Sides(self.name, self.mirror(), CLOCK))
        return stored.checkpoints[at]

    def policies(self, at: TopicPartition) -> list[str]:
        """Return the policies of the ledger entries, each once in a row."""
        ids = [
            policy_id(each.policy)
            for each in ledger_entries(self.destination, self.name)
            if each.source.topic_partition == at
        ]
        return [each for number, each in enumerate(ids) if ids[number - 1 : number] != [each]]


def plain(count: int, first: int) -> list[Record]:
    return numbered(count, first=first, make=lambda number: str(number).encode())


@dataclass
class Two:
    """Two deployments of one mirror with two topic-partitions."""

    one: Deployment
    two: Deployment
    written: int = 0

    @property
    def partitions(self) -> list[TopicPartition]:
        return [TopicPartition(self.one.topic, number) for number in range(2)]

    def write(self, count: int = 6, partitions: int = 2) -> None:
        for at in self.partitions[:partitions]:
            write(self.one.source, at, plain(count, self.written))
        self.written += count

    def arrived(self) -> list[int]:
        """Return the values of the first topic-partition's copies."""
        found = records_of(self.one.destination, self.partitions[0])
        return [int(record.value or b"") for record in found]


@pytest.fixture
def deployments(sides: Clusters, topic_name: str, tmp_path: Path) -> Two:
    """Two deployments: the first copies all records, the second the even ones."""
    source, destination = sides
    for cluster in (source, destination):
        create(cluster, topic_name, 2, KEPT)
    ensure_homes(destination)
    of = (source, destination, topic_name)
    return Two(Deployment(tmp_path / "one", *of), Deployment(tmp_path / "two", *of, of=2))


def test_two_configurations_do_not_take_turns(
    deployments: Two, capsys: pytest.CaptureFixture[str]
) -> None:
    """The newer one takes over once, the former asks for a reset; an audit says who decided."""
    one, two, at = deployments.one, deployments.two, deployments.partitions[0]
    for _ in range(3):  # as living sessions do
        for deployment in (one, two):
            deployments.write()
            deployment.copy()
    expected = [*range(6), *(number for number in range(6, 36) if number % 2 == 0)]
    assert deployments.arrived() == expected
    assert one.policies(at) == ["verbatim", policy_id(two.checkpoint(at).policy)]

    (why, _) = one.held_back()
    assert "run of two copied with it, and the code of its classes, `filters` differs" in why
    command = f"relay reset --mirror {one.name} --topic {one.topic} --to-current --execute"
    assert command in why
    invocation = Invocation(one.config())
    assert inspect_commands.plan(invocation, [], None, why=False, as_json=False) == 3
    assert "another configuration has decided its records" in capsys.readouterr().err
    assert [
        finding.exit_code
        for finding in preflight.check(Sides(one.name, one.mirror(), CLOCK))
        if "another configuration has decided" in str(finding)
    ] == [3]

    code = one.reset()
    shown = capsys.readouterr().out
    assert (code, shown.count("this configuration decides its records from there on")) == (0, 2)
    generation = two.checkpoint(at).generation
    deployments.write()
    assert one.copy() == []
    assert len(two.held_back()) == 2
    assert (one.checkpoint(at).generation, one.checkpoint(at).copies is None) == (generation, False)
    assert deployments.arrived() == [*expected, *range(36, 42)]
    for level in (Level.RECOUNT, Level.FULL):
        sides = Sides(one.name, two.mirror(), CLOCK)
        audited = compared(audit.begin(sides, AuditRequest(level=level)))
        audit_command.report(invocation, audited, as_json=False)
        by = f"[0, 6) by verbatim, [6, 36) by {one.policies(at)[1]}, [36, 42) by verbatim"
        line = f"{at}: several configurations decided its records: {by}"
        assert line in capsys.readouterr().out
        assert audited.verdict.state is State.AGREES


def test_a_configuration_says_that_it_takes_over(
    deployments: Two, capsys: pytest.CaptureFixture[str]
) -> None:
    """`plan`, `status` and `check` say it before it happens, a run when it does, then nobody."""
    one, two = deployments.one, deployments.two
    deployments.write()
    one.copy()
    deployments.write()

    def said() -> list[bool]:
        line = "is another one than run run of one copied with up to offset 6"
        invocation = Invocation(two.config())
        inspect_commands.plan(invocation, [], None, why=False, as_json=False)
        plan = capsys.readouterr().err
        inspect_commands.status(invocation, [], everything=False, as_json=False)
        status = capsys.readouterr().out
        check = [str(finding) for finding in preflight.check(Sides(two.name, two.mirror(), CLOCK))]
        return [line in each for each in (plan, status, str(check), str(two.plan().takeovers))]

    assert said() == [True] * 4
    two.copy()
    assert said() == [False] * 4
    assert one.plan().takeovers == []


def test_a_takeover_between_plan_and_copy(deployments: Two) -> None:
    """A task commits only after the policy that its driver has seen, or its own."""
    one, two = deployments.one, deployments.two
    deployments.write()
    planned_first = two.plan()
    assert one.copy() == []
    assert two.copy(planned_first) == ["FencedError"] * 2, "nothing was copied when it looked"
    deployments.write()
    planned = one.plan()
    third = replace(two, folder=two.folder.parent / "three", of=3)
    planned_third = third.plan()
    assert two.copy() == []
    assert one.copy(planned) == ["PolicySupersededError"] * 2
    assert third.copy(planned_third) == ["FencedError"] * 2
    assert deployments.arrived() == [*range(6), 6, 8, 10]
    deployments.write()
    assert third.copy() == [], "a third one takes over"
    assert len(two.held_back()) == 2
    assert deployments.arrived() == [*range(6), 6, 8, 10, 12, 15]


def test_a_person_edits_the_only_deployment(deployments: Two) -> None:
    """An edit takes over by itself, one taken back waits for a reset; a comment is no change."""
    two, at = deployments.two, deployments.partitions[0]
    deployments.write()
    two.copy()
    two.edit(FILTER.replace("== 0", "== 1"))
    deployments.write()
    assert two.copy() == []
    edited = two.checkpoint(at)
    two.edit(FILTER)
    assert len(two.held_back()) == 2, "also before the next record"
    deployments.write()
    assert "relay reset" in two.held_back()[0]
    assert two.reset() == 0
    assert two.checkpoint(at).superseded == (policy_id(edited.policy),)
    assert two.copy() == []
    assert deployments.arrived() == [0, 2, 4, 7, 9, 11, 12, 14, 16]
    moved = replace(two, folder=two.folder.parent / "moved")
    deployments.write()
    assert moved.plan().takeovers == []
    assert moved.copy() == []

    two.edit(FILTER.replace("== 0", "== 1"))
    write(two.source, at, plain(3, 24))
    delete_before(two.source, at, 26)
    assert "the code of its classes differs" in two.held_back(on_data_loss="continue")[0]
    assert not any(each.gap for each in ledger_of(two))


def test_a_replay_between_two_configurations(deployments: Two) -> None:
    """What it was begun with decides to its end, whatever the mirror has by now."""
    two, at = deployments.two, deployments.partitions[0]
    to = TopicPartition(f"{at.topic}.again", 0)
    create(two.destination, to.topic, 2, KEPT)
    request = ReplayRequest(at.topic, to.topic, partition=0, offsets=(2, 10))
    deployments.write(12)
    two.copy()

    def planned() -> Replay:
        two.forget_imports()
        mirrors = settings.load(two.config()).mirrors
        sides = Sides(two.name, mirrors[two.name], CLOCK)
        return start_replay(plan_replay(sides, request, lambda: None, mirrors))

    def copy(end: int) -> list[str]:
        snapshot = (plan := planned().plan).snapshot
        job = CopyJob(snapshot.name, "replay", snapshot.upstream, two.destination)
        (whole,) = plan.ranges
        part = replace(whole, source=replace(whole.source, end=end))
        return [outcome.error_kind for outcome in copy_ranges(job, [part]) if outcome.error_kind]

    assert copy(5) == []
    two.edit(FILTER.replace("== 0", "== 1"))
    deployments.write()
    assert two.copy() == []
    (held,) = planned().plan.held
    assert isinstance(held, PolicySupersededError)
    assert held.remedy == "start the replay again under another --id"
    two.edit(FILTER)
    assert len(two.held_back()) == 2
    assert copy(10) == []
    assert [int(record.value or b"") for record in records_of(two.destination, to)] == [2, 4, 6, 8]
    assert planned().is_complete


def test_a_restored_checkpoint_remembers(deployments: Two) -> None:
    """`relay restore` makes the checkpoint with the policies of the entries."""
    one, two, at = deployments.one, deployments.two, deployments.partitions[0]
    deployments.write()
    one.copy()
    before = one.checkpoint(at)
    deployments.write()
    two.copy()
    lost = two.checkpoint(at)
    key, value, _ = to_record(before)
    write(one.destination, home(TOPIC, key), [Record(key, value, (), (CREATE_TIME, 1))])
    mirror = two.mirror()
    planned = restore.plan_restores(Sides(two.name, mirror, CLOCK))
    assert list(restore.execute(Sides(two.name, mirror, CLOCK), planned))
    restored = two.checkpoint(at)
    assert (restored.policy, restored.superseded) == (lost.policy, lost.superseded)
    assert len(one.held_back()) == 2


def ledger_of(deployment: Deployment) -> list[Any]:
    return ledger_entries(deployment.destination, deployment.name)
