"""What a look at a cluster asks and reads is what kafka-python writes and reads."""

import uuid
from functools import partial
from typing import Any

from hypothesis import given
from hypothesis import strategies as st
from kafka.protocol import admin, consumer
from kafka.protocol.metadata import MetadataResponse

from relay_pipelines.model import TopicPartition
from relay_pipelines.protocol import config_requests, metadata, offset_requests
from relay_pipelines.protocol.config_requests import ConfigValue
from tests.support.fake_cluster import Fields, message

INT16 = st.integers(-(1 << 15), (1 << 15) - 1)
INT32 = st.integers(-(1 << 31), (1 << 31) - 1)
INT64 = st.integers(-(1 << 63), (1 << 63) - 1)
TEXT = st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=200)
PARTITIONS = st.lists(st.integers(0, 1 << 20), min_size=1, max_size=4, unique=True)
TOPICS = st.dictionaries(TEXT, PARTITIONS, max_size=6)
Topics = dict[str, list[int]]


def body(kind: Any, version: int, **fields: Any) -> bytes:
    return bytes(message(kind, fields).encode(version=version))


def by_topic(topics: Topics, name: str, of: Any) -> list[Fields]:
    """Fields of each topic, and of its partitions: `of` returns those of one."""
    return [
        {name: topic, "partitions": [of(TopicPartition(topic, number)) for number in numbers]}
        for topic, numbers in topics.items()
    ]


def drawn(topics: Topics, data: st.DataObject, *each: st.SearchStrategy[int]) -> Any:
    """What an answer says of each topic-partition, in order."""
    places = [TopicPartition(topic, number) for topic in topics for number in topics[topic]]
    return {at: tuple(map(data.draw, each)) for at in places}


@given(TOPICS, INT64, st.sampled_from([0, 1]))
def test_list_offsets_asks(topics: Topics, timestamp: int, isolation: int) -> None:
    same = {"current_leader_epoch": -1, "timestamp": timestamp}
    asked = by_topic(topics, "name", lambda at: same | {"partition_index": at.partition})
    fields = {"replica_id": -1, "isolation_level": isolation, "topics": asked}
    expected = body(consumer.ListOffsetsRequest, offset_requests.LIST_OFFSETS[1], **fields)
    assert offset_requests.encode_list_offsets(topics, timestamp, isolation) == expected


@given(TOPICS, st.data())
def test_list_offsets_reads(topics: Topics, data: st.DataObject) -> None:
    said = drawn(topics, data, INT16, INT64)

    def answered(at: TopicPartition) -> Fields:
        code, offset = said[at]
        known = {"timestamp": 7, "leader_epoch": 3, "partition_index": at.partition}
        return known | {"error_code": code, "offset": offset}

    fields = {"throttle_time_ms": 5, "topics": by_topic(topics, "name", answered)}
    answer = body(consumer.ListOffsetsResponse, offset_requests.LIST_OFFSETS[1], **fields)
    found = list(offset_requests.decode_list_offsets(memoryview(answer)))
    assert found == [(at, *each) for at, each in said.items()]


@given(TOPICS, st.data())
def test_epoch_ends(topics: Topics, data: st.DataObject) -> None:
    said, version = drawn(topics, data, INT16, INT64, INT32), offset_requests.EPOCH_ENDS[1]

    def asked(at: TopicPartition) -> Fields:
        place = {"partition": at.partition, "current_leader_epoch": -1}
        return place | {"leader_epoch": said[at][2]}

    def answered(at: TopicPartition) -> Fields:
        code, end, _ = said[at]
        place = {"partition": at.partition, "leader_epoch": 2}
        return place | {"error_code": code, "end_offset": end}

    request = {"replica_id": -1, "topics": by_topic(topics, "topic", asked)}
    written = offset_requests.encode_epoch_ends(topics, {at: said[at][2] for at in said})
    assert written == body(consumer.OffsetForLeaderEpochRequest, version, **request)
    response = {"throttle_time_ms": 0, "topics": by_topic(topics, "topic", answered)}
    answer = body(consumer.OffsetForLeaderEpochResponse, version, **response)
    found = list(offset_requests.decode_epoch_ends(memoryview(answer)))
    assert found == [(at, code, end) for at, (code, end, _) in said.items()]


RACKS = st.none() | TEXT


def test_metadata() -> None:
    """Ids are compared as text with those in checkpoints; an answer read again is nobody else's."""
    known = uuid.UUID("0123abcd-4567-89ab-cdef-0123456789ab")
    topics = [
        {"error_code": code, "name": name, "topic_id": topic_id, "partitions": []}
        for code, name, topic_id in ((0, "a", known), (3, "b", uuid.UUID(int=0)))
    ]
    fields = {"brokers": [], "cluster_id": "c", "topics": topics}
    written = body(MetadataResponse, metadata.VERSION, **fields)
    first, second = (metadata.read(MetadataResponse, metadata.VERSION, written) for _ in range(2))
    assert {name: topic.topic_id for name, topic in first.topics.items()} == {
        "a": str(known),
        "b": "",
    }
    assert first == second
    first.topics.clear()
    assert second.topics


CONFIGS = st.lists(
    st.tuples(TEXT, st.none() | TEXT, st.sampled_from([1, 4, 5]), st.integers(0, 2)), max_size=3
)


@given(st.lists(TEXT, max_size=5), st.lists(TEXT, max_size=5))
def test_describe_configs_asks(topics: list[str], keys: list[str]) -> None:
    same = {"resource_type": 2, "configuration_keys": keys}
    resources = [same | {"resource_name": topic} for topic in topics]
    encoded = partial(body, admin.DescribeConfigsRequest, config_requests.DESCRIBE[1])
    expected = encoded(resources=resources, include_synonyms=False)
    assert config_requests.encode(topics, keys) == expected


def config(name: str, text: str | None, source: int, synonyms: int) -> Fields:
    synonym = {"name": name, "value": text, "source": source}
    known = {"read_only": False, "is_sensitive": False, "synonyms": [synonym] * synonyms}
    return {"name": name, "value": text, "config_source": source} | known


@given(st.lists(CONFIGS, min_size=1, max_size=3), st.lists(TEXT, max_size=20), st.data())
def test_describe_configs_reads(
    kinds: list[list[tuple[str, str | None, int, int]]], topics: list[str], data: st.DataObject
) -> None:
    """Topics with the same configuration, with others, and with errors in between."""
    codes = st.sampled_from([0, 0, 29])
    results, expected = [], []
    for topic in topics:
        code, said = data.draw(codes), data.draw(RACKS)
        configs = data.draw(st.sampled_from(kinds))
        answered: Fields = {"error_code": code, "error_message": said}
        answered |= {"resource_type": 2, "resource_name": topic}
        results.append(answered | {"configs": [config(*each) for each in configs]})
        known = {
            name: ConfigValue(text, is_default=of == 5)
            for name, text, of, _ in configs
            if text is not None
        }
        expected.append((topic, code, said or "", known))
    version = config_requests.DESCRIBE[1]
    answer = body(admin.DescribeConfigsResponse, version, throttle_time_ms=0, results=results)
    assert list(config_requests.decode(memoryview(answer))) == expected
