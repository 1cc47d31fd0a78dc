"""Filters: skipped records are accounted for, and errors name the record."""

import json
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from relay_pipelines import model, settings
from relay_pipelines.copy.filtering import load
from relay_pipelines.copy.task import copy_ranges
from relay_pipelines.errors import ConfigError, DestinationError
from relay_pipelines.model import ClassSpec, OnRecordError, RecordPolicy, Status, TopicPartition
from relay_pipelines.protocol.batch import CODEC_MASK
from relay_pipelines.protocol.producer import TransactionalProducer
from relay_pipelines.run import run_plan
from relay_pipelines.sides import Sides
from relay_pipelines.snapshot import read_clusters
from tests.copying import Clusters, Mirror, batches_of, ensure_homes, numbered, records_of
from tests.support import commands
from tests.support.independent import Record, create, read, settled_end, write
from tests.support.planned_copy import copy_planned

MODULE = """
import json


class EveryNth:
    def __init__(self, n=2):
        self.n = n

    def keep(self, record):
        return int(record.value) % self.n == 0


class Keyed:
    def keep(self, record):
        return record.key is not None and dict(record.headers).get("n") != b"7"


class Failing:
    def keep(self, record):
        if record.offset == 25:
            raise ValueError("no country\\nin it")
        return True


class Exits:
    def keep(self, record):
        raise SystemExit("bye")


class Changes:
    def keep(self, record):
        if record.offset == 31:
            record.headers.append(("more", b""))
        return True


class NoFilter:
    pass
"""


@pytest.fixture
def folder(tmp_path: Path) -> Iterator[Path]:
    """A folder with a module of filters, removed from `sys.modules` afterwards."""
    (tmp_path / "the_filters.py").write_text(MODULE)
    (tmp_path / "the_exit.py").write_text('raise SystemExit("bye")')
    yield tmp_path
    sys.modules.pop("the_filters", None)
    if str(tmp_path) in sys.path:
        sys.path.remove(str(tmp_path))


@pytest.fixture
def mirror(sides: Clusters, topic_name: str) -> Mirror:
    """A topic of 60 records in batches, of which some could be copied verbatim."""
    made = Mirror(*sides, topic_name).with_options(coalesce_below_bytes=0, chunk_bytes=2_000)
    for first in range(0, 60, 10):
        numbers = range(first, first + 10)
        made.write([Record(b"k", b"%d" % n, (("n", b"%d" % (n % 10)),)) for n in numbers])
    return made


def copy(
    mirror: Mirror,
    folder: Path,
    *names: str,
    start: int = 0,
    end: int | None = None,
    **config: object,
) -> model.Outcome:
    configs = [json.dumps(config), *["{}"] * len(names)]
    pairs = zip(names, configs, strict=False)
    specs = [ClassSpec(f"the_filters:{name}", given, str(folder)) for name, given in pairs]
    return copy_with(mirror, RecordPolicy(filters=tuple(specs)), start, end)


def copy_with(
    mirror: Mirror, policy: RecordPolicy, start: int = 0, end: int | None = None
) -> model.Outcome:
    wanted = replace(mirror.range(start, end), record_policy=policy)
    (outcome,) = copy_ranges(mirror.job, [wanted])
    return outcome


def test_dropped_records_are_accounted_for(mirror: Mirror, folder: Path) -> None:
    """What all filters keep arrives unchanged; the ledger has the others, in any range."""
    for start, end in ((0, 33), (33, 60)):
        outcome = copy(mirror, folder, "EveryNth", "Keyed", start=start, end=end, n=1)
        assert (outcome.status, outcome.error) == (Status.DONE, "")
    kept = [record for number, record in enumerate(mirror.original()) if number % 10 != 7]
    assert mirror.copied() == kept
    more = [Record(b"k", b"%d" % number) for number in (1, 2, 2000, 3)]
    mirror.write(more)
    mirror.known = (mirror.checkpoint(), 0)  # another policy takes over from what a driver has seen
    outcome = copy(mirror, folder, "EveryNth", n=1000)
    assert (outcome.records, outcome.skipped) == (1, {"filtered": 3})
    assert mirror.copied() == [*kept, more[2]]
    mirror.write(more[:2])
    outcome = copy(mirror, folder, "EveryNth", n=1000)
    assert (outcome.records, outcome.next_offset) == (0, 66)
    mirror.assert_ledger_closes()


def test_an_error_of_a_filter_names_the_record(mirror: Mirror, folder: Path) -> None:
    """One line names filter and offset; what was committed stays and is not copied twice."""
    mirror.options = replace(mirror.options, chunk_bytes=1)
    outcome = copy(mirror, folder, "Failing")
    facts = outcome.status, outcome.error_kind, outcome.exit_code
    assert facts == (Status.FAILED, "FilterError", 1)
    assert outcome.error == (
        f"{mirror.at} at offset 25: filter 'the_filters:Failing' raised ValueError: no"
        f" country; fix the class, or set"
        " on_record_error: quarantine, then run again"
    )
    assert outcome.next_offset <= 25
    assert copy(mirror, folder, "EveryNth", n=1).status is Status.DONE
    mirror.assert_equal()


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("Changes", "at offset 31: filter 'the_filters:Changes' raised AttributeError: 'tuple'"),
        ("Exits", "at offset 0: filter 'the_filters:Exits' raised SystemExit: bye"),
    ],
)
def test_a_filter_does_nothing_but_decide(
    mirror: Mirror, folder: Path, name: str, said: str
) -> None:
    """It can neither change a record nor end the process that copies the other topics, too."""
    outcome = copy(mirror, folder, name)
    assert (outcome.status, outcome.error_kind) == (Status.FAILED, "FilterError")
    assert said in outcome.error
    assert mirror.copied() == mirror.original()[: outcome.next_offset]


def test_a_failing_record_goes_into_quarantine(
    mirror: Mirror, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is kept with origin and reason, and committed or aborted with its neighbours."""
    assert mirror.to is not None
    quarantine = TopicPartition(f"{mirror.to.topic}.quarantine", mirror.to.partition)
    create(mirror.destination, quarantine.topic, 1)
    filters = (
        ClassSpec("the_filters:Failing", folder=str(folder)),
        ClassSpec("the_filters:EveryNth", '{"n": 5}', str(folder)),
    )
    policy = RecordPolicy(filters=filters, on_record_error=OnRecordError.QUARANTINE)
    vain = [DestinationError("gone for a moment")]

    def commit_once_in_vain(self: TransactionalProducer) -> None:
        if vain:
            raise vain.pop()
        committed(self)

    committed = TransactionalProducer.commit
    monkeypatch.setattr(TransactionalProducer, "commit", commit_once_in_vain)
    mirror.options = replace(mirror.options, chunk_bytes=1 << 20)
    outcome = copy_with(mirror, policy)
    facts = outcome.error, outcome.records, outcome.skipped
    assert facts == ("", 11, {"filtered": 48, "quarantined": 1})
    mirror.assert_ledger_closes()
    values = [int(record.value or b"") for record in mirror.copied()]
    assert values == [number for number in range(0, 60, 5) if number != 25]
    (found,) = records_of(mirror.destination, quarantine)
    assert len(read(mirror.destination, quarantine, "read_uncommitted")) == 2, "one was aborted"
    original = mirror.original()[25]
    told = {"mirror": mirror.name, "topic": mirror.at.topic, "partition": 0, "offset": 25}
    assert (found.key, found.value) == (original.key, original.value)
    assert found.timestamp == original.timestamp
    assert found.headers == (
        *original.headers,
        *((f"relay.{name}", str(value).encode()) for name, value in told.items()),
        ("relay.error", b"filter 'the_filters:Failing' raised ValueError: no country"),
    )


def test_copy_options_of_a_topic(mirror: Mirror) -> None:
    """The options of a topic override those of the mirror: here, a commit for every batch."""
    own = replace(mirror.options, coalesce_below_bytes=0, chunk_bytes=1)
    mirror.options = replace(mirror.options, chunk_bytes=1 << 20)
    outcome = copy_with(mirror, RecordPolicy(options=own))
    assert (outcome.error, outcome.chunks) == ("", 6)
    mirror.assert_equal()


def test_compressed_batches_stay_compressed(mirror: Mirror, folder: Path) -> None:
    """Kept records are written with the codec of their batch."""
    assert copy(mirror, folder, "Keyed").status is Status.DONE
    plain_end = settled_end(mirror.destination, mirror.at)
    mirror.write(numbered(100, 50, 60), compression_type="zstd")
    assert copy(mirror, folder, "Keyed").status is Status.DONE
    end = settled_end(mirror.destination, mirror.at)
    headers = [header for header, _ in batches_of(mirror.destination, mirror.at, 0, end)]
    codecs = {(each.base_offset >= plain_end, each.attributes & CODEC_MASK) for each in headers}
    assert codecs == {(False, 0), (True, 4)}


@pytest.mark.parametrize(
    ("name", "config", "line"),
    [
        ("nowhere:Filter", "{}", "filter '{}' cannot be imported: ModuleNotFoundError: No modul"),
        ("the_exit:Filter", "{}", "filter '{}' cannot be imported: SystemExit: bye"),
        ("the_filters:EveryNth", '{"m": 3}', "filter '{}' cannot be constructed: TypeError"),
        ("the_filters:NoFilter", "{}", "filter '{}' has no method keep(record)"),
        ("the_filters:Missing", "{}", "module 'the_filters' has no filter 'Missing'"),
        (
            "lonely",
            "{}",
            "no filter is called '{}'; write module:Class, or an entry point: none is",
        ),
    ],
)
def test_an_unusable_filter_is_refused(folder: Path, name: str, config: str, line: str) -> None:
    """One line is raised before anything is copied."""
    with pytest.raises(ConfigError) as caught:
        load(ClassSpec(name, config, str(folder)))
    assert str(caught.value).startswith(line.format(name))
    assert "\n" not in str(caught.value)


def test_a_filter_by_its_entry_point(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A filter may be named by the entry point of an installed package."""
    announced = folder / "some_filters-1.0.dist-info"
    announced.mkdir()
    (announced / "METADATA").write_text("Metadata-Version: 2.1\nName: some-filters\nVersion: 1.0\n")
    entry = "[relay_pipelines.filters]\nevery-nth = the_filters:EveryNth\n"
    (announced / "entry_points.txt").write_text(entry)
    monkeypatch.syspath_prepend(str(folder))
    found: Any = load(ClassSpec("every-nth", '{"n": 20}'))
    assert found.n == 20


def test_a_quarantine_must_not_be_the_copy_of_a_topic(
    sides: Clusters, topic_name: str, tmp_path: Path
) -> None:
    """Who creates a topic of that name stops no other one: it is refused, and named everywhere."""
    name, own = f"q-{topic_name[-8:]}", f"{topic_name}.quarantine"
    made = commands.mirror(*sides, f"{topic_name}.*", on_record_error="quarantine")
    ensure_homes(sides[1])
    for topic in (topic_name, own):
        for cluster in sides:
            create(cluster, topic)
        write(sides[0], TopicPartition(topic, 0), numbered(3))

    mirror = settings.Mirror.model_validate(made)
    snapshot = read_clusters.take_snapshot(Sides(name, mirror))
    assert list(run_plan.plan(snapshot).by_topic) == [topic_name]
    copy_planned(snapshot)
    why = f"the quarantine of topic '{topic_name}' is '{own}', which is also the copy"
    config = commands.configured(tmp_path, {name: made})
    for command, said in (
        ("plan", f"{own}-0: {why}"),
        ("check", f"{own}-0: {why}"),
        ("status", f"  held back  {own}"),
        ("status", f"    why      {why}"),
    ):
        done = commands.relay_here(config, command)
        assert (done.returncode, said in done.stdout + done.stderr) == (2, True), done.stdout
