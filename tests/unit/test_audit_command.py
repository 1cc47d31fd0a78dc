"""The options of `relay audit`: mistakes are one line, before any cluster is asked."""

from __future__ import annotations

from pathlib import Path

import pytest

from relay_pipelines.cli import main
from tests.support.config_files import MINIMAL


@pytest.mark.parametrize(
    ("arguments", "line"),
    [
        (["--partition", "1"], "partition needs a topic; name one source topic"),
        (["--offsets", "1:2"], "offsets needs a topic; name one source topic"),
        *(
            (
                ["--topic", "t", "--offsets", text],
                (
                    f"--offsets: {text!r} is no range of offsets; write START:END, such as 100:200,"
                    " 100: or :200"
                ),
            )
            for text in ("5", "7:7", "9:3", "a:b", "-1:3")
        ),
        (
            ["--since", "yesterday"],
            "--since: 'yesterday' is no time; write 2026-01-31 or 2026-01-31T12:00:00Z",
        ),
        (
            ["--until", "31.1."],
            "--until: '31.1.' is no time; write 2026-01-31 or 2026-01-31T12:00:00Z",
        ),
        (
            ["--window", "w", "--since", "2026-01-31"],
            "a window names offsets by itself; leave out offsets, since and until",
        ),
        (
            ["--topic", "t", "--offsets", "1:2", "--until", "2026-01-31"],
            "offsets and dates exclude each other; leave one of them out",
        ),
        (
            ["--client", "librdkafka"],
            "client librdkafka is for comparing both sides; ask for the level full or sample",
        ),
        (["--key", "k.pem"], "--key needs --against; name the statement"),
        (
            ["--against", "s.json", "--topic", "t", "--level", "full"],
            (
                "--against audits what the statement says, and not a part of it; leave out"
                " --topic, --level"
            ),
        ),
        (
            ["--against", "none.json"],
            (
                "cannot read the statement none.json: No such file or directory;"
                " `relay attest --output FILE` writes one"
            ),
        ),
        (["--html", "none/a.html"], "--html: there is no folder none; create it first"),
        (["--html", "."], "--html: . cannot be written; name another file"),
        (["--textfile", "none/a.prom"], "--textfile: there is no folder none; create it first"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_a_mistake_is_one_line(
    arguments: list[str], line: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    config = tmp_path / "relay.yaml"
    config.write_text(MINIMAL)
    assert main(["--config", str(config), "audit", *arguments]) == 2
    assert capsys.readouterr().err == f"error: {line}\n"


def test_unknown_levels_are_refused(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["audit", "--level", "half"]) == 2
    assert "'half'" in capsys.readouterr().err
