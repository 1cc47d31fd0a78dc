"""`python -m tests.chaos [--minutes N] [--kills N] [--seed N]`: a mirror copies while processes die: is all there?"""

from __future__ import annotations

import argparse
import logging
import random
import shutil
import sys
import tempfile
from pathlib import Path

from relay_pipelines.console.formatting import stdout
from relay_pipelines.console.tables import show
from relay_pipelines.protocol.clock import SystemClock
from relay_pipelines.spark.session import connect, end
from tests.chaos.storm.storm import storm

_INTERRUPTED = 130


def main() -> int:
    """Print what happens and what it came to; 0 if nothing was lost, doubled, altered or put out of order."""
    arguments = _parse()
    # what a run says of its own retries; the failures they end in are told
    logging.getLogger("relay_pipelines").addHandler(logging.NullHandler())
    console = stdout()
    folder = Path(tempfile.mkdtemp(prefix="relay-chaos-"))
    console.print(
        f"{arguments.minutes:g} minutes and {arguments.kills} kills with --seed {arguments.seed}; brokers in {folder}"
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
    console.print(f"the brokers' data and logs stay in {folder}")
    return 1


def _parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m tests.chaos", description=__doc__)
    parser.add_argument(
        "--minutes", type=float, default=10.0, help="how long to strike at least: 10"
    )
    parser.add_argument(
        "--kills", type=int, default=0, help="how many processes to kill or freeze at least: 0"
    )
    parser.add_argument(
        "--seed",
        type=int,
        default=random.randrange(10_000),
        help="of what happens to whom; drawn when left out",
    )
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
