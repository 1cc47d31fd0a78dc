"""What is asked of a comparison is refused before any cluster is."""

import re

import pytest

from relay_pipelines.compare.request import parse_rename
from relay_pipelines.errors import ConfigError


@pytest.mark.parametrize(
    "text",
    ["orders", "orders=", "(=eu", r"(.*)=eu.\2", r"(.*)=\g<name>", "(.*)=a name"],
)
def test_rules_for_names_that_are_none(text: str) -> None:
    """A rule that could not name a topic is an error, not a traceback at the first one."""
    with pytest.raises(ConfigError, match=f"^--rename: {re.escape(repr(text))} is no rule"):
        parse_rename("--rename", text)


def test_a_rule_for_names() -> None:
    """What follows the first equals sign is the name."""
    assert parse_rename("--rename", r"(.*)=eu.\1") == ("(.*)", r"eu.\1")
