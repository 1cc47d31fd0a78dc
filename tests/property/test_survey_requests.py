"""What a look at a cluster asks and reads is what kafka-python writes and reads."""

import uuid
from functools import partial
from typing import Any

from hypothesis import given
from hypothesis import strategies as st
from kafka.protocol.admin import DescribeConfigsRequest, DescribeConfigsResponse
from kafka.protocol.consumer import (
    ListOffsetsRequest,
    ListOffsetsResponse,
    OffsetForLeaderEpochRequest,
    OffsetForLeaderEpochResponse,
)
from kafka.protocol.metadata import MetadataResponse

from relay_pipelines.model import TopicPartition
from relay_pipelines.protocol import config_requests, metadata, offset_requests
from relay_pipelines.protocol.config_requests import ConfigValue

INT16 = st.integers(-(1 << 15), (1 << 15) - 1)
INT32 = st.integers(-(1 << 31), (1 << 31) - 1)
INT64 = st.integers(-(1 << 63), (1 << 63) - 1)
TEXT = st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=200)
PARTITIONS = st.lists(st.integers(0, 1 << 20), min_size=1, max_size=4, unique=True)
TOPICS = st.dictionaries(TEXT, PARTITIONS, max_size=6)


def body(message: Any, version: int) -> bytes:
    return bytes(message.encode(version=version))


@given(TOPICS, INT64, st.sampled_from([0, 1]))
def test_list_offsets_asks(topics: dict[str, list[int]], timestamp: int, isolation: int) -> None:
    topic = ListOffsetsRequest.ListOffsetsTopic
    part = partial(topic.ListOffsetsPartition, current_leader_epoch=-1, timestamp=timestamp)
    asked = [
        topic(name=name, partitions=[part(partition_index=number) for number in numbers])
        for name, numbers in topics.items()
    ]
    expected = ListOffsetsRequest(replica_id=-1, isolation_level=isolation, topics=asked)
    written = offset_requests.encode_list_offsets(topics, timestamp, isolation)
    assert written == body(expected, offset_requests.LIST_OFFSETS[1])


@given(TOPICS, st.data())
def test_list_offsets_reads(topics: dict[str, list[int]], data: st.DataObject) -> None:
    answers = [
        (TopicPartition(name, number), data.draw(INT16), data.draw(INT64))
        for name, numbers in topics.items()
        for number in numbers
    ]
    topic = ListOffsetsResponse.ListOffsetsTopicResponse
    part = partial(topic.ListOffsetsPartitionResponse, timestamp=7, leader_epoch=3)
    answered = [
        topic(
            name=name,
            partitions=[
                part(partition_index=tp.partition, error_code=code, offset=offset)
                for tp, code, offset in answers
                if tp.topic == name
            ],
        )
        for name in topics
    ]
    response = ListOffsetsResponse(throttle_time_ms=5, topics=answered)
    answer = memoryview(body(response, offset_requests.LIST_OFFSETS[1]))
    assert list(offset_requests.decode_list_offsets(answer)) == answers


@given(TOPICS, st.data())
def test_epoch_ends(topics: dict[str, list[int]], data: st.DataObject) -> None:
    asked = OffsetForLeaderEpochRequest.OffsetForLeaderTopic
    answered = OffsetForLeaderEpochResponse.OffsetForLeaderTopicResult
    wanted = [
        TopicPartition(name, number) for name, numbers in topics.items() for number in numbers
    ]
    epochs = {tp: data.draw(INT32) for tp in wanted}
    answers = [(tp, data.draw(INT16), data.draw(INT64)) for tp in wanted]
    version = offset_requests.EPOCH_ENDS[1]
    part = partial(asked.OffsetForLeaderPartition, current_leader_epoch=-1)
    wanted_topics = [
        asked(
            topic=name,
            partitions=[
                part(partition=number, leader_epoch=epochs[TopicPartition(name, number)])
                for number in numbers
            ],
        )
        for name, numbers in topics.items()
    ]
    request = OffsetForLeaderEpochRequest(replica_id=-1, topics=wanted_topics)
    assert offset_requests.encode_epoch_ends(topics, epochs) == body(request, version)
    end_of = partial(answered.EpochEndOffset, leader_epoch=2)
    ends = [
        answered(
            topic=name,
            partitions=[
                end_of(error_code=code, partition=tp.partition, end_offset=end)
                for tp, code, end in answers
                if tp.topic == name
            ],
        )
        for name in topics
    ]
    response = OffsetForLeaderEpochResponse(throttle_time_ms=0, topics=ends)
    answer = memoryview(body(response, version))
    assert list(offset_requests.decode_epoch_ends(answer)) == answers


@given(st.one_of(st.none(), st.lists(TEXT, max_size=5)))
def test_metadata_asks(topics: list[str] | None) -> None:
    expected = body(metadata.request(topics), metadata.VERSION)
    assert metadata.encode(topics) == b"\0" + expected  # with the tags of its header


@given(st.data())
def test_metadata_reads(data: st.DataObject) -> None:
    """Also more brokers than one byte counts, null names and topics without an id."""
    topic, broker = MetadataResponse.MetadataResponseTopic, MetadataResponse.MetadataResponseBroker
    nodes = st.integers(0, 200).map(range).map(list)

    def partition(number: int) -> Any:
        known = {"leader_id": data.draw(INT32), "leader_epoch": data.draw(INT32)}
        replicas = {"replica_nodes": data.draw(nodes), "isr_nodes": data.draw(nodes)}
        return topic.MetadataResponsePartition(
            error_code=0,
            partition_index=number,
            offline_replicas=data.draw(nodes),
            **(known | replicas),
        )

    topics = [
        topic(
            error_code=data.draw(INT16),
            name=name,
            topic_id=data.draw(st.one_of(st.none(), st.uuids(version=4))),
            is_internal=data.draw(st.booleans()),
            partitions=[partition(number) for number in data.draw(PARTITIONS)],
        )
        for name in data.draw(st.lists(TEXT, max_size=3, unique=True))
    ]
    brokers = [
        broker(node_id=number, host=data.draw(TEXT), port=9092, rack=data.draw(st.none() | TEXT))
        for number in range(data.draw(st.integers(0, 150)))
    ]
    ids = {"cluster_id": data.draw(st.none() | TEXT), "controller_id": data.draw(INT32)}
    response = MetadataResponse(throttle_time_ms=1, brokers=brokers, topics=topics, **ids)
    written = body(response, metadata.VERSION)
    read = MetadataResponse.decode(written, version=metadata.VERSION)
    assert metadata.decode(memoryview(b"\0" + written)) == metadata.of_answer(read)


def test_metadata_of_newer_brokers() -> None:
    """Tagged fields are skipped; ids are compared as text with those in checkpoints."""
    written = bytearray(body(MetadataResponse(topics=[], brokers=[], cluster_id=""), 12))
    tags = b"\x01\x05\x03abc"
    assert metadata.decode(memoryview(tags + written)).topics == {}
    known = uuid.UUID("0123abcd-4567-89ab-cdef-0123456789ab")
    topic = MetadataResponse.MetadataResponseTopic(
        error_code=0, name="a", topic_id=known, partitions=[]
    )
    response = MetadataResponse(brokers=[], cluster_id="c", topics=[topic])
    found = metadata.decode(memoryview(b"\0" + body(response, metadata.VERSION)))
    assert found.topics["a"].topic_id == str(known)


CONFIGS = st.lists(
    st.tuples(TEXT, st.none() | TEXT, st.sampled_from([1, 4, 5]), st.integers(0, 2)), max_size=3
)


@given(st.lists(TEXT, max_size=5), st.lists(TEXT, max_size=5))
def test_describe_configs_asks(topics: list[str], keys: list[str]) -> None:
    resource = partial(DescribeConfigsRequest.DescribeConfigsResource, configuration_keys=keys)
    resources = [resource(resource_type=2, resource_name=topic) for topic in topics]
    request = DescribeConfigsRequest(resources=resources, include_synonyms=False)
    assert config_requests.encode(topics, keys) == body(request, config_requests.VERSION)


@given(st.lists(CONFIGS, min_size=1, max_size=3), st.lists(TEXT, max_size=20), st.data())
def test_describe_configs_reads(
    kinds: list[list[tuple[str, str | None, int, int]]], topics: list[str], data: st.DataObject
) -> None:
    """Topics with the same configuration, with others, and with errors in between."""
    result = DescribeConfigsResponse.DescribeConfigsResult
    value = result.DescribeConfigsResourceResult
    codes, messages = st.sampled_from([0, 0, 29]), st.none() | TEXT
    drawn = [
        (topic, data.draw(codes), data.draw(messages), data.draw(st.sampled_from(kinds)))
        for topic in topics
    ]

    def config(name: str, text: str | None, source: int, synonyms: int) -> Any:
        synonym = value.DescribeConfigsSynonym(name=name, value=text, source=source)
        known = {"read_only": False, "is_sensitive": False, "synonyms": [synonym] * synonyms}
        return value(name=name, value=text, config_source=source, **known)

    results = [
        result(
            error_code=code,
            error_message=message,
            resource_type=2,
            resource_name=topic,
            configs=[config(*each) for each in configs],
        )
        for topic, code, message, configs in drawn
    ]
    response = DescribeConfigsResponse(throttle_time_ms=0, results=results)
    answer = memoryview(body(response, config_requests.VERSION))
    expected = []
    for topic, code, message, configs in drawn:
        values = {
            name: ConfigValue(text, is_default=of == 5)
            for name, text, of, _ in configs
            if text is not None
        }
        expected.append((topic, code, message or "", values))
    assert list(config_requests.decode(answer)) == expected
