"""Runs a mirror while processes are killed: `python -m tests.chaos [--minutes N] [--kills N]`."""

import argparse
import logging
import random
import shutil
import sys
import tempfile
from pathlib import Path

from relay_pipelines.output.formatting import stdout
from relay_pipelines.output.tables import show
from relay_pipelines.protocol.clock import SystemClock
from relay_pipelines.spark.session import connect, end
from tests.chaos.storm.storm import storm

_INTERRUPTED = 130


def main() -> int:
    """Print progress and report; return 0 if the copy is complete, unaltered and in order."""
    arguments = _parse()
    # hide the retries of a run; its failures are printed
    logging.getLogger("relay_pipelines").addHandler(logging.NullHandler())
    console = stdout()
    folder = Path(tempfile.mkdtemp(prefix="relay-chaos-"))
    console.print(
        f"{arguments.minutes:g} minutes and {arguments.kills} kills with --seed {arguments.seed};"
        f" brokers in {folder}"
    )
    session = connect("local[2]")
    try:
        report = storm(
            arguments.minutes,
            arguments.kills,
            arguments.seed,
            lambda: session,
            folder,
            SystemClock(),
            console.print,
        )
    except KeyboardInterrupt:
        shutil.rmtree(folder)
        console.print("interrupted")
        return _INTERRUPTED
    finally:
        end(session)
    show(console, report.comparison())
    show(console, report.figures())
    if report.good:
        shutil.rmtree(folder)
        return 0
    console.print(f"data and logs of the brokers are in {folder}")
    return 1


def _parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m tests.chaos", description=__doc__)
    parser.add_argument(
        "--minutes", type=float, default=10.0, help="the least duration of the faults: 10"
    )
    parser.add_argument(
        "--kills", type=int, default=0, help="the least number of processes to kill or freeze: 0"
    )
    parser.add_argument(
        "--seed",
        type=int,
        default=random.randrange(10_000),
        help="the seed of the faults; random by default",
    )
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
