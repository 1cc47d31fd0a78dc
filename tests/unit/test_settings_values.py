"""relay.yaml: types, sizes, durations, and how records are copied."""

from __future__ import annotations

import pytest

from relay_pipelines import model
from tests.support.config_files import cases

REFUSED = [
    ("text for a mapping", {"@/source": "kafka-a:9092"}, "@.source"),
    ("a mapping for a list", {"@/source/nodes": {"name": "n"}}, "@.source.nodes"),
    ("text for a list", {"@/topics/allow": "orders"}, "@.topics.allow"),
    ("a number for text", {"@node/name": 1}, "@node.name"),
    (
        "text for a boolean",
        {"@node/security": {"verify_hostname": "perhaps"}},
        "@node.security.verify_hostname",
    ),
    ("a list for a Spark setting", {"spark/conf": {"spark.jars": ["x"]}}, "spark.conf.spark.jars"),
    ("nothing for a Spark setting", {"spark/conf": {"spark.jars": None}}, "spark.conf.spark.jars"),
    (
        "true for a count, which pydantic takes for 1",
        {"@/copy/parallelism": True},
        "@.copy.parallelism",
    ),
    ("a parallelism of one and a half", {"@/copy/parallelism": 1.5}, "@.copy.parallelism"),
    ("a parallelism of zero", {"@/copy/parallelism": 0}, "@.copy.parallelism"),
    (
        "a replication factor of zero",
        {"@/destination/replication_factor": 0},
        "@.destination.replication_factor",
    ),
    (
        "more replicas than an int16 holds",
        {"@/destination/replication_factor": 40_000},
        "@.destination.replication_factor",
    ),
    ("a duration without a unit", {"@/copy/chunk_interval": 5}, "@.copy.chunk_interval"),
    ("YAML's 1:30, which is the number 90", {"@/copy/chunk_interval": 90}, "@.copy.chunk_interval"),
    ("a size's unit on a duration", {"@/copy/chunk_interval": "5MB"}, "@.copy.chunk_interval"),
    ("a duration of zero", {"@/copy/request_timeout": "0s"}, "@.copy.request_timeout"),
    ("half a millisecond", {"@/copy/request_timeout": "0.5ms"}, "@.copy.request_timeout"),
    ("a give_up_after of zero", {"@/give_up_after": "0s"}, "@.give_up_after"),
    ("a negative give_up_after", {"@/give_up_after": -2}, "@.give_up_after"),
    ("a give_up_after that is a list", {"@/give_up_after": ["60s"]}, "@.give_up_after"),
    (
        "a duration that overflows an int32",
        {"@/copy/request_timeout": "25d"},
        "@.copy.request_timeout",
    ),
    ("a size without a number", {"@/copy/chunk": "lots"}, "@.copy.chunk"),
    ("a negative size", {"@/copy/chunk": -1}, "@.copy.chunk"),
    ("true for a size", {"@/copy/chunk": True}, "@.copy.chunk"),
    ("a size of zero", {"@/copy/chunk": 0}, "@.copy.chunk"),
    ("a size that overflows an int32", {"@/copy/fetch_max": "2GiB"}, "@.copy.fetch_max"),
    (
        "coalesce_below above coalesce_to",
        {"@/copy": {"coalesce_to": "1KiB", "coalesce_below": "2KiB"}},
        "@.copy.coalesce_below",
    ),
    (
        "a backoff whose min exceeds its max",
        {"@/copy/backoff": {"min": "9s"}},
        "@.copy.backoff.min",
    ),
    (
        "chunks that take longer than a transaction may",
        {"@/copy/transaction_timeout": "5s"},
        "@.copy.chunk_interval",
    ),
    (
        "a rate so low that transactions time out",
        {"@/copy": {"max_bytes_per_second": "1KiB"}},
        "@.copy.max_bytes_per_second",
    ),
]


@pytest.mark.parametrize(("changes", "place"), cases(REFUSED))
def test_is_refused_in_one_line(assert_refused, changes, place):
    assert_refused(changes, place)


def test_copy_options_become_bytes_and_milliseconds(load_mirror):
    options = {
        "chunk": "64MiB",
        "chunk_interval": "500ms",
        "fetch_max": 1000,
        "coalesce_below": 0,
        "coalesce_to": "1.5 KiB",
        "recompress": "zstd",
        "transaction_timeout": "5m",
        "request_timeout": "3s",
        "backoff": {"min": "1s", "max": "1m"},
    }
    assert load_mirror({"@/copy": options}).copy_options == model.CopyOptions(
        chunk_bytes=64 << 20,
        chunk_ms=500,
        fetch_max_bytes=1000,
        coalesce_below_bytes=0,
        coalesce_to_bytes=1536,
        codec="zstd",
        transaction_timeout_ms=300_000,
        request_timeout_ms=3_000,
        backoff_min_ms=1_000,
        backoff_max_ms=60_000,
    )


@pytest.mark.parametrize(
    ("written", "milliseconds"), [("2s", 2_000), (-1, -1), ("-1", -1), (None, 60_000)]
)
def test_give_up_after_applies_to_all_topics_of_a_mirror(load_mirror, written, milliseconds):
    """Topics with an override have the mirror's, too."""
    overrides = {"one": {"copy": {"chunk": "1MiB"}}}
    mirror = load_mirror({"@/give_up_after": written, "@/topics/overrides": overrides})
    assert mirror.copy_options.give_up_after_ms == milliseconds
    assert mirror.record_policy("one").options.give_up_after_ms == milliseconds


@pytest.mark.parametrize(
    ("written", "size"),
    [
        (7, 7),
        ("7", 7),
        ("7B", 7),
        ("64KiB", 65_536),
        ("1GiB", 1 << 30),
        ("10MB", 10_000_000),
        ("2kb", 2_000),
        ("1TiB", 1 << 40),
    ],
)
def test_sizes_have_decimal_and_binary_units(load_mirror, written, size):
    chunk_bytes = load_mirror({"@/copy/chunk": written}).copy_options.chunk_bytes
    assert (chunk_bytes, type(chunk_bytes)) == (size, int)  # tasks unpickle it without pydantic
