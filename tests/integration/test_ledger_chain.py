"""The chain of the ledger on real brokers: retention, tampering, statements."""

import datetime as dt
import json
import threading
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from relay_pipelines.cli import main
from relay_pipelines.copy.task import copy_ranges
from relay_pipelines.dataframe.window_chunks import window_entries
from relay_pipelines.errors import TamperedError
from relay_pipelines.expectations.request import ExpectationsRequest
from relay_pipelines.expectations.selected import windows
from relay_pipelines.ledger import checkpoint, ledger_topic, reader, statement
from relay_pipelines.ledger.verified import read_verified_ledger
from relay_pipelines.model import LedgerEntry, OffsetRange, Status
from relay_pipelines.protocol.client import destination_client
from relay_pipelines.protocol.clock import SystemClock
from relay_pipelines.settings import Mirror as MirrorSettings
from relay_pipelines.sides import Sides
from tests.copying import Clusters, Mirror, forget_homes, numbered
from tests.support import commands
from tests.support.independent import CREATE_TIME, Record, create, delete, write
from tests.support.ledgers import ledger_records

CLOCK = SystemClock()


@pytest.fixture
def mirror(sides: Clusters, topic_name: str) -> Iterator[Mirror]:
    """A hundred records, copied in four chunks."""
    made = Mirror(*sides, topic_name)
    made.write(numbered(100))
    for start in range(0, 75, 25):
        assert made.try_copy(start, start + 25).status is Status.DONE
    made.copy(75)
    yield made
    forget_homes(made.destination)


def settings_of(mirror: Mirror) -> MirrorSettings:
    return MirrorSettings.model_validate(
        commands.mirror(mirror.source, mirror.destination, mirror.topic)
    )


def attest(mirror: Mirror, path: Path) -> None:
    parts = statement.attest(Sides(mirror.name, settings_of(mirror), CLOCK), None, "now")
    path.write_bytes(b"".join(parts))


def rewrite(mirror: Mirror, topic: str, records: list[Record]) -> None:
    """Replace a state topic by one with other records of the mirror."""
    home = checkpoint.home(topic, checkpoint.key_of(mirror.name, mirror.at))
    configs = checkpoint.CONFIGS if topic == checkpoint.TOPIC else ledger_topic.CONFIGS
    delete(mirror.destination, topic)
    create(mirror.destination, topic, checkpoint.PARTITIONS, configs)
    write(mirror.destination, home, *([record] for record in records))


def entries(mirror: Mirror) -> list[Record]:
    now = (CREATE_TIME, CLOCK.now_ms())
    return [Record(one.key, one.value, (), now) for one in mirror._own(ledger_topic.TOPIC)]


def forge(
    mirror: Mirror, name: str, source: OffsetRange, copies: OffsetRange, window: str = ""
) -> None:
    """Write the first entry of a chain to the ledger alone, as whoever may write there can."""
    digest, generation = f"{0:08x}", 7 if name == mirror.name else 0
    entry = LedgerEntry(
        *(name, source, copies, len(copies), 1, 1, 0, {}, digest, 7, "n", window, "r"),
        CLOCK.now_ms(),
        number=1,
        previous="start",
        generation=generation,
    )
    key, value, at_ms = ledger_topic.to_record(entry)
    home = checkpoint.home(ledger_topic.TOPIC, key)
    write(mirror.destination, home, [Record(key, value, (), (CREATE_TIME, at_ms))])


@pytest.mark.parametrize("asked", [{"window": "a-window"}, {"last": "1h"}, "frame"])
def test_what_was_never_committed_is_not_validated_or_read(
    mirror: Mirror, asked: dict[str, str] | str
) -> None:
    """A chunk that somebody has added to a window is refused, and not taken for a copy."""
    expecting = commands.mirror(
        mirror.source, mirror.destination, mirror.topic, expectations=["keys_not_null"]
    )
    settings = MirrorSettings.model_validate(expecting)

    def entries() -> Sequence[LedgerEntry]:
        if isinstance(asked, str):
            return window_entries(Sides(mirror.name, settings), [mirror.topic], ["a-window"])
        (window,) = windows(Sides(mirror.name, settings, CLOCK), ExpectationsRequest(**asked))
        return window.entries

    assert [entry.number for entry in entries()] == [1, 2, 3, 4]
    copies = OffsetRange(mirror.at, 200, 205)
    forge(mirror, mirror.name, OffsetRange(mirror.at, 100, 105), copies, "a-window")
    with pytest.raises(TamperedError, match="ledger entry 1: never committed with a checkpoint"):
        entries()


def test_a_window_of_a_clock_that_is_far_behind(sides: Clusters, topic_name: str) -> None:
    """Its entries seem to be older than its plan; all of them are found, and no others."""
    planned = dt.datetime.now(dt.UTC) + dt.timedelta(seconds=661)
    key = f"{planned.isoformat(timespec='seconds')}-main"
    mirror = Mirror(*sides, topic_name)
    mirror.write(numbered(100))
    for start, window in (0, "before"), (25, key), (50, key):
        (outcome,) = copy_ranges(
            replace(mirror.job, window=window), [mirror.range(start, start + 25)]
        )
        assert outcome.status is Status.DONE
    found = window_entries(Sides(mirror.name, settings_of(mirror)), [mirror.topic], [key])
    assert [entry.source.start for entry in found] == [25, 50]


def test_tasks_that_fence_each_other(mirror: Mirror) -> None:
    """Several copy the same range at once: one chain, without a break."""
    mirror.write(numbered(2_000, first=100))
    mirror.with_options(chunk_bytes=2_000, coalesce_below_bytes=0)
    ranges = [mirror.range()]

    def copy() -> None:
        for _ in range(5):
            list(copy_ranges(mirror.job, ranges))

    threads = [threading.Thread(target=copy) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    mirror.copy()
    assert read_verified_ledger(Sides(mirror.name, settings_of(mirror), CLOCK)).breaks == []
    mirror.assert_equal()


def test_the_newest_entries_are_read_from_the_end(
    mirror: Mirror, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They are the last ones, each once, also among others', and where a look cuts a batch."""
    key = checkpoint.key_of(mirror.name, mirror.at)
    home = checkpoint.home(ledger_topic.TOPIC, key)
    at = mirror.destination, mirror.name
    newest = Record(key, ledger_records(*at)[-1].value)
    write(mirror.destination, home, [newest, *[Record(b"other/topic/0", b"{}")] * 30])
    every = ledger_records(*at)
    assert len(every) == 5
    client = destination_client(mirror.name, mirror.destination, mirror.options)
    for count in (1, 3, 4, 50):
        assert reader.read_newest(client, count) == every[-count:]
        assert reader.read_newest(client, count, mirror.topic) == every[-count:]
        assert reader.read_newest(client, count, "another") == []

    read: list[int] = []

    def counted(*told: Any) -> Any:
        if told[1].topic_partition == home:
            read.append(len(told[1]))
        return original(*told)

    original = reader.read_records
    monkeypatch.setattr(reader, "read_records", counted)
    write(mirror.destination, home, *([Record(key, every[-1].value)] * 100 for _ in range(3)))
    with client:
        assert len(reader.read_newest(client, 20)) == 20
    assert read == [40], "two offsets for each entry wanted"


def test_attest_ledger_and_audit_as_commands(
    mirror: Mirror, tmp_path: Path, capfdbinary: pytest.CaptureFixture[bytes]
) -> None:
    """They read a real ledger; an audit says what is wrong with it, and with the copies."""
    settings = commands.mirror(mirror.source, mirror.destination, mirror.topic)
    config = str(commands.configured(tmp_path, {mirror.name: settings}))
    assert main(["-c", config, "attest"]) == 0
    _, *found, only = map(json.loads, capfdbinary.readouterr().out.splitlines())
    assert (only["records"], only["entries"], len(found)) == (100, 4, 4)
    assert main(["-c", config, "ledger", "--json"]) == 0
    assert len(json.loads(capfdbinary.readouterr().out)) == 4

    attest(mirror, path := tmp_path / "statement.json")
    against = ["-c", config, "audit", "--against", str(path)]
    assert main(against) == 0
    said = capfdbinary.readouterr().out.decode()
    assert f"{mirror.name}: the statement of now" in said
    assert f"{mirror.name}: agrees: 100 of 100 records compared by content" in said
    some = entries(mirror)
    rewrite(mirror, ledger_topic.TOPIC, [some[0], *some[2:]])
    assert main([*against, "--json"]) == 4
    out, err = (text.decode() for text in capfdbinary.readouterr())
    shown = [f"{each['where']}: {each['text']}" for each in json.loads(out)["findings"]]
    assert shown == [line.removeprefix(f"error: {mirror.name}: ") for line in err.splitlines()]
    page = tmp_path / "audit.html"
    assert main(["-c", config, "audit", "--level", "ledger", "--json", "--html", str(page)]) == 4
    out, err = (text.decode() for text in capfdbinary.readouterr())
    (only,) = json.loads(out)["mirrors"][0]["topic_partitions"]
    assert only["ledger"]["breaks"][0]["kind"] == "removed"
    for text in (err, page.read_text()):
        assert f"{mirror.at}: ledger entry 2: missing (__relay_ledger" in text
