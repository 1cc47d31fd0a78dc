"""What a small run pays besides the copy: `python -m benchmarks.start`.

It runs `relay run` of 1,000 records with each Java, and with the code of another checkout, and a
plain SparkContext that PySpark starts by its scripts and without an archive of classes, in turn. It
prints medians: seconds, CPU seconds of the whole process tree, and where they go.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path

import yaml

from benchmarks import clusters, first_job, start_marks, tree
from benchmarks.inputs import Input
from relay_pipelines import java
from relay_pipelines.model import Cluster
from relay_pipelines.spark import class_archive
from tests.support import commands

_ROOT = Path(__file__).resolve().parent.parent
_INPUT = Input("start", "1,000 x 1 KiB", 1_000, 1024, 16 << 10)
_PLAIN = "plain SparkContext and a job"
_EXIT = "exit"
_MIRROR = "start"


@dataclass
class _Way:
    """A way to start, and what each of its runs took.

    Args:
        java_home: of which Java; empty for the one that relay finds.
        code: the checkout whose code it runs; None for PySpark alone.
        seconds: and CPU seconds of a run.
        parts: seconds and CPU seconds of each part of a run, by the part.
    """

    java_home: str
    code: Path | None
    seconds: list[tuple[float, float]] = field(default_factory=list)
    parts: dict[str, list[tuple[float, float]]] = field(default_factory=lambda: defaultdict(list))

    @property
    def environment(self) -> dict[str, str]:
        return {
            **os.environ,
            **({"PYTHONPATH": str(self.code)} if self.code else {}),
            **({"JAVA_HOME": self.java_home} if self.java_home else {}),
        }


def main() -> None:
    """Measure and print the tables."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.start", description=__doc__)
    parser.add_argument("--java", action="append", default=[], help="another JAVA_HOME, such as 25")
    parser.add_argument("--old", type=Path, help="a checkout of older code to compare with")
    parser.add_argument("--repetitions", type=int, default=5, help="of every way: 5")
    arguments = parser.parse_args()
    ways = {_PLAIN: _Way("", None)}
    for home in ("", *arguments.java):
        version = java.find({"JAVA_HOME": home, "PATH": os.environ["PATH"]}).version
        ways[f"`relay run`, Java {version}"] = _Way(home, _ROOT)
        if arguments.old:
            ways[f"older code, Java {version}"] = _Way(home, arguments.old.resolve())
    with (
        clusters.embedded("source") as source,
        clusters.embedded("destination") as destination,
        tempfile.TemporaryDirectory(prefix="relay-start-") as folder,
    ):
        clusters.make_input(source.cluster(), _INPUT.name, _INPUT)
        os.environ["XDG_CACHE_HOME"] = f"{folder}/cache"
        for way in ways.values():
            if way.code:
                _make_archive(way)
        for repetition in range(-1, arguments.repetitions):  # the first one fills caches
            for number, way in enumerate(ways.values()):
                place = Path(folder, f"{number}-{repetition + 1}")
                _measure(way, place, source.cluster(), destination.cluster())
                if repetition < 0:
                    way.seconds.clear()
                    way.parts.clear()
    print(f"load average {os.getloadavg()[0]:.1f}, {os.cpu_count()} cores\n")
    print(_ratios(ways), _parts(ways), sep="\n\n")


def _make_archive(way: _Way) -> None:
    make = [sys.executable, "-m", class_archive.__name__]
    subprocess.run(
        make, check=True, env=way.environment, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )


def _measure(way: _Way, folder: Path, source: Cluster, destination: Cluster) -> None:
    """Run it once."""
    folder.mkdir()
    command = [sys.executable, first_job.__file__]
    if way.code:
        renamed = {"rename": f"{folder.name}.{{topic}}"}
        mirror = commands.mirror(
            source, destination, _INPUT.name, upstream="source", topics=renamed
        )
        (folder / "relay.yaml").write_text(
            yaml.safe_dump({"mirrors": {f"{_MIRROR}-{folder.name}": mirror}})
        )
        command = [sys.executable, "-P", start_marks.__file__, "marks.json", "run"]
    log = folder / "output.log"
    with log.open("wb") as output:
        try:
            total = tree.spent(
                command,
                folder / "figures.json",
                cwd=folder,
                env=way.environment,
                stdout=output,
                stderr=output,
            )
        except RuntimeError as error:
            raise RuntimeError(f"{error}: {log.read_text(errors='replace')[-1000:]}") from error
    way.seconds.append(total)
    if way.code:
        marks = json.loads((folder / "marks.json").read_text())
        for (_, *before), (part, *after) in pairwise([("", 0.0, 0.0), *marks, (_EXIT, *total)]):
            way.parts[part].append((after[0] - before[0], after[1] - before[1]))


def _ratios(ways: dict[str, _Way]) -> str:
    plain = _median(ways[_PLAIN].seconds)
    lines = ["| | seconds | CPU seconds | of the plain one |", "|---|---|---|---|"]
    for name, way in ways.items():
        seconds, cpu_seconds = _median(way.seconds)
        ratio = f"{seconds / plain[0]:.2f}, CPU {cpu_seconds / plain[1]:.2f}"
        lines.append(f"| {name} | {seconds:.2f} | {cpu_seconds:.2f} | {ratio} |")
    return "\n".join(lines)


def _parts(ways: dict[str, _Way]) -> str:
    runs = {name: way for name, way in ways.items() if way.code}
    lines = [f"| seconds, CPU seconds | {' | '.join(runs)} |", f"|---|{'---|' * len(runs)}"]
    for part in next(iter(runs.values())).parts:
        medians = (_median(way.parts[part]) for way in runs.values())
        lines.append(
            f"| {part} | {' | '.join('{:.2f}, {:.2f}'.format(*each) for each in medians)} |"
        )
    return "\n".join(lines)


def _median(figures: Sequence[tuple[float, float]]) -> tuple[float, float]:
    seconds, cpu_seconds = (statistics.median(each) for each in zip(*figures, strict=True))
    return seconds, cpu_seconds


if __name__ == "__main__":
    main()
