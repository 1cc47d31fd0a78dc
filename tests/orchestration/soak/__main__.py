"""Mirrors with Dagster while processes are killed: `python -m tests.orchestration.soak`."""

from __future__ import annotations

import argparse
import json
import logging
import random
import shutil
import sys
import tempfile
from dataclasses import asdict
from pathlib import Path

from benchmarks import machine
from relay_pipelines.output.formatting import stdout
from tests.orchestration.soak import report
from tests.orchestration.soak.faults import Strike
from tests.orchestration.soak.sampling import Sample, Usage
from tests.orchestration.soak.soak import soak

_ROOT = Path(__file__).parents[3]
_HERE = Path(__file__).parent
_RESULTS = _ROOT / "var" / "soak"
_PUBLISHED_MINUTES = 30.0
"""The result of a shorter run stays in var/."""


def main() -> int:
    """Print progress, write the report; return 0 if all arrived and nothing grows."""
    arguments = _parse()
    console = stdout()
    _RESULTS.mkdir(parents=True, exist_ok=True)
    figures = _RESULTS / "figures.json"
    if arguments.report:
        found, described = _read(figures)
    else:
        logging.getLogger("relay_pipelines").addHandler(logging.NullHandler())
        folder = Path(tempfile.mkdtemp(prefix="relay-soak-"))
        console.print(
            f"{arguments.minutes:g} minutes with --seed {arguments.seed}; data in {folder}"
        )
        described = machine.describe() | {"brokers": "one per cluster, on the same machine"}
        found = soak(arguments.minutes, arguments.seed, folder, console.print)
        figures.write_text(json.dumps({"report": asdict(found), "machine": described}))
        if not found.failures():
            shutil.rmtree(folder)
    published = found.seconds >= _PUBLISHED_MINUTES * 60
    target = _ROOT / "docs" if published else _RESULTS
    (target / "pictures").mkdir(exist_ok=True)
    (target / "soak.md").write_text(report.as_markdown(found, _HERE / "soak.md.j2", described))
    (target / "pictures" / "soak.svg").write_text(report.as_svg(found, _HERE / "soak.svg.j2"))
    for failure in found.failures():
        console.print(f"failed: {failure}")
    console.print(f"report in {(target / 'soak.md').relative_to(_ROOT)}")
    return 1 if found.failures() else 0


def _read(figures: Path) -> tuple[report.Report, dict[str, str]]:
    read = json.loads(figures.read_text())
    fields = read["report"]
    samples = [
        Sample(
            **sample | {"roles": {role: Usage(**usage) for role, usage in sample["roles"].items()}}
        )
        for sample in fields.pop("samples")
    ]
    strikes = [Strike(*strike) for strike in fields.pop("strikes")]
    return report.Report(samples=samples, strikes=strikes, **fields), read["machine"]


def _parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m tests.orchestration.soak", description=__doc__)
    parser.add_argument("--minutes", type=float, default=60.0, help="of the faults: 60")
    parser.add_argument(
        "--seed",
        type=int,
        default=random.randrange(10_000),
        help="of the faults; random by default",
    )
    parser.add_argument(
        "--report", action="store_true", help="write the report again, from var/soak/figures.json"
    )
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
