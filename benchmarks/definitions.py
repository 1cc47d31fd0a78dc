"""What Dagster's definitions cost as topics grow: `python -m benchmarks.growth definitions`.

No broker: the catalog has the topics.
"""

from __future__ import annotations

import tempfile
import time
from pathlib import Path

import yaml

from benchmarks.looks import show, show_exponents
from relay_pipelines.definitions import build
from relay_pipelines.model import Cluster
from relay_pipelines.orchestration.topic_catalog import Catalog
from tests.support import commands

_TOPICS = (100, 1_000, 5_000)


def measure() -> None:
    """Print the table."""
    print("| topics | definitions: CPU s | repository: CPU s | sensors |")
    print(f"|{'---|' * 4}", flush=True)
    rows = []
    nobody = Cluster("one", ("127.0.0.1:1",))
    with tempfile.TemporaryDirectory(prefix="relay-growth-") as folder:
        for count in _TOPICS:
            config = Path(folder) / str(count) / "relay.yaml"
            config.parent.mkdir()
            mirror = commands.mirror(nobody, nobody, "growth-.*")
            config.write_text(yaml.safe_dump({"mirrors": {"growth": mirror}}))
            topics = [f"growth-{number:05}" for number in range(count)]
            Catalog.beside(config).learn("growth", topics)
            began = time.process_time()
            definitions = build(config)
            built = time.process_time()
            repository = definitions.get_repository_def()
            used = built - began, time.process_time() - built
            rows.append([count, *used, len(repository.sensor_defs)])
            show(rows[-1])
    show_exponents(rows)
