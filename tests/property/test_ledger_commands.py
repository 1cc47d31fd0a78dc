"""The commands ledger and attest, with clusters in memory."""

import json
from pathlib import Path

import pytest

from relay_pipelines.cli import main
from relay_pipelines.ledger import ledger_topic
from relay_pipelines.model import Cluster
from tests.support import commands
from tests.support.copies_in_memory import AT
from tests.support.filled import chains
from tests.support.findings import differences
from tests.support.world import World


@pytest.fixture
def config(tmp_path: Path) -> Path:
    """A relay.yaml with the world's mirror, and one that never copied."""
    fake = Cluster("fake", ("fake:1",))
    mirror = commands.mirror(fake, fake, "a", upstream="source")
    return commands.configured(tmp_path, {"m": mirror, "idle": mirror})


def relay(world: World, config: Path, *arguments: str) -> int:
    with world.answering():
        return main(["-c", str(config), *arguments])


def test_json(world: World, config: Path, capfdbinary: pytest.CaptureFixture[bytes]) -> None:
    """The newest entries of each mirror."""
    assert relay(world, config, "ledger", "--json", "--last", "2") == 0
    found = json.loads(capfdbinary.readouterr().out)
    newest = chains(world.copies)[AT].records[1:]
    expected = [(each.entry.number, each.head.hash, each.offset) for each in newest]
    assert [(one["number"], one["hash"], one["ledger_offset"]) for one in found] == expected


def test_a_table_of_all(world: World, config: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert relay(world, config, "ledger") == 0
    shown = capsys.readouterr().out
    assert "a-0[10, 15)" in shown.replace("a-0 [10, 15)", "a-0[10, 15)")
    assert "idle: no ledger entries" in shown


@pytest.mark.parametrize(
    ("arguments", "line"),
    [
        (["ledger", "-o", "x"], "a table goes to the terminal, not to a file; add --json"),
        (
            ["ledger", "--json", "-o", "no/one/x"],
            "--output: there is no folder no/one; create it fir",
        ),
        (["attest"], "a statement is about one mirror; name it with --mirror: idle, m"),
        (["attest", "-m", "idle"], "the ledger has no entries of this mirror; see `relay ledger`"),
        (["attest", "-m", "nobody"], "no mirror is called 'nobody'"),
    ],
)
def test_bad_usage(
    world: World, config: Path, arguments: list[str], line: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """It is one line, with exit code 2."""
    assert relay(world, config, *arguments) == 2
    (error,) = capsys.readouterr().err.splitlines()
    assert error.startswith(f"error: {line}")


def test_attest_writes_what_the_audit_reads(world: World, config: Path) -> None:
    done = relay(world, config, "attest", "-m", "m", "--output", str(world.path))
    audit = world.audit()
    assert (done, differences(audit), audit.tally.compared) == (0, [], 15)


def test_a_tampered_ledger(world: World, config: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """It names the place, writes nothing, and exits with code 4."""
    del world.copies.logs[ledger_topic.TOPIC].entries[2:4]
    assert relay(world, config, "attest", "-m", "m", "-t", "b") == 2, "b was not copied"
    capsys.readouterr()
    assert relay(world, config, "attest", "-m", "m", "-t", "a", "-o", str(world.path)) == 4
    first, second = capsys.readouterr().err.splitlines()
    assert first == "error: m: a-0: ledger entry 2: missing (__relay_ledger-0[1, 4))"
    assert second.startswith(f"error: the ledger of m is not what was committed: {first[10:]}")
    assert not world.path.exists()
