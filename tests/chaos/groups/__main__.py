"""Groups move between clusters that are mirrored to each other, and much is killed: see `--help`.

Each side gets transactions, some of which are aborted, and has a copy of the other side's topic.
Processes copy, follow groups and move one; each is killed at a random moment, again and again, and
so are the brokers. At the end, each side has every committed record of the other once, in order,
no copy was copied, and members of each group have processed every record once. Runs add up: stop
one at any time, it still says what it has found, and the next one has another seed.
"""

import argparse
import random
import sys
import tempfile
import time
from pathlib import Path

from relay_pipelines.output.messages import line
from tests.chaos.groups.storm import storm


def main() -> int:
    """Return 0 if each record is on each side once, and was processed once by each group."""
    parser = argparse.ArgumentParser(
        prog="python -m tests.chaos.groups", description=__doc__.splitlines()[0]
    )
    parser.add_argument("--kills", type=int, default=100, help="how many to kill: 100")
    parser.add_argument("--minutes", type=float, default=30.0, help="the longest duration: 30")
    parser.add_argument("--seed", type=int, default=random.randrange(10_000), help="random")
    arguments = parser.parse_args()
    line(f"{arguments.kills} kills with --seed {arguments.seed}")
    with tempfile.TemporaryDirectory(prefix="relay-chaos-groups-") as folder:
        began = time.monotonic()
        report = storm(arguments.kills, arguments.minutes, arguments.seed, Path(folder), line)
        line(f"{(time.monotonic() - began) / 60:.0f} minutes")
    return 0 if report.good else 1


if __name__ == "__main__":
    sys.exit(main())
