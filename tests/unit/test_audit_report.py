"""The report of an audit: in a terminal, as JSON, metrics and HTML; mistakes in its options."""

import errno
import fcntl
import io
import json
import os
import subprocess
import sys
import tempfile
import threading
import xml.etree.ElementTree as ET
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest
from prometheus_client.parser import text_string_to_metric_families
from rich.console import Console
from rich.table import Table

from relay_pipelines.audit import metrics
from relay_pipelines.audit import report as shown_as
from relay_pipelines.audit.audit import PartitionAudit
from relay_pipelines.audit.command import report
from relay_pipelines.audit.comparison import Difference
from relay_pipelines.audit.coverage import Stretch, coverage
from relay_pipelines.audit.page import HEIGHT, WIDTH, bars, mark, page
from relay_pipelines.audit.report import audit_document as document_of
from relay_pipelines.audit.request import AuditRequest, Level
from relay_pipelines.cli import main
from relay_pipelines.errors import ConfigError, RelayError
from relay_pipelines.invocation import Invocation
from relay_pipelines.ledger.chain import Chain
from relay_pipelines.metrics.catalog import PREFIX
from relay_pipelines.output.tables import show
from tests.support.audited import (
    AT,
    BAD,
    CHUNKS,
    DIFFERENCE,
    audit,
    audited,
    counted,
    entry,
    wanted,
    whole,
)
from tests.support.config_files import MINIMAL
from tests.support.doc_blocks import ROOT


def shown(made: Table) -> str:
    console = Console(file=io.StringIO(), width=240)
    show(console, made)
    return console.file.getvalue()  # type: ignore[attr-defined]


def test_a_row_per_topic_partition() -> None:
    """And what differs, with both records."""
    found = whole()
    found.uncompared["a reason"] = 10
    lines = shown(shown_as.audit_table(audit(found))).splitlines()
    title, _, row = [line.strip() for line in lines if line.strip("─ ")]
    assert title == "m: audit, level full"
    assert " ".join(row.split()) == (
        "orders-0 [0, 40) copy.orders-0 40 25 15 0 10 9 aborted, 1 control, 5 filtered agrees"
    )
    assert "differs" in shown(shown_as.audit_table(audit(audited(DIFFERENCE))))
    text = shown(shown_as.difference_table("orders-0", DIFFERENCE))
    for part in ("orders-0: 1 record differs", BAD, "no record", "2023-11-14T22:13:20Z"):
        assert part in text


def test_nothing_could_be_compared(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Neither does it agree, nor is it done."""
    found = whole()
    found.rule, found.chunks, found.results = "not compared: it is compacted", [], []
    found.uncompared["it is compacted"] = 25
    invocation = Invocation(tmp_path)
    report(invocation, audit(found), as_json=False)
    shown = capsys.readouterr()
    line = "not verified: 0 of 25 records compared: it is compacted"
    assert shown.err == f"error: m: {line}\n"
    assert "not verified" in shown.out
    assert "agrees" not in shown.out
    assert f"{line}</span>" in page([audit(found)], 0)
    assert invocation.exit_code == 1
    document = document_of(audit(found))
    assert (document["verdict"], document["summary"]) == ("not verified", line)
    assert document["coverage"]["not_verified"] == {"it is compacted": 25}
    textfile = tmp_path / "audit.prom"
    metrics.write(textfile, "m", AuditRequest(), audit(found))
    written = textfile.read_text()
    for line in (
        'check_failed{check="audit",mirror="m",topic="orders"} 1.0',
        'audit_verdict{mirror="m",topic="orders",verdict="not verified"} 1.0',
        'audit_verdict{mirror="m",topic="orders",verdict="agrees"} 0.0',
        'audit_records{coverage="not_verified",mirror="m",topic="orders"} 25.0',
    ):
        assert line in written


@pytest.mark.parametrize(
    ("asked", "stays"),
    [
        ({"window": "w2"}, True),
        ({"partition": 0, "topics": ("orders",)}, True),
        ({"offsets": (0, 9), "topics": ("orders",)}, True),
        ({"since_ms": 1}, True),
        ({"level": Level.LEDGER}, True),
        ({"topics": ("orders",)}, False),
        ({}, False),
    ],
    ids=str,
)
def test_a_failed_check_stays_until_the_whole_topic_passes(
    tmp_path: Path,
    asked: dict[str, Any],
    stays: bool,  # noqa: FBT001
) -> None:
    """What passes on a part of it has not looked at what failed."""
    textfile = tmp_path / "audit.prom"
    bad, good = audit(audited(DIFFERENCE)), audit(whole())
    (partition,) = good.partitions.values()
    partition.uncompared["retention"] = 10
    good.request = request = AuditRequest(**{"level": Level.FULL, **asked})
    partition.level = request.level
    metrics.write(textfile, "m", AuditRequest(window="w1"), bad)
    metrics.write(textfile, "m", request, good)
    assert gauge(textfile, "check_failed") == {("orders", "audit"): float(stays)}
    verdicts = gauge(textfile, "audit_verdict")
    assert verdicts["orders", "differs"] == float(stays)
    assert verdicts["orders", "agrees"] == float(not stays)


def test_a_failed_check_outlives_its_topic(tmp_path: Path) -> None:
    """Whether it was asked for or not; a topic that passed and is gone is forgotten."""
    textfile = tmp_path / "audit.prom"
    line = 'kafka_relay_check_failed{{mirror="m",topic="{}",check="audit"}} {}\n'
    known = [("gone", 1), ("passed", 0), ("asked", 0), ("", 1)]
    textfile.write_text("".join(line.format(*each) for each in known))
    found = audit(whole())
    asked = AuditRequest(topics=("orders", "asked", "gone"))
    metrics.write(textfile, "m", asked, replace(found, request=asked))
    failed = {"gone": 1, "asked": 1, "orders": 0}
    assert gauge(textfile, "check_failed") == {
        (topic, "audit"): value for topic, value in {**failed, "passed": 0, "": 1}.items()
    }
    metrics.write(textfile, "m", AuditRequest(), found)
    assert gauge(textfile, "check_failed") == {
        (topic, "audit"): value for topic, value in failed.items()
    }
    metrics.write(textfile, "m", AuditRequest(), None)
    assert gauge(textfile, "check_failed") == {
        (topic, "audit"): value for topic, value in {**failed, "": 1}.items()
    }


def test_audits_that_write_one_file_take_turns(tmp_path: Path) -> None:
    """A failure that one has written is in what the other one keeps."""
    textfile = tmp_path / "audit.prom"
    failed_one = textfile, "m", AuditRequest(topics=("asked",)), None
    other = threading.Thread(target=metrics.write, args=failed_one)
    with metrics._alone_in(tmp_path):
        other.start()
        other.join(0.2)
        assert other.is_alive()
        labels = 'mirror="m",topic="orders",check="audit"'
        textfile.write_text(f"{PREFIX}check_failed{{{labels}}} 1\n")
    other.join()
    assert gauge(textfile, "check_failed") == {("asked", "audit"): 1, ("orders", "audit"): 1}


@pytest.mark.parametrize(
    ("content", "line"),
    [
        (b"<html>", "is not a file of metrics: invalid metric name:<html>; delete it, or name"),
        (b"\xff", "is not a file of metrics: 'utf-8' codec can't decode byte 0xff"),
        (None, "cannot be written; name another file"),
        (b'node_load{mirror="m",topic="t"} 1\n', "has other metrics, such as node_load, which"),
        (
            b'kafka_relay_schemas_verdict{mirror="m",topic="t",verdict="agrees"} 1\n',
            "such as kafka_relay_schemas_verdict, which would be lost; name a file of its own",
        ),
        (b"kafka_relay_check_failed 1\n", "has other metrics, such as kafka_relay_check_failed,"),
    ],
    ids=["a page", "bytes", "a folder", "another program's", "of schemas", "other labels"],
)
def test_a_file_of_something_else_is_refused(
    tmp_path: Path, content: bytes | None, line: str
) -> None:
    """Before the audit; what is in it is not replaced."""
    textfile = tmp_path / "audit.prom"
    textfile.mkdir() if content is None else textfile.write_bytes(content)
    with pytest.raises(ConfigError) as refused:
        metrics.require_rewritable(textfile, metrics.NAMES)
    assert str(refused.value).startswith(f"--textfile: {textfile} ")
    assert line in str(refused.value)
    assert content is None or textfile.read_bytes() == content


def test_a_file_in_a_folder_that_cannot_be_locked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is refused before the audit: NFS locks no folder that is open for reading."""

    def refuse(*_: int) -> None:
        raise OSError(errno.EBADF, os.strerror(errno.EBADF))

    monkeypatch.setattr(fcntl, "flock", refuse)
    with pytest.raises(RelayError, match="cannot be locked: Bad file"):
        metrics.require_rewritable(tmp_path / "audit.prom", metrics.NAMES)


@pytest.mark.skipif(os.getuid() != 0, reason="only root can be another user")
def test_a_file_in_a_folder_that_cannot_be_written() -> None:
    """It can be written there, and not be replaced; a new one can be neither."""
    program = (
        "from pathlib import Path; from relay_pipelines.audit import metrics\n"
        "from relay_pipelines.invocation import require_writable\n"
        "for refuse in (lambda: metrics.require_rewritable(Path('old'), metrics.NAMES),\n"
        "               lambda: require_writable('--html', Path('new')),\n"
        "               lambda: require_writable('--html', Path('old'))):\n"
        "    try: print(refuse())\n"
        "    except Exception as error: print(error)\n"
    )
    with tempfile.TemporaryDirectory() as folder:  # that of pytest is root's alone
        old = Path(folder, "old")
        old.touch()
        old.chmod(0o666)
        Path(folder).chmod(0o755)
        other = ["setpriv", "--reuid=54321", "--regid=54321", "--clear-groups"]
        done = subprocess.run(
            [*other, sys.executable, "-c", program],
            cwd=folder,
            env={**os.environ, "PYTHONPATH": str(ROOT), "HOME": folder},
            capture_output=True,
            text=True,
            check=True,
        )
    replaced, new, written = done.stdout.splitlines()
    assert replaced == ("--textfile: the folder . cannot be written; name a file in another folder")
    assert new == "--html: new cannot be written; name another file"
    assert written == "None"


def gauge(textfile: Path, name: str) -> dict[tuple[str, str], float]:
    return {
        (
            sample.labels["topic"],
            sample.labels.get("check") or sample.labels["verdict"],
        ): sample.value
        for family in text_string_to_metric_families(textfile.read_text())
        for sample in family.samples
        if sample.name == f"kafka_relay_{name}"
    }


@pytest.mark.parametrize("strict", [False, True])
def test_a_strict_audit_passes_no_note(
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    strict: bool,  # noqa: FBT001
) -> None:
    """What it notes is told as errors, and is exit code 4."""
    found = whole()
    found.uncompared["retention"] = 10
    audited_whole = audit(found)
    audited_whole.request = replace(audited_whole.request, strict=strict)
    invocation = Invocation(tmp_path)
    report(invocation, audited_whole, as_json=False)
    shown = capsys.readouterr()
    lines = [
        "m: orders-0: 10 records were not compared: retention",
        "m: not verified: 10 (retention); agrees: 15 of 25 records compared by content",
    ]
    assert (invocation.exit_code, audited_whole.exit_code) == (4 * strict, 4 * strict)
    assert shown.err.splitlines() == ([f"error: {line}" for line in lines] if strict else [])
    assert all((line in shown.out) is not strict for line in lines)


def test_what_compaction_has_removed_was_not_compared() -> None:
    """A record that is gone for a later one of its key is explained, and says so."""
    found = whole()
    (result,) = found.results
    found.results = [replace(result, superseded=4)]
    found.uncompared["retention"] = 10
    assert str(found.verdict) == (
        "not verified: 10 (retention); agrees: 11 of 25 records compared by content,"
        " 4 gone for a later one of their key"
    )
    assert found.verdict.tally.numbers["superseded"] == 4
    found.uncompared["compaction"] = 2
    assert str(found.verdict).startswith(
        "not verified: 10 (retention), 2 (compaction); agrees: 11 of 27 records"
    )


def test_json() -> None:
    """It can be written, and has everything that the page shows."""
    found = audited(DIFFERENCE)
    found.counted = [counted(0, 40, 25, 25, 3)]
    document = json.loads(json.dumps(document_of(audit(found))))
    (partition,) = document["topic_partitions"]
    assert (document["mirror"], document["level"], document["share_percent"]) == ("m", "full", 5.0)
    assert partition["missing"] == [{"start": 40, "end": 45}]
    counts = {"recorded": 25, "counted": 25, "foreign": 3, "first_foreign_offset": 30}
    none: dict[str, dict[str, int]] = {"not_compared": {}, "not_verified": {}}
    zero = dict.fromkeys(("differing_chunks", "untimed", "uncopied"), 0)
    assert partition["recount"] == counts | none | zero
    compared = {"chunks": 1, "compared": 1, "records": 15, "upstreams": ["kafka-a"]}
    zero = dict.fromkeys(("undecoded", "superseded", "untimed"), 0)
    assert partition["comparison"] == {"rule": "record by record"} | compared | zero
    first = partition["first_difference"]
    assert (first["start"], first["end"], first["destination"]) == (10, 30, None)
    assert (first["source"]["offset"], first["source"]["value"]) == (15, BAD)
    assert [each["severity"] for each in partition["findings"]] == ["difference"] * 4
    found = audited()
    found.rule, found.results, found.chunks = "", [], []
    (partition,) = document_of(audit(found))["topic_partitions"]
    left_out = ("recount", "comparison", "first_difference")
    assert [partition[key] for key in left_out] == [None] * 3


class _Sources(HTMLParser):
    """Collects what a browser would load."""

    def __init__(self) -> None:
        super().__init__()
        self.loaded: list[str] = []
        self.tags: set[str] = set()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.add(tag)
        self.loaded += [str(value) for name, value in attrs if name in {"src", "href"}]


def test_a_page_loads_nothing_and_says_what_was_found() -> None:
    """It runs nothing: what records contain is text; its picture is well-formed."""
    made = page([audit(audited(DIFFERENCE))], 1_700_000_000_000)
    parser = _Sources()
    parser.feed(made)
    assert parser.loaded == []
    assert "script" not in parser.tags
    assert "&lt;script&gt;" in made
    assert "url(" not in made
    for text in (
        "Made 2023-11-14T22:13:20Z",
        "orders-0 → copy.orders-0",
        "differs",
        "1 record differs",
        "no record",
        "not yet",
        "missing",
    ):
        assert text in made
    agreeing = PartitionAudit(coverage(wanted(0, 40), CHUNKS, 40), Chain(AT), Level.FULL)
    assert "differs</span>" not in page([audit(agreeing)], 0)
    picture = made[made.index("<svg") : made.index("</svg>") + len("</svg>")]
    kinds = [child.tag for child in ET.fromstring(picture)]
    assert kinds.count("rect") == 7
    assert kinds.count("line") == 1


def test_the_bars_fill_the_picture() -> None:
    """Their areas are the shares of the offsets."""
    made = list(bars(coverage(wanted(0, 40), CHUNKS, 40).stretches))
    assert sum(bar["width"] * bar["height"] for bar in made) == pytest.approx(WIDTH * HEIGHT)
    copied = sum(bar["width"] * bar["height"] for bar in made if "copied" in bar["title"])
    assert copied / (WIDTH * HEIGHT) == pytest.approx(25 / 40)
    assert [bar["title"] for bar in made][:3] == [
        "[0, 10): 10 copied",
        "[10, 30): 15 copied",
        "[10, 30): 5 filtered",
    ]
    (bar,) = bars([Stretch(5, 6, {"copied": 1})])
    assert (bar["x"], bar["width"], bar["height"]) == (0, WIDTH, HEIGHT)
    assert list(bars([])) == []


def test_what_a_page_is_of() -> None:
    """Very many chunks make a small one; the mark is where the first difference is."""
    chunks = [entry(start, start + 1) for start in range(5_000)]
    found = PartitionAudit(coverage(wanted(0, 5_000), chunks, 5_000), Chain(AT), Level.FULL)
    assert len(page([audit(found)], 0)) < 200_000
    assert mark(audited(DIFFERENCE)) == pytest.approx(WIDTH * 15 / 60)
    assert mark(audited()) is None
    without_record = Difference("the source has fewer", None, None)
    assert mark(audited(without_record)) == pytest.approx(WIDTH * 10 / 60)


RANGE = "write START:END, such as 100:200, 100: or :200"
TIME = "write 2026-01-31 or 2026-01-31T12:00:00Z"
MISTAKES = [
    ("--partition 1", "partition needs a topic; name one source topic"),
    ("--offsets 1:2", "offsets needs a topic; name one source topic"),
    *(
        (f"--topic t --offsets {text}", f"--offsets: {text!r} is no range of offsets; {RANGE}")
        for text in ("5", "7:7", "9:3", "a:b", "-1:3")
    ),
    ("--since yesterday", f"--since: 'yesterday' is no time; {TIME}"),
    ("--until 31.1.", f"--until: '31.1.' is no time; {TIME}"),
    (
        "--window w --since 2026-01-31",
        "a window names offsets by itself; leave out offsets, since and until",
    ),
    (
        "--topic t --offsets 1:2 --until 2026-01-31",
        "offsets and dates exclude each other; leave one of them out",
    ),
    (
        "--against s.json --topic t --level full",
        (
            "--against audits what the statement says, and not a part of it; leave out"
            " --topic, --level"
        ),
    ),
    (
        "--against none.json",
        (
            "cannot read the statement none.json: No such file or directory;"
            " `relay attest --output FILE` writes one"
        ),
    ),
    ("--html none/a.html", "--html: there is no folder none; create it first"),
    ("--html .", "--html: . cannot be written; name another file"),
    ("--textfile none/a.prom", "--textfile: there is no folder none; create it first"),
]


@pytest.mark.parametrize(("arguments", "line"), MISTAKES, ids=[asked for asked, _ in MISTAKES])
def test_a_mistake_is_one_line(
    arguments: str, line: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    config = tmp_path / "relay.yaml"
    config.write_text(MINIMAL)
    assert main(["--config", str(config), "audit", *arguments.split()]) == 2
    assert capsys.readouterr().err == f"error: {line}\n"


def test_unknown_levels_are_refused(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["audit", "--level", "half"]) == 2
    assert "'half'" in capsys.readouterr().err
