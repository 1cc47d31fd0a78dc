"""Runs one task and prints its outcomes as JSON lines: `one_task <pickled job and ranges>`."""

import dataclasses
import json
import pickle
import sys
from pathlib import Path

from relay_pipelines.copy.task import copy_ranges

if __name__ == "__main__":
    job, ranges = pickle.loads(Path(sys.argv[1]).read_bytes())
    for outcome in copy_ranges(job, ranges):
        print(json.dumps(dataclasses.asdict(outcome)), flush=True)  # noqa: T201 - what the test reads
