"""relay.yaml: which topics are copied, their names, overrides, and filters."""

from __future__ import annotations

import re

import pytest

from tests.support.config_files import cases

REFUSED = [
    (
        "an invalid regular expression in allow",
        {"@/topics/allow": ["ok", "orders("]},
        "@.topics.allow[1]",
    ),
    (
        "a regular expression that ends with the line end of a folded block",
        {"@/topics/allow": ["ok", "orders|payments\n"]},
        "@.topics.allow[1]",
    ),
    (
        "a rule that ends with the line end of a folded block",
        {"@/topics/rename": [{"match": "a(.*)\n", "to": r"b\1"}]},
        "@.topics.rename[0].match",
    ),
    ("an invalid regular expression in deny", {"@/topics/deny": ["*"]}, "@.topics.deny[0]"),
    ("a template that gives all topics one name", {"@/topics/rename": "all"}, "@.topics.rename"),
    (
        "a template with another placeholder",
        {"@/topics/rename": "{topic}.{date}"},
        "@.topics.rename",
    ),
    ("a template that pins an illegal name", {"@/topics/rename": "{topic}/a:3"}, "@.topics.rename"),
    ("a template that makes internal topics", {"@/topics/rename": "__{topic}"}, "@.topics.rename"),
    (
        "a group that does not exist",
        {"@/topics/rename": [{"match": "a(.*)", "to": r"\g<x>"}]},
        "@.topics.rename[0].to",
    ),
    (
        "a group that does not exist beside one that does",
        {"@/topics/rename": [{"match": "a(.*)", "to": r"\1\g<x>"}]},
        "@.topics.rename[0].to",
    ),
    (
        "a configuration that topics do not have",
        {"@/topics/config_keys": ["retention.hours"]},
        "@.topics.config_keys[0]",
    ),
    (
        "a configuration with half a character, which no request can name",
        {"@/topics/config_keys": ["retention.ms", "\ud800"]},
        "@.topics.config_keys[1]",
    ),
    ("a list for rename", {"@/topics/rename": ["a"]}, "@.topics.rename[0].match"),
    ("a number for rename", {"@/topics/rename": 5}, "@.topics.rename"),
    (
        "a rule with an invalid regular expression",
        {"@/topics/rename": [{"match": "a(", "to": "b"}]},
        "@.topics.rename[0].match",
    ),
    (
        "a rule that refers to a group that does not exist",
        {"@/topics/rename": [{"match": "a(.*)", "to": r"b\2"}]},
        "@.topics.rename[0].to",
    ),
    (
        "a rule with an illegal name",
        {"@/topics/rename": [{"match": "a(.*)", "to": r"b/\1"}]},
        "@.topics.rename[0].to",
    ),
    (
        "{topic} without quotes, which is a mapping in YAML",
        {"@/topics/rename": {"topic": None}},
        "@.topics.rename.topic",
    ),
    (
        "a pinned destination with an illegal name",
        {"@/topics/rename": {"a": "d/t:3"}},
        "@.topics.rename.a",
    ),
    (
        "a destination that only one of its two topics pins",
        {"@/topics/rename": {"a": "c", "b": "c:0"}},
        "@.topics.rename.a",
    ),
    ("a destination with an illegal name", {"@/topics/rename": {"a": "b/c"}}, "@.topics.rename.a"),
    ("a number as destination", {"@/topics/rename": {"a": 1}}, "@.topics.rename.a"),
    ("two topics renamed to one", {"@/topics/rename": {"a": "c", "b": "c"}}, "@.topics.rename.b"),
    (
        "an override that contradicts the mirror",
        {
            "@/copy": {"coalesce_to": "16KiB"},
            "@/topics/overrides": {"big": {"copy": {"coalesce_below": "32KiB"}}},
        },
        "@.topics.overrides.big.copy.coalesce_below",
    ),
    (
        "an override of a key that all topics share",
        {"@/topics/overrides": {"big": {"copy": {"request_timeout": "5s"}}}},
        "@.topics.overrides.big.copy.request_timeout",
    ),
    (
        "an override whose lane name is taken",
        {
            "@/lanes": {"big": {"topics": ["x"]}},
            "@/topics/overrides": {"big": {"window": {"keep": 2}}},
        },
        "@.topics.overrides.big.window",
    ),
    (
        "an override of a pattern without a letter",
        {"@/topics/overrides": {".*": {"window": {"keep": 2}}}},
        "@.topics.overrides..*.window",
    ),
    (
        "an override with an unknown key",
        {"@/topics/overrides": {"big": {"chunk": "1MiB"}}},
        "@.topics.overrides.big.chunk",
    ),
    (
        "a filter whose class name is invalid",
        {"@/filters": [{"class": "a b"}]},
        "@.filters[0].class",
    ),
    ("a filter without a class", {"@/filters": [{"config": {}}]}, "@.filters[0].class"),
    ("a column that no record has", {"@/select": {"vaule": "1"}}, "@.select.vaule"),
    ("an empty predicate", {"@/where": ""}, "@.where"),
    ("an unknown policy for records", {"@/on_record_error": "skip"}, "@.on_record_error"),
]


@pytest.mark.parametrize(("changes", "place"), cases(REFUSED))
def test_is_refused_in_one_line(assert_refused, changes, place):
    assert_refused(changes, place)


def test_a_verbose_regular_expression_may_end_with_a_line_end(load_mirror):
    """There, it means nothing."""
    (allowed,) = load_mirror({"@/topics/allow": ["(?x)\n  orders\n  | payments\n"]}).topics.allow
    assert re.fullmatch(allowed, "payments")


def test_overrides_replace_single_keys_of_the_mirror(load_mirror):
    """Other keys keep the mirror's value, at any depth; the first override that matches counts."""
    overrides = {
        r"orders\.big": {
            "copy": {"chunk": "1MiB", "backoff": {"min": "1s"}, "parallelism": 2},
            "where": "key IS NULL",
        },
        r"orders\.big|orders\.x": {"copy": {"chunk": "2MiB"}, "filters": []},
    }
    changes = {
        "@/copy": {"chunk": "3MiB", "chunk_interval": "2s", "backoff": {"max": "9s"}},
        "@/topics/overrides": overrides,
        "@/filters": [{"class": "a:B"}],
        "@/select": {"key": "value"},
    }
    mirror = load_mirror(changes)
    policies = [mirror.record_policy(topic) for topic in ("orders.big", "orders.x", "payments")]
    big, other, default = (policy.options for policy in policies)
    assert (big.chunk_bytes, big.chunk_ms, big.parallelism) == (1 << 20, 2_000, 2)
    assert (big.backoff_min_ms, big.backoff_max_ms) == (1_000, 9_000)
    assert (other.chunk_bytes, other.parallelism) == (2 << 20, 0)
    assert default is None
    assert [len(policy.filters) for policy in policies] == [1, 0, 1]
    assert [policy.where for policy in policies] == ["key IS NULL", "", ""]
    assert [policy.select for policy in policies] == [(("key", "value"),)] * 3
