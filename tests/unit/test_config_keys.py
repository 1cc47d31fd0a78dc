"""The key `topics.config_keys`."""

from __future__ import annotations

from pathlib import Path

import pytest
from pydantic import ValidationError

from relay_pipelines.settings import load
from relay_pipelines.settings.topics import DEFAULT_CONFIG_KEYS, Topics

EXAMPLE = Path(__file__).parents[2] / "relay.example.yaml"


def test_the_example_lists_the_default_keys_and_an_empty_list_is_allowed() -> None:
    assert Topics().config_keys == DEFAULT_CONFIG_KEYS
    assert load(EXAMPLE, {}).mirror("orders").topics.config_keys == DEFAULT_CONFIG_KEYS
    assert Topics.model_validate({"config_keys": []}).config_keys == ()


@pytest.mark.parametrize(
    ("key", "why"),
    [
        ("min.insync.replicas", "it depends on the replication factor"),
        ("leader.replication.throttled.replicas", "it names brokers of the source"),
        ("follower.replication.throttled.replicas", "it names brokers of the source"),
        ("remote.storage.enable", "it belongs to the source's tiered storage"),
        ("local.retention.ms", "it belongs to the source's tiered storage"),
    ],
)
def test_a_key_that_depends_on_the_cluster_is_refused(key: str, why: str) -> None:
    """The message names the key's position in the list, and the reason."""
    with pytest.raises(ValidationError) as refused:
        Topics.model_validate({"config_keys": ["retention.ms", key]})
    ((location, text),) = refused.value.errors()[0]["ctx"]["found"]
    assert (location, text.startswith(f"{key} cannot follow the source: {why}")) == ((1,), True)
