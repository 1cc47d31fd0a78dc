"""Mirrors with Dagster for a long time: `python -m benchmarks.orchestration.soak`.

Processes are killed meanwhile, or, with `--topics`, very many topics all have news.
"""

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
from benchmarks.orchestration import many_topics, many_topics_report, soak_page
from relay_pipelines.output.formatting import stdout
from tests.orchestration.soak.faults import Strike
from tests.orchestration.soak.report import Report
from tests.orchestration.soak.sampling import Sample, Usage
from tests.orchestration.soak.soak import soak

_ROOT = Path(__file__).parents[2]
_HERE = Path(__file__).parent
_RESULTS = _ROOT / "var" / "soak"
_PUBLISHED_MINUTES = 30.0
"""The result of a shorter run stays in var/."""


def main() -> int:
    """Print progress, write the report; return 0 if all arrived and nothing grows."""
    arguments = _parse()
    console = stdout()
    _RESULTS.mkdir(parents=True, exist_ok=True)
    if arguments.topics:
        return _many_topics(arguments)
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
    target = _target(found.seconds)
    (target / "soak.md").write_text(soak_page.as_markdown(found, _HERE / "soak.md.j2", described))
    (target / "pictures" / "soak.svg").write_text(soak_page.as_svg(found, _HERE / "soak.svg.j2"))
    for failure in found.failures():
        console.print(f"failed: {failure}")
    console.print(f"report in {(target / 'soak.md').relative_to(_ROOT)}")
    return 1 if found.failures() else 0


def _many_topics(arguments: argparse.Namespace) -> int:
    """Print progress, write the report; return 0 if all arrived."""
    console, minutes = stdout(), arguments.minutes
    folder = Path(tempfile.mkdtemp(prefix="relay-soak-"))
    console.print(f"{minutes:g} minutes of {arguments.topics} topics; data in {folder}")
    described = machine.describe() | {"brokers": "one per cluster, on the same machine"}
    found = many_topics.soak(arguments.topics, arguments.every, minutes, folder, console.print)
    target = _target(found.seconds)
    (target / "soak-topics.md").write_text(
        many_topics_report.as_markdown(
            found, Path(many_topics.__file__).with_suffix(".md.j2"), described
        )
    )
    (target / "pictures" / "soak-topics.svg").write_text(
        many_topics_report.as_svg(found, _HERE / "soak.svg.j2")
    )
    console.print(f"report in {(target / 'soak-topics.md').relative_to(_ROOT)}")
    if not found.missing:
        shutil.rmtree(folder)
    return 1 if found.missing else 0


def _target(seconds: float) -> Path:
    target = _ROOT / "docs" if seconds >= _PUBLISHED_MINUTES * 60 else _RESULTS
    (target / "pictures").mkdir(exist_ok=True)
    return target


def _read(figures: Path) -> tuple[Report, dict[str, str]]:
    read = json.loads(figures.read_text())
    fields = read["report"]
    samples = [
        Sample(
            **sample | {"roles": {role: Usage(**usage) for role, usage in sample["roles"].items()}}
        )
        for sample in fields.pop("samples")
    ]
    strikes = [Strike(*strike) for strike in fields.pop("strikes")]
    return Report(samples=samples, strikes=strikes, **fields), read["machine"]


def _parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.orchestration.soak", description=__doc__
    )
    parser.add_argument("--minutes", type=float, default=60.0, help="of the faults: 60")
    parser.add_argument(
        "--seed",
        type=int,
        default=random.randrange(10_000),
        help="of the faults; random by default",
    )
    parser.add_argument(
        "--topics", type=int, help="instead of faults: so many topics, which all have news"
    )
    parser.add_argument("--every", default="5s", help="`window.every` of these topics: 5s")
    parser.add_argument(
        "--report", action="store_true", help="write the report again, from var/soak/figures.json"
    )
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
