"""A running relay exporter, and what it serves."""

import subprocess
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from prometheus_client.parser import text_string_to_metric_families

from relay_pipelines.local_kafka.ports import free_ports
from relay_pipelines.metrics import METRICS, PREFIX
from tests.support.commands import RELAY, environment

LABELS = {PREFIX + metric.name: set(metric.labels) for metric in METRICS}
Series = dict[tuple[str, frozenset[tuple[str, str]]], float]


class Process:
    """A running `relay exporter`."""

    def __init__(self, config: Path, port: int, *options: str) -> None:
        self._err = config.with_suffix(".err")
        self.address = f"http://127.0.0.1:{port}"
        with self._err.open("w") as err:
            own = ["exporter", "-p", str(port), "--every", "1s", *options]
            self.process = subprocess.Popen(
                [RELAY, "-c", config, *own], stderr=err, env=environment()
            )

    @property
    def stderr(self) -> list[str]:
        return self._err.read_text().splitlines()

    def get(self, path: str) -> str:
        assert self.process.poll() is None, self.stderr
        try:
            with urllib.request.urlopen(self.address + path, timeout=5) as answer:
                return str(answer.read().decode())
        except urllib.error.URLError:
            return ""

    def series(self) -> Series:
        """Scrape; every series has the labels of the catalogue."""
        found: Series = {}
        for family in text_string_to_metric_families(self.get("/metrics")):
            for sample in family.samples:
                assert set(sample.labels) == LABELS[sample.name]
                found[sample.name, frozenset(sample.labels.items())] = sample.value
        return found

    def value(self, name: str, **labels: str) -> float | None:
        return self.series().get((PREFIX + name, frozenset(labels.items())))


@contextmanager
def exporting(config: Path, *options: str) -> Iterator[Process]:
    process = Process(config, free_ports(1)[0], *options)
    try:
        yield process
    finally:
        process.process.kill()
        process.process.wait()
