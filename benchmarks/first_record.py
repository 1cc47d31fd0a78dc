"""From nothing to the first mirrored records: `python -m benchmarks.first_record`.

Of this project, uv installs the wheel with a Java from PyPI, its cache being empty, and `relay run`
copies 1,000 records, to the end of the command, with no other Java. Of MirrorMaker 2, the jars are
downloaded into an empty cache, and it runs until the records have arrived; its Java is there
before. So are the clusters.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import yaml

from benchmarks import clusters
from benchmarks.contenders.mirrormaker import MirrorMaker
from benchmarks.contenders.relay_process import COMMAND
from benchmarks.inputs import Input
from benchmarks.values import Case
from tests.support import commands

_ROOT = Path(__file__).resolve().parent.parent
_INPUT = Input("first", "1,000 x 1 KiB", 1_000, 1024, 16 << 10)
_LIMIT_SECONDS = 300.0


def main() -> None:
    """Measure both and print a table."""
    with (
        clusters.embedded("source") as source,
        clusters.embedded("destination") as destination,
        tempfile.TemporaryDirectory(prefix="relay-first-") as name,
    ):
        extents = clusters.make_input(source.cluster(), _INPUT.name, _INPUT)
        print("| | install or download | configure, start, copy |\n|---|---|---|")
        for title, attempt, way in (
            ("`relay run`, the wheel with Java", "relay", _relay),
            ("MirrorMaker 2, jars", "mirrormaker", _mirrormaker),
        ):
            folder = Path(name, attempt)
            folder.mkdir()
            plain = source.cluster(), destination.cluster()
            case = Case(attempt, *plain, _INPUT.name, _INPUT, extents, _LIMIT_SECONDS)
            clusters.create_destinations(case.destination, case)
            installing, copying = way(case, folder)
            print(f"| {title} | {installing:.1f} s | {copying:.1f} s |", flush=True)


def _relay(case: Case, folder: Path) -> tuple[float, float]:
    build = [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(folder)]
    subprocess.run(build, cwd=_ROOT, check=True, capture_output=True)
    (wheel,) = folder.glob("*.whl")
    programs = folder / "bin"
    variables = {
        "UV_CACHE_DIR": str(folder / "uv"),
        "UV_TOOL_DIR": str(folder / "tools"),
        "UV_TOOL_BIN_DIR": str(programs),
        "XDG_CACHE_HOME": str(folder / "cache"),
        "JAVA_HOME": "",
    }
    began = time.monotonic()
    install = [str(COMMAND.with_name("uv")), "tool", "install", "--quiet", f"{wheel}[java]"]
    install += ["--python", sys.executable]
    subprocess.run(install, env={**os.environ, **variables}, check=True)
    installed = time.monotonic()
    renamed = {"rename": f"{case.attempt}.{{topic}}"}
    mirror = commands.mirror(
        case.source, case.destination, case.topics_regex, upstream="source", topics=renamed
    )
    config = folder / "relay.yaml"
    config.write_text(yaml.safe_dump({"mirrors": {case.attempt: mirror}}))
    command = [str(programs / "relay"), "--config", str(config), "run"]
    subprocess.run(
        command,
        env={**os.environ, **variables, "PATH": str(programs)},
        check=True,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
    )
    copied = time.monotonic()
    found = clusters.scan(case.destination, [destination for _, destination in case.pairs])
    assert sum(extent.records for extent in found) == case.records
    return installed - began, copied - installed


def _mirrormaker(case: Case, folder: Path) -> tuple[float, float]:
    os.environ["XDG_CACHE_HOME"] = str(folder / "cache")
    began = time.monotonic()
    contender = MirrorMaker(folder)  # downloads
    downloaded = time.monotonic()
    cost = contender.copy(case)
    assert not cost.error, cost.error
    return downloaded - began, cost.whole_seconds or 0.0


if __name__ == "__main__":
    main()
