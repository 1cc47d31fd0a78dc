"""`python -m benchmarks.orchestration [--quick]`."""

from __future__ import annotations

import argparse
import json
import os
import shutil
import sys
import time
from dataclasses import asdict
from pathlib import Path

from benchmarks import machine
from benchmarks.orchestration import busy, crowded, idle, latency, report, wide
from benchmarks.orchestration.environment import start_environment

_ROOT = Path(__file__).resolve().parents[2]
_REPORT = _ROOT / "docs" / "benchmarks-dagster.md"
_FOLDER = _ROOT / "var" / "benchmarks-dagster"


def main() -> int:
    """Measure and write the report."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.orchestration",
        description="Measures the costs of Dagster around the copy.",
    )
    parser.add_argument(
        "--quick",
        action="store_true",
        help="fewer topics and windows: a smoke test; the report goes to var/",
    )
    quick = parser.parse_args().quick
    shutil.rmtree(_FOLDER, ignore_errors=True)
    _FOLDER.mkdir(parents=True)
    began, described = time.monotonic(), machine.describe()
    described["other work"] = (
        f"load average {os.getloadavg()[0]:.1f} before the first process was started"
    )

    def progress(line: str) -> None:
        print(f"{time.monotonic() - began:4.0f} s  {line}", flush=True)

    with start_environment(_FOLDER, 20 if quick else 200) as environment:
        progress("topics created")
        working = busy.measure(environment, 4 if quick else 20, progress)
        waiting = idle.measure(environment, 10.0 if quick else 60.0)
        progress(f"idle: {waiting.share:.1%} of a core; ticks {waiting.ticks}")
        full = crowded.measure(environment, 500 if quick else 25_000, progress)
    latencies = {}
    for name, session in (("with a session", "15m"), ("without sessions", 0)):
        with start_environment(_FOLDER / name.replace(" ", "-"), 1) as environment:
            found = latency.measure(environment, 20.0 if quick else 60.0, session)
        progress(f"{name}: {found}")
        latencies[name] = found
    wides = []
    for topics in (10, 100) if quick else (100, 1000):
        with start_environment(_FOLDER / f"{topics}-topics", topics, 10) as environment:
            wides.append(wide.measure(environment, progress))
    figures = {
        "latencies": {name: asdict(found) for name, found in latencies.items()},
        "busy": asdict(working),
        "idle": asdict(waiting),
        "crowded": asdict(full),
        "wide": [asdict(found) for found in wides],
        "machine": described,
    }
    (_FOLDER / "figures.json").write_text(json.dumps(figures, indent=1))
    target = _FOLDER / _REPORT.name if quick else _REPORT
    target.write_text(report.as_markdown(latencies, working, waiting, full, wides, described))
    progress(f"report in {target.relative_to(_ROOT)}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
