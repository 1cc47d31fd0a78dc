"""The key `topics.config_keys`."""

from __future__ import annotations

from pathlib import Path

import pytest
from pydantic import ValidationError

from relay_pipelines.settings import load
from relay_pipelines.settings.configs import DEFAULT_KEYS
from relay_pipelines.settings.models import Topics

EXAMPLE = Path(__file__).parents[2] / "relay.example.yaml"


def test_the_defaults() -> None:
    """They may be written, as the example does; no key at all is an answer, too."""
    assert Topics().config_keys == DEFAULT_KEYS
    assert load(EXAMPLE, {}).mirror("orders").topics.config_keys == DEFAULT_KEYS
    assert Topics.model_validate({"config_keys": []}).config_keys == ()


@pytest.mark.parametrize(
    ("key", "why"),
    [
        ("min.insync.replicas", "it goes with the replication factor"),
        ("leader.replication.throttled.replicas", "it names brokers of the source"),
        ("follower.replication.throttled.replicas", "it names brokers of the source"),
        ("remote.storage.enable", "it belongs to the source's tiered storage"),
        ("local.retention.ms", "it belongs to the source's tiered storage"),
    ],
)
def test_what_belongs_to_a_cluster_is_refused(key: str, why: str) -> None:
    """With the key's place in the list, and why."""
    with pytest.raises(ValidationError) as refused:
        Topics.model_validate({"config_keys": ["retention.ms", key]})
    ((place, text),) = refused.value.errors()[0]["ctx"]["found"]
    assert (place, text.startswith(f"{key} never follows the source: {why}")) == ((1,), True)
