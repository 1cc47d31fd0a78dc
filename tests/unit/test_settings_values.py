"""relay.yaml: types, sizes, durations, and how records are copied."""

from __future__ import annotations

import pytest

from relay_pipelines import model
from tests.support.config_files import cases, changed, refusal

DURATION = "expected a duration such as 500ms, 3s or 5m"
SIZE = "expected a size such as 64KiB, 10MB or a number of bytes"

REFUSED = [
    (
        "text for a mapping",
        {"@/source": "kafka-a:9092"},
        "@.source: expected a mapping, got a string",
    ),
    (
        "a mapping for a list",
        {"@/source/nodes": {"name": "n"}},
        "@.source.nodes: expected a list, got a mapping",
    ),
    (
        "text for a list",
        {"@/topics/allow": "orders"},
        "@.topics.allow: expected a list, got a string",
    ),
    (
        "a number for text",
        {"@node/name": 1},
        "@node.name: expected a string, got a whole number; put it in quotes",
    ),
    (
        "text for a boolean",
        {"@node/security": {"verify_hostname": "perhaps"}},
        "@node.security.verify_hostname: expected true or false, got 'perhaps'",
    ),
    (
        "a list for a Spark setting",
        {"spark/conf": {"spark.jars": ["x"]}},
        "spark.conf.spark.jars: expected a string, a number, true or false, got a list",
    ),
    (
        "nothing for a Spark setting",
        {"spark/conf": {"spark.jars": None}},
        "spark.conf.spark.jars: expected a string, a number, true or false, got nothing",
    ),
    (
        "true for a count, which pydantic takes for 1",
        {"@/copy/parallelism": True},
        "@.copy.parallelism: expected a whole number, got true",
    ),
    (
        "a parallelism of one and a half",
        {"@/copy/parallelism": 1.5},
        "@.copy.parallelism: expected a whole number, got 1.5",
    ),
    (
        "a parallelism of zero",
        {"@/copy/parallelism": 0},
        "@.copy.parallelism: expected more than 0, got 0",
    ),
    (
        "a replication factor of zero",
        {"@/destination/replication_factor": 0},
        "@.destination.replication_factor: expected more than 0, got 0",
    ),
    (
        "more replicas than an int16 holds",
        {"@/destination/replication_factor": 40_000},
        "@.destination.replication_factor: expected at most 32767, got 40000",
    ),
    (
        "a duration without a unit",
        {"@/copy/chunk_interval": 5},
        f"@.copy.chunk_interval: {DURATION}, got 5",
    ),
    (
        "YAML's 1:30, which is the number 90",
        {"@/copy/chunk_interval": 90},
        f"@.copy.chunk_interval: {DURATION}, got 90",
    ),
    (
        "a size's unit on a duration",
        {"@/copy/chunk_interval": "5MB"},
        f"@.copy.chunk_interval: {DURATION}, got '5MB'",
    ),
    (
        "a duration of zero",
        {"@/copy/request_timeout": "0s"},
        "@.copy.request_timeout: expected more than 0, got '0s'",
    ),
    (
        "half a millisecond",
        {"@/copy/request_timeout": "0.5ms"},
        (
            f"@.copy.request_timeout: {DURATION}, got '0.5ms': less than a millisecond cannot be"
            " expressed"
        ),
    ),
    (
        "a give_up_after of zero",
        {"@/give_up_after": "0s"},
        f"@.give_up_after: {DURATION}, or -1 for no limit, got '0s'",
    ),
    (
        "a negative give_up_after",
        {"@/give_up_after": -2},
        f"@.give_up_after: {DURATION}, or -1 for no limit, got -2",
    ),
    (
        "a give_up_after that is a list",
        {"@/give_up_after": ["60s"]},
        f"@.give_up_after: {DURATION}, or -1 for no limit, got a list",
    ),
    (
        "a duration that overflows an int32",
        {"@/copy/request_timeout": "25d"},
        (
            f"@.copy.request_timeout: {DURATION}, got '25d': the protocol cannot express more than"
            " 24 days"
        ),
    ),
    ("a size without a number", {"@/copy/chunk": "lots"}, f"@.copy.chunk: {SIZE}, got 'lots'"),
    ("a negative size", {"@/copy/chunk": -1}, f"@.copy.chunk: {SIZE}, got -1"),
    ("true for a size", {"@/copy/chunk": True}, f"@.copy.chunk: {SIZE}, got true"),
    ("a size of zero", {"@/copy/chunk": 0}, "@.copy.chunk: expected more than 0, got 0"),
    (
        "a size that overflows an int32",
        {"@/copy/fetch_max": "2GiB"},
        "@.copy.fetch_max: expected less than 2GiB, got '2GiB': the protocol stores it in 31 bits",
    ),
    (
        "coalesce_below above coalesce_to",
        {"@/copy": {"coalesce_to": "1KiB", "coalesce_below": "2KiB"}},
        "@.copy.coalesce_below: must not be more than coalesce_to",
    ),
    (
        "a backoff whose min exceeds its max",
        {"@/copy/backoff": {"min": "9s"}},
        "@.copy.backoff.min: must not be more than backoff.max",
    ),
    (
        "chunks that take longer than a transaction may",
        {"@/copy/transaction_timeout": "5s"},
        (
            "@.copy.chunk_interval: must be shorter than transaction_timeout; otherwise every"
            " transaction is aborted"
        ),
    ),
    (
        "a rate so low that transactions time out",
        {"@/copy": {"max_bytes_per_second": "1KiB"}},
        (
            "@.copy.max_bytes_per_second: expected at least 64KiB, got '1KiB': a batch must be"
            " written before its transaction"
            " times out"
        ),
    ),
]


@pytest.mark.parametrize(("changes", "line"), cases(REFUSED))
def test_is_refused_in_one_line(write_config, changes, line):
    """The path of the key, what was expected, what was found."""
    path = write_config(changed(changes))
    assert refusal(path) == f"{path}: {line}"


def test_copy_options_become_bytes_and_milliseconds(load_mirror):
    options = {
        "chunk": "64MiB",
        "chunk_interval": "500ms",
        "fetch_max": 1000,
        "coalesce_below": 0,
        "coalesce_to": "1.5 KiB",
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
