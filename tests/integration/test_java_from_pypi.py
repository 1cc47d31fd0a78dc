"""A machine with Python alone: the wheel and its extra bring the rest."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.wheel import ROOT

ENVIRONMENT = {"HOME", "LANG", "TMPDIR", "UV_CACHE_DIR", "XDG_CACHE_HOME"}


@pytest.mark.long(downloads=True)
@pytest.mark.timeout(1200)
def test_the_demo_runs_without_a_jdk(tmp_path: Path) -> None:
    """No Java, no shell and no other program is on the path."""
    build = [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(tmp_path)]
    subprocess.run(build, cwd=ROOT, check=True, capture_output=True)
    (wheel,) = tmp_path.glob("*.whl")
    subprocess.run([sys.executable, "-m", "venv", tmp_path / "venv"], check=True)
    programs = tmp_path / "venv" / "bin"
    install = [str(Path(sys.executable).with_name("uv")), "pip", "install", "--quiet"]
    install += ["--python", str(programs / "python"), "--require-hashes"]
    install += ["--constraint", "requirements.lock", "--requirements", "pyproject.toml"]
    subprocess.run([*install, "--extra", "java"], cwd=ROOT, check=True)
    subprocess.run([*install[:6], "--no-deps", wheel], check=True)
    environment = {name: value for name, value in os.environ.items() if name in ENVIRONMENT}
    done = subprocess.run(
        [programs / "relay", "demo"],
        cwd=tmp_path,
        env=environment | {"PATH": str(programs), "TMPDIR": str(tmp_path)},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "Nothing lost, nothing duplicated" in done.stdout
