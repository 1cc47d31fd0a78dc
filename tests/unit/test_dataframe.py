"""What the data source `relay` decides without a cluster: options, cuts, offsets of a stream."""

import json
from collections.abc import Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyspark.sql.types import StructType

from relay_pipelines.dataframe import option_names, stream_offsets, topic_options
from relay_pipelines.dataframe.data_source import KafkaRangeDataSource
from relay_pipelines.dataframe.record_range import Range, read_range, split
from relay_pipelines.errors import ConfigError, DataLossError, UnsupportedError
from relay_pipelines.ledger.chunk_copies import ChunkCopies, OwnBatches
from relay_pipelines.model import Cluster, OffsetRange, TopicPartition
from tests.support.copies_in_memory import AT, DESTINATION
from tests.support.filled import chains
from tests.support.world import World

CLUSTER = Cluster("one", ("127.0.0.1:1",))
NEWER = (
    "^the checkpoint folder of the query was written by {}; this is .*; upgrade, or start another"
)
KEPT = {"id": "a", "begin": {"0": 1}, "next": {"0": 2}}
FOREIGN = "^the checkpoint folder of the query has no offsets of a stream of the format relay"
Offsets = dict[TopicPartition, int]


def offsets(**named: int) -> Offsets:
    """Offsets by topic-partition: `t0` is partition 0 of topic t."""
    return {TopicPartition(name[0], int(name[1:])): offset for name, offset in named.items()}


@pytest.mark.parametrize(
    ("begins", "ends", "limit", "found"),
    [
        (offsets(t0=5, t1=7), offsets(t0=9, t1=7), None, offsets(t0=9, t1=7)),
        (offsets(t0=0, u0=0), offsets(t0=90, u0=10), 10, offsets(t0=9, u0=1)),
        (offsets(t0=0, t1=0, t2=0), offsets(t0=5, t1=5, t2=5), 1, offsets(t0=1, t1=0, t2=0)),
        (offsets(t0=5, t1=0), offsets(t0=5, t1=5), 1, offsets(t0=5, t1=1)),
        (offsets(t0=0, t1=3), offsets(t0=5), 100, offsets(t0=5, t1=3)),
        (offsets(t0=8), offsets(t0=5), None, offsets(t0=8)),
        ({}, {}, 5, {}),
    ],
    ids=["all", "in proportion", "few", "one is done", "a new one", "ends before", "none"],
)
def test_micro_batches(begins: Offsets, ends: Offsets, limit: int | None, found: Offsets) -> None:
    """It keeps to the limit, goes on while anything is left, and never goes back."""
    assert stream_offsets.next_offsets(begins, ends, limit) == found


@pytest.mark.parametrize(
    ("read", "line"),
    [
        (offsets(t0=4), "^t-0 at offset 4: offsets 4 to 5 are gone: retention deleted them before"),
        (offsets(t0=5, t1=8), "^t-1 at offset 8: it ends at offset 7, and the stream has read up"),
        (offsets(t0=5, u0=0), "^u-0 at offset 0: it is not among the topics any more: it was dele"),
    ],
)
def test_a_stream_refuses_to_skip_records(read: dict[TopicPartition, int], line: str) -> None:
    """It stops instead of guessing; what is still there may be read to the end."""
    low, ends = offsets(t0=5, t1=0), offsets(t0=9, t1=7)
    stream_offsets.refuse_losses(offsets(t0=5, t1=7), low, ends)
    with pytest.raises(DataLossError, match=line):
        stream_offsets.refuse_losses(read, low, ends)


def test_what_a_checkpoint_of_a_stream_keeps() -> None:
    """Topics that were created again are refused; its text does not depend on order."""
    stream_offsets.refuse_other_topics({"t": "a", "u": "", "v": "b"}, {"t": "a", "u": "c", "v": ""})
    with pytest.raises(DataLossError, match=r"^topic t was created again since the stream has "):
        stream_offsets.refuse_other_topics({"s": "a", "t": "a"}, {"s": "a", "t": "b"})
    begin, following = offsets(t10=1, t2=0, u0=7), offsets(u0=9, t2=5, t10=1)
    kept = stream_offsets.StreamOffsets(begin, following, {"t": "a", "u": ""})
    text = json.dumps(kept.as_json())
    assert stream_offsets.StreamOffsets.from_json(json.loads(text)) == kept
    assert text == json.dumps(stream_offsets.StreamOffsets.from_json(json.loads(text)).as_json())
    begins, nexts = {"2": 0, "10": 1}, {"2": 5, "10": 1}
    assert json.loads(text)["topics"]["t"] == {"id": "a", "begin": begins, "next": nexts}


def kept(**topics: Any) -> dict[str, Any]:
    return {"version": 100, "topics": topics}


@pytest.mark.parametrize(
    ("found", "line"),
    [
        ({"version": 103, "topics": {}}, NEWER.format("relay_pipelines 1.3 or later")),
        (kept(t=KEPT | {"more": 1}), NEWER.format("a later relay_pipelines")),
        (kept(t=KEPT) | {"more": 1}, NEWER.format("a later relay_pipelines")),
        (kept(t={"id": "a", "begin": {"0": 1}}), FOREIGN),
        (kept(t=KEPT | {"next": {"1": 2}}), FOREIGN),
        (kept(t=KEPT | {"next": {"0": "2"}}), FOREIGN),
        (kept(t=KEPT | {"begin": {"x": 1}, "next": {"x": 2}}), FOREIGN),
        ({"t": {"0": 17}}, FOREIGN),  # as Spark's own source for Kafka keeps them
        ([], FOREIGN),
    ],
)
def test_offsets_that_another_program_or_version_has_kept(found: Any, line: str) -> None:
    """One line says so; whatever they mean, the stream does not go on from them."""
    with pytest.raises(UnsupportedError, match=line):
        stream_offsets.StreamOffsets.from_json(found)


@given(
    st.lists(st.tuples(st.integers(0, 50), st.integers(1, 1000)), max_size=6),
    st.one_of(st.none(), st.integers(1, 60)),
)
def test_parts_have_every_offset_once(logs: list[tuple[int, int]], at_least: int | None) -> None:
    """There are as many as wanted, as long as there are offsets."""
    ranges = [
        Range(CLUSTER, OffsetRange(TopicPartition("t", number), start, start + length))
        for number, (start, length) in enumerate(logs)
    ]
    parts = split(ranges, at_least)
    for whole in ranges:
        tp = whole.offset_range.topic_partition
        own = [part.offset_range for part in parts if part.offset_range.topic_partition == tp]
        assert all(map(len, own))
        assert [offset for part in own for offset in range(part.start, part.end)] == [
            *range(whole.offset_range.start, whole.offset_range.end)
        ]
    assert len(parts) >= min(at_least or 0, sum(len(whole.offset_range) for whole in ranges))


def test_chunks_are_not_cut() -> None:
    """A part has whole chunks."""
    chunks = ChunkCopies(3, 9, 7), ChunkCopies(9, 10, 7), ChunkCopies(20, 90, 8)
    whole = Range.of_chunks(CLUSTER, TopicPartition("t", 0), chunks)
    assert (whole.offset_range.start, whole.offset_range.end) == (3, 90)
    halves = [chunks[:1], chunks[1:]]
    for count, expected in ((1, [chunks]), (2, halves), (9, [(each,) for each in chunks])):
        parts = split([whole], count)
        assert [part.chunks for part in parts] == expected
        bounds = [(some[0][0], some[-1][1]) for some in expected]
        assert [(part.offset_range.start, part.offset_range.end) for part in parts] == bounds


def test_chunks_that_overlap() -> None:
    """Of partitions that are pinned to one: each has the batches of its producer."""
    batches = OwnBatches([ChunkCopies(0, 20, 1), ChunkCopies(5, 9, 2), ChunkCopies(7, 15, 3)])

    def included(start: int, producer_id: int) -> bool:
        run = SimpleNamespace(first=SimpleNamespace(producer_id=producer_id))
        span = SimpleNamespace(start=start, end=start + 1, run=run, skipped=None)
        return batches.has(cast("Any", span))

    found = {who: [at for at in range(25) if included(at, who)] for who in (1, 2, 3, 4)}
    expected = {1: range(20), 2: range(5, 9), 3: range(7, 15), 4: ()}
    assert found == {who: [*offsets] for who, offsets in expected.items()}


def test_records_that_others_have_replaced_are_not_left_out_in_silence(tmp_path: Path) -> None:
    """What a cleaner has removed, or others wrote between the chunk's, is no such thing."""
    world = World(tmp_path)
    world.copy(20)
    chunks = [ChunkCopies.of(entry) for entry in chains(world.copies)[AT].entries]
    whole = Range.of_chunks(DESTINATION, AT, chunks)

    def rows() -> int:
        with world.answering():
            return sum(batch.num_rows for batch in read_range(whole, ["offset"]))

    assert rows() == 20
    log = world.copies.logs["a"]
    first = log.entries[0]
    log.entries.remove(first)
    assert rows() == 15
    log.entries.insert(0, first)
    first.header = first.header._replace(producer_id=77)
    with pytest.raises(DataLossError, match="other records stand in the place of 5 that"):
        rows()


@pytest.mark.parametrize(
    "pattern", [r"\Qa\E", r"\p{Lower}+", "[a-z&&[^b]]+", "[a[bc]]", "a(", "(?<n>a)"]
)
def test_a_pattern_that_python_reads_otherwise(pattern: str) -> None:
    """It would select other topics than in Java, or none; others match whole names, as there."""
    with pytest.raises(ConfigError, match=r"^option subscribePattern: .*; write one that Python"):
        topic_options.java_pattern(pattern)
    names = ["orders.eu", "orders.us"]
    whole = {r"orders\..*": 2, "orders": 0, "(?i)ORDERS.(eu|us)": 2, ".*[^su]": 0, "[a-p]*.us": 0}
    for good, count in whole.items():
        compiled = topic_options.java_pattern(good)
        assert len([name for name in names if compiled.fullmatch(name)]) == count


@pytest.mark.parametrize(
    ("options", "line"),
    [
        ({"startingoffset": "1"}, "has no option 'startingoffset'; did you mean 'startingOffsets'"),
        ({"subscribe_pattern": "a"}, "'subscribe_pattern'; did you mean 'subscribePattern'?"),
        ({"minoffsetspertrigger": "1"}, "option 'minoffsetspertrigger'; valid options: assign, ch"),
        ({"kafka.bootstrap.servers": "a"}, "leave it out: relay.yaml says how to connect"),
        ({"maxoffsetspertrigger": "1"}, "has no option 'max_offsets'; leave it out; valid options"),
    ],
)
def test_an_option_that_there_is_not(options: Mapping[str, str], line: str) -> None:
    named = option_names.our_names(options)
    with pytest.raises(ConfigError, match=line.replace("?", r"\?")):
        option_names.refuse_unknown(named, option_names.BATCH_OPTIONS, "the format relay")


def test_options_have_two_names() -> None:
    """In any case, as Spark passes them."""
    for options, line in (
        ({"what": "all"}, "option what: 'all' is neither records nor ledger"),
        ({"what": "ledger", "side": "source"}, "with what=ledger, the format relay has no option"),
    ):
        with pytest.raises(ConfigError, match=line):
            KafkaRangeDataSource(options).reader(StructType())
    with pytest.raises(ConfigError, match="option includeHeaders: '1' is neither true nor false"):
        KafkaRangeDataSource({"includeHeaders": "1"}).schema()
    given = {"subscribe": "t", "STARTINGOFFSETS": "1", "endingoffsets": "2", "minPartitions": "3"}
    expected = {"topic": "t", "start": "1", "end": "2", "minPartitions": "3"}
    assert option_names.our_names(given) == expected
    same, exclude = "endingOffsets mean the same", "assign exclude each other"
    with pytest.raises(ConfigError, match=f"^options end and {same}; give one"):
        option_names.our_names({"end": "1", "endingoffsets": "1"})
    with pytest.raises(ConfigError, match=f"^options topic and {exclude}; give one"):
        option_names.only_one({"topic": "a", "assign": "{}"}, *option_names.TOPICS)
