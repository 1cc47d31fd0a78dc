"""The Python API: the program of docs/api.md, run as people would."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import relay_pipelines as relay
from relay_pipelines.model import TopicPartition
from tests.support import commands
from tests.support.independent import Record, create, records_of, write

PAGE = Path(__file__).parents[2] / "docs" / "api.md"


def program(mirror: str, topic: str) -> str:
    """The first example of the page, with these names."""
    found = re.search(
        r"```python\n(import relay_pipelines as relay\n\nwith .*?)```", PAGE.read_text(), re.DOTALL
    )
    assert found
    text = found[1].replace('["orders"]', f'["{mirror}"]')
    return text.replace('"orders.new"', f'"{topic}"')


def test_the_documented_program(
    source_cluster: Any, destination_cluster: Any, topic_name: str, tmp_path: Path
) -> None:
    """It shows what is new, copies it, and verifies it."""
    source, destination = source_cluster.cluster(), destination_cluster.cluster()
    at = TopicPartition(topic_name, 0)
    create(source, topic_name, 1)
    write(source, at, [Record(b"k", b"v%d" % number) for number in range(10)])
    config = commands.configured(
        tmp_path, {topic_name: commands.mirror(source, destination, topic_name)}
    ).rename(tmp_path / "relay.yaml")

    (before,) = relay.load(config)[topic_name].status()
    assert before == relay.Status(at, 10, None, 10, None)
    (window,) = relay.load(config)[topic_name].plan().windows
    assert [(found.start, found.end) for found in window.ranges] == [(0, 10)]

    done = subprocess.run(
        [sys.executable, "-c", program(topic_name, topic_name)],
        cwd=tmp_path,
        env=commands.environment(),
        capture_output=True,
        text=True,
        check=False,
        timeout=240,
    )
    assert done.returncode == 0, done.stderr
    shown, topics, copied = done.stdout.splitlines()
    assert (shown, topics) == (f"{topic_name}-0 None 10 10", f"['{topic_name}']")
    assert re.fullmatch(r"10 records \d+ bytes", copied)
    assert records_of(destination, at) == records_of(source, at)

    mirror = relay.load(config)[topic_name]
    (after,) = mirror.status()
    assert (after.next_offset, after.lag_records) == (10, 0)
    again = mirror.run()
    assert (again.records, again.failures, again.exit_code) == (0, [], 0)
    audit = mirror.audit(level="recount")
    assert (audit.problems, audit.errors, list(audit.partitions)) == ([], [], [at])
