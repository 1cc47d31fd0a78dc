"""What commands that run for days know of relay.yaml."""

from __future__ import annotations

from pathlib import Path

import pytest

from relay_pipelines.invocation import FollowedMirrors, Invocation

TEXT = """\
mirrors:
  m:
    source: {nodes: [{name: a, bootstrap_servers: "a:1"}]}
    destination: {bootstrap_servers: "b:1"}
    topics: {allow: [orders]}
"""


def test_the_mirrors_follow_the_file(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A file that cannot be used changes nothing, and is said once until it can be used again."""
    path = tmp_path / "relay.yaml"
    path.write_text(TEXT)
    followed = FollowedMirrors(Invocation(path), ["m"])
    before = followed.mirrors
    assert not followed.changed()
    for unusable in ("mirrors: {", TEXT.replace("  m:", "  other:")):
        path.write_text(unusable)
        assert [followed.changed(), followed.changed()] == [False, False]
        assert followed.mirrors == before
        (line,) = capsys.readouterr().err.splitlines()
        assert line.startswith("relay.yaml has changed, and its last version stays in use: ")
    path.write_text(TEXT.replace("orders", "paid"))
    assert [followed.changed(), followed.changed()] == [True, False]
    assert followed.mirrors["m"].topics.allow == ("paid",)
    assert capsys.readouterr().err == ""
