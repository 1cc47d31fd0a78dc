"""`python -m benchmarks [--quick] [--only INPUT] [--repetitions N]`."""

from __future__ import annotations

import argparse
import shutil
import sys
import time
from pathlib import Path

# worker processes import this module, too, so `main` imports what they do not need
_ROOT = Path(__file__).resolve().parent.parent
_REPORT = _ROOT / "docs" / "benchmarks.md"
_FOLDER = _ROOT / "var" / "benchmarks"
_QUICK_INPUTS = ("1k-128k", "one-record", "compacted", "many")
_QUICK_FACTOR = 0.05


def main() -> int:
    """Measure and write the report; 0 if every contender copied everything."""
    from benchmarks import inputs, machine, report, run
    from benchmarks.values import Figures

    known = {known_input.name: known_input for known_input in inputs.INPUTS}
    arguments = _parse(sorted(known))
    names = arguments.only or (_QUICK_INPUTS if arguments.quick else list(known))
    wanted = [
        known[name].scaled(_QUICK_FACTOR) if arguments.quick else known[name] for name in names
    ]
    shutil.rmtree(_FOLDER, ignore_errors=True)
    _FOLDER.mkdir(parents=True)
    described = machine.describe()
    whole = not arguments.quick and not arguments.only
    target = _REPORT if whole else _FOLDER / _REPORT.name
    target.parent.mkdir(parents=True, exist_ok=True)

    def keep(figures: Figures) -> None:
        (_FOLDER / "figures.json").write_text(report.as_json(figures, described))
        target.write_text(report.as_markdown(figures, described))

    began = time.monotonic()
    repetitions = arguments.repetitions or (1 if arguments.quick else 3)
    figures = run.run(wanted, repetitions, _FOLDER, lambda line: print(line, flush=True), keep)
    print(
        f"{time.monotonic() - began:.0f} s; report in {target.relative_to(_ROOT)},"
        f" raw figures in {_FOLDER.relative_to(_ROOT)}"
    )
    return 0 if all(result.complete for result in figures.results) else 1


def _parse(names: list[str]) -> argparse.Namespace:
    from benchmarks.contenders.other_mirrors import KafRelay, TopicMirror

    parser = argparse.ArgumentParser(
        prog="python -m benchmarks",
        description="Speed, CPU and memory beside other mirrors.",
        epilog="kaf-relay and Kafka Topic Mirror take part if the environment variables"
        f" {KafRelay.variable} and {TopicMirror.variable} are the paths of their binaries.",
    )
    parser.add_argument(
        "--quick",
        action="store_true",
        help="small inputs, once: a smoke test; the report goes to var/",
    )
    parser.add_argument(
        "--only",
        action="append",
        choices=names,
        help="one input, may be given again; the report goes to var/",
    )
    parser.add_argument("--repetitions", type=int, help="of every copy: 3, or 1 with --quick")
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
