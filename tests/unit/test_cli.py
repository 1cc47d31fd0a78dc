"""The command line by itself: no cluster is asked."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import typer.main

from relay_pipelines.cli import inspect_commands, main
from relay_pipelines.cli.app import app
from relay_pipelines.run.result import INTERRUPTED

PAGE = Path(__file__).parents[2] / "docs" / "cli.md"
SLOW = ("pyspark", "pandas", "dagster")
AWAY = "bootstrap_servers: '127.0.0.1:1'"
NOBODY = f"mirrors: {{m: {{source: {{nodes: [{{name: n, {AWAY}}}]}}, destination: {{{AWAY}}}, give_up_after: 1ms}}}}"


def commands() -> Iterator[tuple[str, list[list[str]]]]:
    """Every command with the spellings of its options; the global options belong to "relay"."""
    group = typer.main.get_command(app)
    yield "relay", [parameter.opts for parameter in group.params]
    for name, command in group.commands.items():
        yield f"relay {name}", [parameter.opts for parameter in command.params]


def test_help_names_every_command(capsys: pytest.CaptureFixture[str]) -> None:
    """`relay --help` and `relay` alone say what there is."""
    assert main(["--help"]) == 0
    shown = capsys.readouterr().out
    assert re.findall(r"^  (\w+)  ", shown.partition("Commands:")[2], re.MULTILINE) == [
        "check",
        "nodes",
        "plan",
        "run",
        "status",
        "ledger",
        "acls",
        "demo",
        "ui",
    ]


def test_every_command_and_option_is_documented() -> None:
    """docs/cli.md has a section per command, and in it a row per option with all its spellings; and no others."""
    sections = re.findall(
        r"^## `([^`]+)`\n(.*?)(?=^## |\Z)", PAGE.read_text(), re.MULTILINE | re.DOTALL
    )
    documented = [
        (
            title,
            [
                re.findall(r"`(-[^` ]+)", cell)
                for cell in re.findall(r"^\| (`-[^|]*) \|", text, re.MULTILINE)
            ],
        )
        for title, text in sections
    ]
    assert documented == list(commands())


@pytest.mark.parametrize(
    ("arguments", "line"),
    [
        (["run", "--mirrors", "x"], r"No such option: --mirrors.*; see `relay run --help`"),
        (["copy"], r"No such command 'copy'.*; see `relay --help`"),
        (
            ["ledger", "--last", "0"],
            r"Invalid value for '--last' / '-n': .*; see `relay ledger --help`",
        ),
        (
            ["ledger", "--last", "x"],
            r"Invalid value for '--last' / '-n': .*; see `relay ledger --help`",
        ),
        (["run", "more"], r".*unexpected.*argument.*; see `relay run --help`"),
        (["-c"], r".*'?-c'?.* requires an argument; see `relay --help`"),
        (
            ["-c", "none.yaml", "plan"],
            r"none.yaml does not exist; name another file, or start from relay.example.yaml",
        ),
        (["plan", "-c", "none.yaml"], r"none.yaml does not exist; .*"),
        (["plan", "--config=none.yaml"], r"none.yaml does not exist; .*"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_bad_usage_is_one_line(
    arguments: list[str], line: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """What is wrong and where help is, exit code 2; the global options may stand before or behind the command."""
    assert main(arguments) == 2
    assert re.fullmatch(f"error: {line}\n", (error := capsys.readouterr().err)), error


def test_the_configuration_may_come_from_the_environment(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """RELAY_CONFIG names the file; --config wins."""
    monkeypatch.setenv("RELAY_CONFIG", "from-the-environment.yaml")
    assert main(["status"]) == 2
    assert main(["status", "-c", "given.yaml"]) == 2
    assert re.findall(r"error: (\S+) does not exist", capsys.readouterr().err) == [
        "from-the-environment.yaml",
        "given.yaml",
    ]


def test_a_bug_is_one_line_and_its_trace_is_there_for_the_asking(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """An exception that nobody expected ends with 1; --debug shows where it came from."""

    def broken(*_: object, **__: object) -> int:
        return 1 // 0

    monkeypatch.setattr(inspect_commands, "status", broken)
    assert main(["status"]) == 1
    assert capsys.readouterr().err == (
        "error: unexpected ZeroDivisionError: integer division or modulo by zero; run with --debug to see where\n"
    )
    assert main(["status", "--debug"]) == 1
    assert "in broken" in capsys.readouterr().err


def test_an_early_ctrl_c(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Ctrl-C in a command that only looks: 130, no trace."""

    def interrupted(*_: object, **__: object) -> int:
        raise KeyboardInterrupt

    monkeypatch.setattr(inspect_commands, "plan", interrupted)
    assert main(["plan"]) == INTERRUPTED
    assert capsys.readouterr().err == "error: interrupted\n"


@pytest.mark.parametrize("arguments", [["--help"], ["check"], ["run"]])
def test_what_is_slow_to_import_is_imported_late(tmp_path: Path, arguments: list[str]) -> None:
    """No command imports Spark, pandas or Dagster before it has something to copy."""
    (tmp_path / "relay.yaml").write_text(NOBODY)
    program = (
        "import sys; from relay_pipelines.cli import main; code = main(sys.argv[1:])\n"
        f"print('imported', *[name for name in {SLOW} if name in sys.modules])"
    )
    done = subprocess.run(
        [sys.executable, "-c", program, *arguments],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=True,
        timeout=120,
    )
    assert done.stdout.splitlines()[-1] == "imported"
    assert "Traceback" not in done.stderr


def test_a_reader_that_has_seen_enough_ends_the_command_quietly(tmp_path: Path) -> None:
    """`relay ... | head` ends without a trace."""
    program = "import sys; from relay_pipelines.cli import main; sys.exit(main(['--help']))"
    reader, writer = os.pipe()
    os.close(reader)
    done = subprocess.run(
        [sys.executable, "-c", program],
        cwd=tmp_path,
        stdout=writer,
        stderr=subprocess.PIPE,
        text=True,
        check=False,
    )
    os.close(writer)
    assert (done.returncode, done.stderr) == (1, "")
