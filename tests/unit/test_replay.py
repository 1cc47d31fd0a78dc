"""What a replay is asked for: its id, its mirror, and what is refused without a cluster."""

import json
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from relay_pipelines.cli import main
from relay_pipelines.copy.filtering import FilterChain, TimeSpan
from relay_pipelines.errors import ConfigError
from relay_pipelines.ledger.checkpoint import (
    ReplayRecord,
    StartRecord,
    key_of,
    key_prefixes,
    parse,
    record_of,
    replay_name,
    start_record,
)
from relay_pipelines.ledger.offset_map import Copied, merged, part
from relay_pipelines.model import OffsetRange, OnRecordError, Side, TopicPartition
from relay_pipelines.protocol.records import Record
from relay_pipelines.replay.own_mirror import (
    as_mirror,
    parameters,
    refuse_loops,
    request_of,
    require_same,
)
from relay_pipelines.replay.request import ReplayRequest
from relay_pipelines.settings import Settings, load
from tests.support.config_files import MINIMAL, changed

AT = TopicPartition("t", 0)
REQUEST = ReplayRequest("orders", "again", offsets=(20, 80))
FILTERS: dict[str, Any] = {
    "filters": ({"class": "m:Filter", "config": {"a": 1}},),
    "where": "key = 'x'",
}


def settings(tmp_path: Path, text: str = MINIMAL) -> Settings:
    path = tmp_path / "relay.yaml"
    path.write_text(text)
    return load(path)


def test_the_same_request_has_the_same_id() -> None:
    """It continues; a permission is no part of it.

    The command writes out an empty config, and Dagster leaves it out.
    """
    assert REQUEST.id == ReplayRequest("orders", "again", offsets=(20, 80)).id
    ids = {
        replace(REQUEST, filters=(given,), transform=given, folder=path).id
        for given in ({"class": "m:C"}, {"class": "m:C", "config": {}})
        for path in (Path(), Path("elsewhere"))
    }
    assert len(ids) == 1
    assert replace(REQUEST, into_itself=True).id == REQUEST.id
    others: list[dict[str, Any]] = [
        *({"topic": "other"}, {"to": "other"}, {"side": Side.DESTINATION}, {"partition": 0}),
        *({"offsets": (20, None)}, FILTERS, {"verbatim": True}),
    ]
    assert [one for one in others if replace(REQUEST, **one).id == REQUEST.id] == []


def test_keys_of_a_replay_are_not_those_of_its_mirror() -> None:
    """Neither is read as the other's, and both are read together where that is wanted."""
    mirror, replay = key_of("shop", AT), key_of(replay_name("shop", "a"), AT)
    assert not replay.startswith(key_prefixes("shop"))
    assert not mirror.startswith(key_prefixes(replay_name("shop", "a")))
    for name in ("shop", replay_name("shop", "b")):
        assert mirror.startswith(key_prefixes(name, with_replays=True))
        assert replay.startswith(key_prefixes(name, with_replays=True))
    assert not key_of("shop2", AT).startswith(key_prefixes("shop", with_replays=True))


def test_a_start_record_holds_the_whole_replay(tmp_path: Path) -> None:
    """What was asked for comes back; a mirror's own start record has none."""
    request = replace(REQUEST, **FILTERS, folder=tmp_path)
    start = started(tmp_path, request)

    key, written, _ = start_record(start).record
    assert record_of(StartRecord, parse(key), written) == start
    again = request_of(start)
    assert (again.asked, again.id) == (request.asked, "a")
    policy = as_mirror(settings(tmp_path).mirror("orders"), again, "orders").record_policy("orders")
    assert ([spec.name for spec in policy.filters], bool(policy.where)) == (["m:Filter"], True)
    assert (policy.transform, policy.select) == (None, ())
    _, plain, _ = start_record(replace(start, replay=None)).record
    assert record_of(StartRecord, parse(key), plain) == replace(start, replay=None)


def started(folder: Path, request: ReplayRequest, text: str = MINIMAL) -> StartRecord:
    mirror = as_mirror(settings(folder, text).mirror("orders"), request, "orders")
    wanted = parameters(request, mirror.record_policy("orders"))
    record = ReplayRecord({0: 80}, {0: ((20, 30), (40, 80))}, wanted)
    return StartRecord("shop.replay@a", "orders", {0: 20}, "one", {"one": "id"}, 1, record)


@pytest.mark.parametrize(
    "given",
    [
        {"filters": [{"class": "m:Filter", "config": {"salt": "SECRET"}}]},
        {"transform": {"class": "m:Masked", "config": {"salt": "SECRET"}}},
        {"where": "sha1(concat(key, 'SECRET')) = 'x'"},
        {"select": {"value": "aes_encrypt(value, 'SECRET')"}},
    ],
    ids=lambda given: next(iter(given)),
)
def test_secrets_are_compared_and_not_kept(tmp_path: Path, given: dict[str, Any]) -> None:
    """Configs and SQL may hold variables of the environment, in relay.yaml and in the request."""

    def both(secret: str) -> list[StartRecord]:
        changed_to = json.loads(json.dumps(given).replace("SECRET", secret))
        configured = changed({f"@/{key}": value for key, value in changed_to.items()})
        typed = replace(REQUEST, **changed_to, folder=tmp_path)
        return [started(tmp_path, REQUEST, configured), started(tmp_path, typed)]

    for before, same, other in zip(both("hunter2"), both("hunter2"), both("rotated"), strict=True):
        assert b"hunter2" not in start_record(before).record[1]
        assert same.replay
        assert other.replay
        require_same(before, same.replay.parameters, "a")
        with pytest.raises(ConfigError, match=r"a was started with another config.*--id") as caught:
            require_same(before, other.replay.parameters, "a")
        assert not {"hunter2", "rotated"}.intersection(re.findall(r"\w+", str(caught.value)))


def test_a_replay_is_a_mirror_from_either_side(tmp_path: Path) -> None:
    """Copies at the destination were filtered before."""
    mirror = settings(tmp_path, changed({"@/where": "key = 'y'"})).mirror("orders")
    own = as_mirror(mirror, REQUEST, "orders")
    assert own.record_policy("orders").where == "key = 'y'"
    assert (own.upstreams, own.topics.rename) == (mirror.upstreams, {"orders": "again"})
    assert not as_mirror(mirror, replace(REQUEST, verbatim=True), "orders").where
    typed = replace(REQUEST, **FILTERS, folder=tmp_path)
    policy = as_mirror(mirror, typed, "orders").record_policy("orders")
    assert (policy.where, policy.filters[0].folder) == ("key = 'x'", str(tmp_path))
    own = as_mirror(mirror, replace(REQUEST, side=Side.DESTINATION), "copy.orders")
    assert not own.record_policy("copy.orders").where
    assert own.upstreams == (mirror.destination_cluster,)


class TestRefusals:
    """One line each, without a cluster."""

    def test_requests(self) -> None:
        for more, line in (
            ({"offsets": None}, "a replay needs one range"),
            ({"window": "w"}, "a replay needs one range"),
            ({"offsets": None, "from_ms": 2, "until_ms": 1}, "ends before it begins"),
            ({"to": "a b"}, "'a b' is no topic to replay into"),
            ({"to": "__relay_ledger"}, "is no topic to replay into"),
            ({"replay_id": "a/b"}, "'a/b' is no id of a replay"),
        ):
            changes: dict[str, Any] = dict(more)
            with pytest.raises(ConfigError, match=line):
                replace(REQUEST, **changes)

    @pytest.mark.parametrize(
        ("typed", "line"),
        [
            (["--offsets", "80:20"], "error: --offsets: '80:20' is no range of offsets; "),
            (["--from", "yesterday"], "error: --from: 'yesterday' is no time; "),
            (["--offsets", "1:2", "--filter", "m:F=x"], "error: --filter: 'x' is no config of a"),
            (["--offsets", "1:2", "--filter", "m F"], "error: filters[0].class: "),
            (["--offsets", "1:2", "--select", "value"], "error: --select: 'value' is no column; "),
            (["--offsets", "1:2", "--select", "x=1"], "error: select.x: unknown column"),
        ],
    )
    def test_options(
        self, tmp_path: Path, capsys: pytest.CaptureFixture[str], typed: list[str], line: str
    ) -> None:
        (tmp_path / "relay.yaml").write_text(MINIMAL)
        config = ["-c", str(tmp_path / "relay.yaml")]
        assert main(["replay", "orders", "--to", "again", *typed, *config]) == 2
        (said,) = capsys.readouterr().err.splitlines()
        assert said.startswith(line)

    def test_what_would_be_copied_back(self, tmp_path: Path) -> None:
        """Within one cluster, the mirror reads its own source; the copies' name is another one."""
        servers = {"@/destination/bootstrap_servers": ["kafka-a:9092"]}
        one = settings(tmp_path, changed({**servers, "@/topics": {"allow": ["orders"]}}))
        mirror = one.mirror("orders")
        with pytest.raises(ConfigError, match="the mirror 'orders' reads the topic 'orders', and"):
            refuse_loops(mirror, replace(REQUEST, to="orders"), one.mirrors)
        refuse_loops(mirror, REQUEST, one.mirrors)
        two = settings(tmp_path)
        refuse_loops(two.mirror("orders"), replace(REQUEST, to="orders"), two.mirrors)


class _Record:
    def __init__(self, offset: int) -> None:
        self.offset = offset


@given(st.lists(st.integers(0, 40), unique=True, max_size=12).map(sorted), st.data())
def test_only_kept_offsets_pass(cuts: list[int], data: st.DataObject) -> None:
    kept = tuple(zip(cuts[::2], cuts[1::2], strict=False))
    chain = FilterChain([], AT, OnRecordError.FAIL, kept)
    wanted = {offset for start, end in kept for offset in range(start, end)} or set(range(50))
    start = data.draw(st.integers(0, 45))
    end = data.draw(st.integers(start + 1, 50))
    passed = {record.offset for record in chain.apply(map(_Record, range(start, end)))}
    assert passed == wanted.intersection(range(start, end))
    assert chain.dropped == end - start - len(passed)
    assert chain.keeps_all(start, end) == wanted.issuperset(range(start, end))


class TestCopies:
    """Where the copies are, from what the ledger says."""

    def test_a_marker_between_chunks(self) -> None:
        """A single offset between two chunks of one source is a marker; within one, a stranger."""
        a, b = (OffsetRange(AT, start, start + 10) for start in (0, 10))
        copied = [Copied(0, 10, a), Copied(11, 15, b), Copied(16, 22, b)]
        assert merged(copied, one_source=True) == ((0, 15), (16, 22))
        assert merged(copied, one_source=False) == ((0, 10), (11, 15), (16, 22))
        assert merged([copied[0], Copied(12, 15, b)], one_source=True) == ((0, 10), (12, 15))
        a, b = OffsetRange(AT, 0, 10), OffsetRange(AT, 2, 3)
        assert merged([Copied(0, 10, a), Copied(2, 3, b)], one_source=True) == ((0, 10),)

    @given(st.integers(0, 12), st.integers(0, 12))
    def test_a_part_of_a_chunk(self, skip: int, stop: int) -> None:
        own = [(3, 6), (10, 14), (20, 25)]
        offsets = [offset for start, end in own for offset in range(start, end)]
        found = [offset for start, end in part(own, skip, stop) for offset in range(start, end)]
        assert found == offsets[skip:stop]


class TestTimeSpan:
    """Dates are a predicate on each record, before all that the user gives."""

    @pytest.mark.parametrize("side", list(Side))
    def test_comes_first(self, tmp_path: Path, side: Side) -> None:
        """On either side, and once after the start record is read again."""
        typed = replace(REQUEST, offsets=None, from_ms=1, side=side, **FILTERS, folder=tmp_path)
        start = started(tmp_path, typed)
        again = request_of(start)
        for request in (typed, again):
            mirror = as_mirror(settings(tmp_path).mirror("orders"), request, "orders")
            first, second = mirror.record_policy("orders").filters
            span = {"from_ms": 1, "until_ms": None}
            assert (first.name.rpartition(":")[2], json.loads(first.config)) == ("TimeSpan", span)
            assert second.name == "m:Filter"

    @given(st.none() | st.integers(0, 9), st.none() | st.integers(0, 9))
    def test_is_half_open(self, from_ms: int | None, until_ms: int | None) -> None:
        """A record without a timestamp is in none."""
        records = [Record(at, at, None, None, ()) for at in range(-1, 10)]
        kept = [each.timestamp for each in records if TimeSpan(from_ms, until_ms).keep(each)]
        assert kept == list(range(from_ms or 0, 10 if until_ms is None else until_ms))
