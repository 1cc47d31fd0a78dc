"""The command line, without connecting to a cluster."""

import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest
import typer.core
import typer.main

from relay_pipelines.cli import inspect_commands, main
from relay_pipelines.cli.app import app
from relay_pipelines.errors import INTERRUPTED, LedgerLostError, together
from relay_pipelines.model import TopicPartition
from relay_pipelines.move.request import MoveStep
from tests.support.commands import ran

GROUP: Any = typer.main.get_command(app)
PAGE = Path(__file__).parents[2] / "docs" / "cli.md"
SLOW = ("pyspark", "pandas", "dagster", "pyarrow", "numpy", "kafka.admin", "aiokafka.client")
AWAY = "bootstrap_servers: '127.0.0.1:1'"
UNREACHABLE = (
    f"mirrors: {{m: {{source: {{upstreams: [{{name: n, {AWAY}}}]}}, destination: {{{AWAY}}},"
    " give_up_after: 1ms}}"
)


def test_every_command_is_listed_and_documented(capsys: pytest.CaptureFixture[str]) -> None:
    """Each has a section in docs/cli.md; the options are generated: docs/reference/commands.md."""
    assert main(["--help"]) == 0
    shown = capsys.readouterr().out.partition("Commands:")[2]
    sections = re.findall(r"^## `relay ([^`]+)`$", PAGE.read_text(), re.MULTILINE)
    assert sections == list(GROUP.commands) == re.findall(r"^  (\w+)  ", shown, re.MULTILINE)
    assert len(sections) == 22


def test_the_help_of_a_step_is_of_that_step(capsys: pytest.CaptureFixture[str]) -> None:
    """`relay move` has options that one step uses and another does not."""

    def options(*words: str) -> set[str]:
        assert main(["move", *words, "--help"]) == 0
        return set(re.findall(r"--[\w-]+", capsys.readouterr().out))

    of_all, of_cut = options(), options("cut")
    assert of_all - of_cut == {"--by", "--recent", "--still"}
    assert options("status") == {"--execute", "--help", "--json", "--mirror"}
    assert {step: options(step) <= of_all for step in MoveStep} == dict.fromkeys(MoveStep, True)


def test_a_default_is_shown_once() -> None:
    """`--help` shows it by itself, so the text of an option does not say it again."""
    twice = [
        f"relay {name} {option.opts[0]}: {option.help}"
        for name, command in GROUP.commands.items()
        for option in command.params
        if isinstance(option, typer.core.TyperOption)
        and re.search(r"\d", str(option.default))
        and re.search(rf"(?<!\w){re.escape(str(option.default))}(?!\w)", option.help or "")
    ]
    assert twice == []


NO_FILE, NO_LAST = "none.yaml does not exist; ", "Invalid value for '--last' / '-n'"
BAD_USAGE = [
    ("run --mirrors x", r"No such option: --mirrors.*; see `relay run --help`"),
    ("copy", r"No such command 'copy'.*; see `relay --help`"),
    *((f"ledger --last {n}", rf"{NO_LAST}: .*; see `relay ledger --help`") for n in "0x"),
    ("run more", r".*unexpected.*argument.*; see `relay run --help`"),
    ("-c", r".*'?-c'?.* requires an argument; see `relay --help`"),
    ("-c none.yaml plan", rf"{NO_FILE}name another file, or write one with `relay init`"),
    ("plan -c none.yaml", rf"{NO_FILE}.*"),
    ("plan --config=none.yaml", rf"{NO_FILE}.*"),
]


@pytest.mark.parametrize(("arguments", "line"), BAD_USAGE, ids=[asked for asked, _ in BAD_USAGE])
def test_bad_usage(arguments: str, line: str, capsys: pytest.CaptureFixture[str]) -> None:
    """It names the problem and where to find help; the global options may stand anywhere."""
    assert main(arguments.split()) == 2
    assert re.fullmatch(f"error: {line}\n", (error := capsys.readouterr().err)), error


def test_the_environment_may_name_the_configuration_or_be_it(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """RELAY_CONFIG_YAML replaces the file that RELAY_CONFIG names; --config wins."""
    for variable, value, named in (
        ("RELAY_CONFIG", "from-the-environment.yaml", "from-the-environment.yaml"),
        ("RELAY_CONFIG_YAML", "mirrors: 1", "RELAY_CONFIG_YAML:1:"),
    ):
        monkeypatch.setenv(variable, value)
        assert (main(["status"]), main(["status", "-c", "given.yaml"])) == (2, 2)
        found = re.findall(r"error: (\S+)", capsys.readouterr().err)
        assert found == [named, "given.yaml"]


def test_bug_or_ctrl_c(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """With exit codes 1 and 130; --debug shows the traceback of a bug."""

    def broken(*_: object, **__: object) -> int:
        return 1 // 0

    monkeypatch.setattr(inspect_commands, "status", broken)
    assert main(["status"]) == 1
    assert capsys.readouterr().err == (
        "error: unexpected ZeroDivisionError: integer division or modulo by zero;"
        " run with --debug to see where\n"
    )
    assert main(["status", "--debug"]) == 1
    assert "in broken" in capsys.readouterr().err

    monkeypatch.setattr(inspect_commands, "plan", Mock(side_effect=KeyboardInterrupt))
    assert main(["plan"]) == INTERRUPTED
    assert capsys.readouterr().err == "error: interrupted\n"


@pytest.mark.parametrize(
    ("arguments", "slow"),
    [
        ("--help", (*SLOW, "pydantic", "kafka.protocol", "aiokafka.record", "rich")),
        *((command, SLOW) for command in ("init", "check", "status", "run")),
    ],
)
def test_slow_packages_come_late(tmp_path: Path, arguments: str, slow: tuple[str, ...]) -> None:
    """None before it has records to copy; and none ever imports the Kafka libraries' clients."""
    (tmp_path / "relay.yaml").write_text(UNREACHABLE)
    program = (
        "import sys; from relay_pipelines.cli import main; code = main(sys.argv[1:])\n"
        f"print('imported', *[name for name in {slow} if name in sys.modules])"
    )
    done = ran(sys.executable, "-c", program, arguments, cwd=tmp_path)
    assert done.stdout.splitlines()[-1] == "imported"
    assert "Traceback" not in done.stderr


PROGRAM = "import sys; from relay_pipelines.cli import main; sys.exit(main())"


def test_processes_of_their_own(tmp_path: Path) -> None:
    """A closed pipe ends it quietly; a user's module imports all of the Kafka libraries."""
    reader, writer = os.pipe()
    os.close(reader)
    to: dict[str, Any] = {"stdout": writer, "stderr": subprocess.PIPE}
    done = ran(sys.executable, "-c", PROGRAM, "--help", cwd=tmp_path, capture_output=False, **to)
    os.close(writer)
    assert (done.returncode, done.stderr) == (1, "")
    program = (
        "import relay_pipelines.protocol.security, relay_pipelines.protocol.records\n"
        "import kafka.net, aiokafka\n"
        "from kafka import KafkaProducer\n"
        "from kafka.net import *\n"
        "print(KafkaProducer.__name__, aiokafka.AIOKafkaConsumer.__name__,"
        " KafkaConnection.__name__, kafka.protocol.metadata.MetadataRequest.__name__,"
        " hasattr(kafka, 'other'))"
    )
    done = ran(sys.executable, "-c", program)
    names = "KafkaProducer AIOKafkaConsumer KafkaConnection MetadataRequest False\n"
    assert done.stdout == names, done.stderr


IS_FULL = "the output cannot be written: No space left on device; write to another file"


@pytest.mark.parametrize(
    ("command", "code", "error"),
    [
        *((f"{what} >/dev/full", 1, IS_FULL) for what in ("--help", "init")),
        ("--help >&-", 2, "stdout is closed; write to a file, or to /dev/null"),
        ("convert none.conf >&-", 2, "stdout is closed; .*"),
        ("status -c none.yaml 2>/dev/full", 2, ""),
        ("status -c none.yaml 2>&-", 2, ""),
        ("init taken/new", 2, "taken/new cannot be opened: Not a directory; name another one"),
        ("convert mm2.properties", 2, r"'\\xf6' cannot be written as ascii; set LC_ALL=C.UTF-8"),
    ],
    ids=lambda value: value if " " in str(value) else None,
)
def test_what_cannot_be_written(tmp_path: Path, command: str, code: int, error: str) -> None:
    """What, where, and what to do; nothing meant for stderr goes to stdout in its place."""
    (tmp_path / "taken").touch()
    servers = "clusters=a,b\na.bootstrap.servers=a:1\nb.bootstrap.servers=b:1\n"
    flow = "a->b.enabled=true\na->b.topics=gr\u00f6\u00dfe\n"
    (tmp_path / "mm2.properties").write_text(servers + flow, encoding="utf-8")
    env = {**os.environ, "PYTHONIOENCODING": "ascii" if "mm2" in command else "utf-8"}
    program = f"exec '{sys.executable}' -c '{PROGRAM}' {command}"
    done = ran("sh", "-c", program, cwd=tmp_path, env=env)
    assert (done.returncode, done.stdout) == (code, "")
    expected = f"error: {error}\n" if error else ""
    assert re.fullmatch(expected, done.stderr), done.stderr


def test_one_cause_is_one_line():
    """What several topic-partitions share is said once; other places and words stay apart."""
    lost = [
        LedgerLostError("it is gone", remedy="restore it", topic_partition=TopicPartition("t", n))
        for n in range(3)
    ]
    other = LedgerLostError("it is shorter", topic_partition=TopicPartition("t", 3))
    assert [str(error) for error in together([lost[0], other, *lost[1:]])] == [
        "t-0, t-1, t-2: it is gone; restore it",
        "t-3: it is shorter",
    ]
    (many,) = together(other.of(TopicPartition("t", number)) for number in range(50))
    assert str(many) == "t-0, t-1, t-2 and 47 more topic-partitions: it is shorter"
    assert together([other]) == [other]
    assert {error.exit_code for error in together(lost)} == {3}
