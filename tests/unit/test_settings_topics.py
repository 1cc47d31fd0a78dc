"""relay.yaml: which topics are copied, their names, overrides, and filters."""

from __future__ import annotations

import pytest

from tests.support.config_files import cases, changed, refusal

REFUSED = [
    (
        "an invalid regular expression in allow",
        {"@/topics/allow": ["ok", "orders("]},
        (
            "@.topics.allow[1]: expected a regular expression, got 'orders(': missing ),"
            " unterminated subpattern at position 6"
        ),
    ),
    (
        "an invalid regular expression in deny",
        {"@/topics/deny": ["*"]},
        (
            "@.topics.deny[0]: expected a regular expression, got '*': nothing to repeat at"
            " position 0; write .* for any characters"
        ),
    ),
    (
        "a template that gives all topics one name",
        {"@/topics/rename": "all"},
        (
            '@.topics.rename: expected a template that contains "{topic}", or pins a partition'
            ' as in "all:0",'
            " got 'all': otherwise all topics get the same name"
        ),
    ),
    (
        "a template with another placeholder",
        {"@/topics/rename": "{topic}.{date}"},
        (
            "@.topics.rename: expected a template of letters, digits, '.', '_', '-' and"
            " \"{topic}\", got '{topic}.{date}'"
        ),
    ),
    (
        "a template that pins an illegal name",
        {"@/topics/rename": "{topic}/a:3"},
        (
            "@.topics.rename: expected a template of letters, digits, '.', '_', '-' and"
            " \"{topic}\", got '{topic}/a:3'"
        ),
    ),
    (
        "a template that makes internal topics",
        {"@/topics/rename": "__{topic}"},
        (
            "@.topics.rename: expected a name that does not begin with __, as internal topics do,"
            " got '__{topic}'"
        ),
    ),
    (
        "a group that does not exist",
        {"@/topics/rename": [{"match": "a(.*)", "to": r"\g<x>"}]},
        (
            r"@.topics.rename[0].to: expected groups of match, such as \1 or \g<name>: unknown"
            " group name 'x'"
        ),
    ),
    (
        "a group that does not exist beside one that does",
        {"@/topics/rename": [{"match": "a(.*)", "to": r"\1\g<x>"}]},
        (
            r"@.topics.rename[0].to: expected groups of match, such as \1 or \g<name>:"
            " unknown group name 'x'"
        ),
    ),
    (
        "a configuration that topics do not have",
        {"@/topics/config_keys": ["retention.hours"]},
        (
            "@.topics.config_keys[0]: retention.hours is not a configuration of topics;"
            " did you mean 'retention.ms'?"
        ),
    ),
    (
        "a list for rename",
        {"@/topics/rename": ["a"]},
        (
            "@.topics.rename[0].match: expected the two keys match and to, both in quotes, as in"
            ' {match: "orders\\.(.*)", to: "eu.\\1"}'
        ),
    ),
    (
        "a number for rename",
        {"@/topics/rename": 5},
        (
            '@.topics.rename: expected a template such as "copy.{topic}", a map of source'
            " topic to destination topic, or a list"
            " of rules, got 5"
        ),
    ),
    (
        "a rule with an invalid regular expression",
        {"@/topics/rename": [{"match": "a(", "to": "b"}]},
        (
            "@.topics.rename[0].match: expected a regular expression: missing ), unterminated"
            " subpattern at position 1"
        ),
    ),
    (
        "a rule that refers to a group that does not exist",
        {"@/topics/rename": [{"match": "a(.*)", "to": r"b\2"}]},
        "@.topics.rename[0].to: refers to group 2, but match has 1",
    ),
    (
        "a rule with an illegal name",
        {"@/topics/rename": [{"match": "a(.*)", "to": r"b/\1"}]},
        r"@.topics.rename[0].to: expected letters, digits, '.', '_', '-' and groups such as \1",
    ),
    (
        "{topic} without quotes, which is a mapping in YAML",
        {"@/topics/rename": {"topic": None}},
        '@.topics.rename.topic: no destination topic given; a template needs quotes: "{topic}"',
    ),
    (
        "a pinned destination with an illegal name",
        {"@/topics/rename": {"a": "d/t:3"}},
        "@.topics.rename.a: expected a topic name: up to 249 letters, digits, '.', '_' and '-'",
    ),
    (
        "a destination that only one of its two topics pins",
        {"@/topics/rename": {"a": "c", "b": "c:0"}},
        (
            "@.topics.rename.a: another topic gets the same name; choose another one,"
            ' or pin both topics to a partition, as in "dst:0"'
        ),
    ),
    (
        "a destination with an illegal name",
        {"@/topics/rename": {"a": "b/c"}},
        "@.topics.rename.a: expected a topic name: up to 249 letters, digits, '.', '_' and '-'",
    ),
    (
        "a number as destination",
        {"@/topics/rename": {"a": 1}},
        "@.topics.rename.a: expected the name of a destination topic; put it in quotes",
    ),
    (
        "two topics renamed to one",
        {"@/topics/rename": {"a": "c", "b": "c"}},
        (
            "@.topics.rename.b: another topic gets the same name; choose another one,"
            ' or pin both topics to a partition, as in "dst:0"'
        ),
    ),
    (
        "an override that contradicts the mirror",
        {
            "@/copy": {"coalesce_to": "16KiB"},
            "@/topics/overrides": {"big": {"copy": {"coalesce_below": "32KiB"}}},
        },
        "@.topics.overrides.big.copy.coalesce_below: must not be more than coalesce_to",
    ),
    (
        "an override of a key that all topics share",
        {"@/topics/overrides": {"big": {"copy": {"request_timeout": "5s"}}}},
        (
            "@.topics.overrides.big.copy.request_timeout: cannot differ between topics: all topics"
            " of a mirror share their connections"
        ),
    ),
    (
        "an override whose lane name is taken",
        {
            "@/lanes": {"big": {"topics": ["x"]}},
            "@/topics/overrides": {"big": {"window": {"keep": 2}}},
        },
        (
            "@.topics.overrides.big.window: its lane cannot be named 'big'; define the lane under"
            " lanes"
        ),
    ),
    (
        "an override of a pattern without a letter",
        {"@/topics/overrides": {".*": {"window": {"keep": 2}}}},
        "@.topics.overrides..*.window: its lane cannot be named ''; define the lane under lanes",
    ),
    (
        "an override with an unknown key",
        {"@/topics/overrides": {"big": {"chunk": "1MiB"}}},
        (
            "@.topics.overrides.big.chunk: unknown key; valid keys: copy,"
            " expectation_sample, expectations, filters,"
            " on_record_error, select, transform, where, window"
        ),
    ),
    (
        "a filter whose class name is invalid",
        {"@/filters": [{"class": "a b"}]},
        "@.filters[0].class: expected module:Class, or the name of an entry point, got 'a b'",
    ),
    ("a filter without a class", {"@/filters": [{"config": {}}]}, "@.filters[0].class: is missing"),
    (
        "a column that no record has",
        {"@/select": {"vaule": "1"}},
        "@.select.vaule: unknown column; a record has key, value, headers, timestamp",
    ),
    ("an empty predicate", {"@/where": ""}, "@.where: expected a string that is not empty, got ''"),
    (
        "an unknown policy for records",
        {"@/on_record_error": "skip"},
        "@.on_record_error: expected 'fail' or 'quarantine', got 'skip'",
    ),
]


@pytest.mark.parametrize(("changes", "line"), cases(REFUSED))
def test_is_refused_in_one_line(write_config, changes, line):
    """The path of the key, what was expected, what was found."""
    path = write_config(changed(changes))
    assert refusal(path) == f"{path}: {line}"


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
