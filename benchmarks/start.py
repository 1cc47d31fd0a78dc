"""What a small run pays before it copies: `python -m benchmarks.start [--old CHECKOUT]`.

It runs each command with and without an archive of Spark's classes, and with the code of another
checkout, in turn, and prints medians: seconds, and CPU seconds of the whole process tree.
"""

from __future__ import annotations

import argparse
import os
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path

import yaml

from benchmarks import clusters, first_job, tree
from benchmarks.contenders.relay_process import COMMAND
from benchmarks.inputs import Input
from relay_pipelines.model import Cluster
from relay_pipelines.spark import class_archive
from tests.support import commands

_ROOT = Path(__file__).resolve().parent.parent
_INPUT = Input("start", "2,000 x 1 KiB", 2_000, 1024, 16 << 10)
_COMMANDS = {
    "Spark and a first job": [sys.executable, first_job.__file__],
    "the same with RDDs": [sys.executable, first_job.__file__, "rdd"],
    "relay run, 2,000 records": [str(COMMAND), "run"],
    "relay run, nothing new": [str(COMMAND), "run"],
    "relay status": [str(COMMAND), "status"],
    "relay --help": [str(COMMAND), "--help"],
}


def main() -> None:
    """Measure and print a table."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.start", description=__doc__)
    parser.add_argument("--old", type=Path, help="a checkout of older code to compare with")
    parser.add_argument("--repetitions", type=int, default=5, help="of every command: 5")
    arguments = parser.parse_args()
    with (
        clusters.embedded("source") as source,
        clusters.embedded("destination") as destination,
        tempfile.TemporaryDirectory(prefix="relay-start-") as folder,
    ):
        clusters.make_input(source.cluster(), _INPUT.name, _INPUT)
        bench = _Bench(Path(folder), source.cluster(), destination.cluster(), arguments.old)
        for repetition in range(arguments.repetitions):
            bench.measure(repetition)
    print(f"load average {os.getloadavg()[0]:.1f}, {os.cpu_count()} cores\n")
    print(bench.table())


class _Bench:
    """The commands in all variants."""

    def __init__(
        self, folder: Path, source: Cluster, destination: Cluster, old: Path | None
    ) -> None:
        self._folder = folder
        self._clusters = source, destination
        new = {"PYTHONPATH": str(_ROOT)}
        (folder / "a file").touch()
        self._variants: dict[str, Mapping[str, str]] = {
            "without archive": {**new, "XDG_CACHE_HOME": str(folder / "a file")},
            "with archive": {**new, "XDG_CACHE_HOME": str(folder / "cache")},
        }
        if old is not None:
            self._variants = {"old": {"PYTHONPATH": str(old.resolve())}, **self._variants}
        os.environ["XDG_CACHE_HOME"] = str(folder / "cache")
        make = [sys.executable, "-m", class_archive.__name__]
        subprocess.run(make, check=True, stderr=subprocess.DEVNULL)
        self._spent: dict[tuple[str, str], list[tuple[float, float]]] = {}

    def measure(self, repetition: int) -> None:
        """Run everything once."""
        for variant, environment in self._variants.items():
            folder = self._folder / f"{variant}-{repetition}".replace(" ", "-")
            folder.mkdir()
            renamed = {"rename": f"{folder.name}.{{topic}}"}
            mirror = commands.mirror(*self._clusters, _INPUT.name, node="source", topics=renamed)
            (folder / "relay.yaml").write_text(yaml.safe_dump({"mirrors": {folder.name: mirror}}))
            for name, command in _COMMANDS.items():
                if variant != "old" or "rdd" not in command:
                    spent = _spent(command, folder, environment)
                    self._spent.setdefault((name, variant), []).append(spent)
                    print(f"{name}, {variant}: {spent[0]:.2f} s, {spent[1]:.2f} CPU s", flush=True)

    def table(self) -> str:
        """The medians, a row per command."""
        lines = [f"| | {' | '.join(self._variants)} |", f"|---|{'---|' * len(self._variants)}"]
        for name in _COMMANDS:
            cells = [self._cell(name, variant) for variant in self._variants]
            lines.append(f"| {name} | {' | '.join(cells)} |")
        return "\n".join(lines)

    def _cell(self, name: str, variant: str) -> str:
        found = self._spent.get((name, variant))
        if not found:
            return "-"
        seconds, cpu = (statistics.median(each) for each in zip(*found, strict=True))
        return f"{seconds:.2f} s, {cpu:.2f} CPU s"


def _spent(command: list[str], folder: Path, environment: Mapping[str, str]) -> tuple[float, float]:
    log = folder / "output.log"
    with log.open("wb") as output:
        try:
            return tree.spent(
                command,
                folder / "figures.json",
                cwd=folder,
                env={**os.environ, **environment},
                stdout=output,
                stderr=output,
            )
        except RuntimeError as error:
            raise RuntimeError(f"{error}: {log.read_text(errors='replace')[-1000:]}") from error


if __name__ == "__main__":
    main()
