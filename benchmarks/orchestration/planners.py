"""What the planners of one mirror cost in several checkouts of this project.

`python -m benchmarks.orchestration.planners [--topics N] CHECKOUT ...`: each checkout needs a
`.venv` of its own, and mirrors the same topics in four lanes. They take turns on the same brokers.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from typing import Any

import yaml
from confluent_kafka import Producer

from benchmarks import clusters
from benchmarks.orchestration import planner_rounds
from relay_pipelines.model import Cluster
from tests.support import commands
from tests.support.independent import client

_LANES = 4
_PARTITIONS = 2
_TURNS = 5
_ROUNDS = 3
_FIGURES = ("seconds", "cpu", "requests", "connections")


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.orchestration.planners")
    parser.add_argument("--topics", type=int, default=400)
    parser.add_argument("checkout", nargs="+", type=Path)
    wanted = parser.parse_args()
    print(f"load average before: {os.getloadavg()[0]:.2f}")
    rows = measure(wanted.checkout, wanted.topics)
    print("| checkout | planners | what waits | s | CPU-s | requests | connections |")
    print("|---|---|---|---|---|---|---|")
    for checkout, planners, waits, figures in rows:
        shown = " | ".join(
            f"{figures[name]:.2f}" if name in {"seconds", "cpu"} else f"{figures[name]:.0f}"
            for name in _FIGURES
        )
        print(f"| {checkout.resolve().name} | {planners} | {waits} | {shown} |")
    print(f"load average after: {os.getloadavg()[0]:.2f}")


def measure(
    checkouts: Sequence[Path], topics: int
) -> list[tuple[Path, int, str, Mapping[str, float]]]:
    """Return a row for each checkout and for what waits: medians of a round of all planners."""
    names = [f"topic{number:04}" for number in range(topics)]
    with ExitStack() as stack:
        folder = Path(stack.enter_context(TemporaryDirectory(prefix="relay-planners-")))
        source = stack.enter_context(clusters.embedded("source")).cluster()
        destination = stack.enter_context(clusters.embedded("destination")).cluster()
        clusters.create_topics(source, names, _PARTITIONS, {})
        _fill(source, names)
        planners = []
        for number, checkout in enumerate(checkouts):
            (own := folder / f"mirror{number}").mkdir()
            _configure(own, source, destination, topics)
            # each reads its own checkpoints: their format differs
            command = [str(_of(checkout) / "relay"), "run", "--stop-at-end"]
            subprocess.run(command, cwd=own, check=True, capture_output=True)
            planners.append(stack.enter_context(_started(checkout, own)))
        counts = [json.loads(_answer(each))["planners"] for each in planners]
        rows: list[tuple[Path, int, str, Mapping[str, float]]] = []
        for waits in ("nothing", "a record in every topic-partition"):
            if waits != "nothing":
                _fill(source, names)
            found = _take_turns(planners)
            rows += [
                (checkout, count, waits, _medians(rounds))
                for checkout, count, rounds in zip(checkouts, counts, found, strict=True)
            ]
        return rows


def _take_turns(planners: Sequence[subprocess.Popen[str]]) -> list[list[Mapping[str, float]]]:
    """Return the rounds of each; the first turn, which reports what is new, does not count."""
    found: list[list[Mapping[str, float]]] = [[] for _ in planners]
    for turn in range(_TURNS + 1):
        for planner, rounds in zip(planners, found, strict=True):
            assert planner.stdin is not None
            planner.stdin.write(f"{_ROUNDS}\n")
            planner.stdin.flush()
            answer = json.loads(_answer(planner))
            if turn:
                rounds.extend(answer)
    return found


def _answer(planner: subprocess.Popen[str]) -> str:
    assert planner.stdout is not None
    return planner.stdout.readline()


@contextmanager
def _started(checkout: Path, folder: Path) -> Iterator[subprocess.Popen[str]]:
    process = subprocess.Popen(
        [_of(checkout) / "python", "-P", planner_rounds.__file__, folder],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        cwd=folder,
        text=True,
    )
    with process:
        try:
            yield process
        finally:
            process.terminate()


def _of(checkout: Path) -> Path:
    """The folder of a checkout's commands."""
    return checkout.absolute() / ".venv" / "bin"


def _medians(rounds: Sequence[Mapping[str, float]]) -> dict[str, float]:
    return {name: median(each[name] for each in rounds) for name in _FIGURES}


def _fill(source: Cluster, topics: Sequence[str]) -> None:
    """Write a record to every topic-partition."""
    sender = Producer(client(source))
    for topic in topics:
        for partition in range(_PARTITIONS):
            sender.produce(topic, b"a record", partition=partition)
        sender.poll(0)
    sender.flush(60)


def _configure(folder: Path, source: Cluster, destination: Cluster, topics: int) -> None:
    """Write a relay.yaml of one mirror, whose topics are spread over the lanes evenly."""
    each = topics // _LANES
    lanes: dict[str, Any] = {
        f"lane{lane}": {
            "topics": [f"topic{number:04}" for number in range(lane * each, (lane + 1) * each)]
        }
        for lane in range(1, _LANES)
    }
    renamed = {"rename": f"{folder.name}.{{topic}}"}
    mirror = commands.mirror(source, destination, "topic[0-9]+", topics=renamed, lanes=lanes)
    (folder / "relay.yaml").write_text(yaml.safe_dump({"mirrors": {folder.name: mirror}}))


if __name__ == "__main__":
    main()
