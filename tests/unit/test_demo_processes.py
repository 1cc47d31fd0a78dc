"""The processes of the demo: they touch nothing of the user's."""

from __future__ import annotations

from pathlib import Path

import pytest

from relay_pipelines.demo.dagster import RelayProcess, variables_for
from relay_pipelines.errors import RelayError


def test_the_demo_uses_its_own_relay_yaml(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also where the user's own one is in the environment, as in the image: it would be copied."""
    for name in ("DAGSTER_HOME", "RELAY_CATALOG", "RELAY_CONFIG", "RELAY_CONFIG_YAML"):
        monkeypatch.setenv(name, "mirrors: {of-the-user: 5}")
    (tmp_path / "relay.yaml").write_text("mirrors: {of-the-demo: 5}")
    process = RelayProcess(tmp_path, ["plan"], "log", 300)
    try:
        with pytest.raises(RelayError, match=r"relay.yaml:1: mirrors.of-the-demo: expected a mapp"):
            process.check()
    finally:
        process.close()
    assert "of-the-user" not in "".join(variables_for(tmp_path).values())
