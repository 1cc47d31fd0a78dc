"""The Python API: the programs of docs/api.md, run as people would."""

import re
import sys
from pathlib import Path

import relay_pipelines as relay
from relay_pipelines.model import TopicPartition
from tests.copying import Clusters, records_of
from tests.support import commands
from tests.support.commands import ran
from tests.support.findings import differences, unreadable
from tests.support.independent import Record, create, write

PAGE = Path(__file__).parents[2] / "docs" / "api.md"


def programs(mirror: str, topic: str) -> list[str]:
    """The programs of the page, with these names."""
    found = re.findall(
        r"```python\n((?:import json\n\n)?import relay_pipelines as relay\n\nwith .*?)```",
        PAGE.read_text(),
        re.DOTALL,
    )
    return [
        text.replace('["orders"]', f'["{mirror}"]')
        .replace('"orders.new"', f'"{topic}"')
        .replace('"orders.again"', f'"{topic}.again"')
        for text in found
    ]


def run(text: str, folder: Path) -> list[str]:
    """Run a program in the folder of relay.yaml, and return what it prints."""
    done = ran(sys.executable, "-c", text, cwd=folder, env=commands.environment())
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()


def test_the_documented_programs(sides: Clusters, topic_name: str, tmp_path: Path) -> None:
    """One shows what is new, copies and verifies it; one replays, validates and attests it."""
    source, destination = sides
    at = TopicPartition(topic_name, 0)
    create(source, topic_name, 1)
    write(source, at, [Record(b"k", b"v%d" % number) for number in range(10)])
    section = commands.mirror(
        source, destination, topic_name, expectations=["keys_not_null", {"json_parses": None}]
    )
    config = commands.configured(tmp_path, {topic_name: section}).rename(tmp_path / "relay.yaml")
    copying, replaying = programs(topic_name, topic_name)

    (before,) = relay.load(config)[topic_name].status()
    assert before == relay.Status(at, 10, None, 10, None)
    (planned,) = relay.load(config)[topic_name].plan().planned
    assert (planned.start, planned.end) == (0, 10)

    shown, topics, copied, *of_replay = run(copying + replaying, tmp_path)
    assert (shown, topics) == (f"{topic_name}-0 None 10 10", f"['{topic_name}']")
    assert re.fullmatch(r"10 records \d+ bytes", copied)
    assert records_of(destination, at) == records_of(source, at)

    mirror = relay.load(config)[topic_name]
    (after,) = mirror.status()
    assert (after.next_offset, after.lag_records) == (10, 0)
    repeated = mirror.run()
    assert (repeated.records, repeated.failures, repeated.exit_code) == (0, [], 0)
    audit = mirror.audit()
    assert (differences(audit), unreadable(audit), list(audit.partitions)) == ([], [], [at])

    again = TopicPartition(f"{topic_name}.again", 0)
    checked = f"{topic_name} 10 ['{topic_name}: json_parses: 10 of 10 records do not meet it']"
    replayed, copied, found, moved, attested = of_replay
    assert replayed == f"{at}[0, 5) goes to {again}"
    assert (copied, found) == ("5 records replayed", checked)
    assert (moved, attested) == (f"{at} 5 exact", "1 ledger entries")
    request = relay.ReplayRequest(topic_name, to=again.topic, partition=0, offsets=(0, 5))
    assert not mirror.plan_replay(request).plan.ranges
    repeated = mirror.replay(request)
    assert (repeated.records, repeated.failures) == (0, []), "the same request copies nothing twice"
    assert records_of(destination, again) == records_of(source, at)[:5]
