"""`relay spark` refuses addresses and settings before it starts anything."""

from __future__ import annotations

from pathlib import Path

import pytest

from relay_pipelines.cli import main

NOBODY = "bootstrap_servers: '127.0.0.1:1'"
MIRRORS = (
    f"mirrors: {{m: {{source: {{nodes: [{{name: n, {NOBODY}}}]}}, destination: {{{NOBODY}}}}}}}"
)


@pytest.mark.parametrize(
    ("spark", "arguments", "line"),
    [
        (
            "{}",
            ["status"],
            (
                "spark.remote is not set, so that no run would use a Spark Connect server;"
                " set it to sc://127.0.0.1:15002"
            ),
        ),
        (
            "{remote: 'sc://spark.example:15002/;token=secret'}",
            ["start"],
            (
                "spark.remote is sc://spark.example:15002: relay starts a server on 127.0.0.1 only;"
                " set spark.remote to sc://127.0.0.1:15002, or start that server with Spark's"
                " start-connect-server.sh"
            ),
        ),
        (
            "{remote: 'sc://localhost'}",
            ["start", "--conf", "spark.master"],
            "--conf spark.master is not a Spark setting; write --conf spark.key=value",
        ),
        (
            "{remote: 'sc://localhost'}",
            ["start", "--conf", "spark.speculation=true"],
            (
                "--conf spark.speculation=true: two tasks would copy the same range and fence each"
                " other; leave it out"
            ),
        ),
    ],
    ids=["no server", "another machine", "no value", "speculation"],
)
def test_what_cannot_be_started_is_one_line(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    spark: str,
    arguments: list[str],
    line: str,
) -> None:
    """The line says why, shows no secret, and nothing is left in the state folder."""
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    (tmp_path / "relay.yaml").write_text(f"spark: {spark}\n{MIRRORS}\n")
    assert main(["spark", *arguments, "-c", str(tmp_path / "relay.yaml")]) == 2
    assert capsys.readouterr().err == f"error: {line}\n"
    assert not (tmp_path / "state").exists()
