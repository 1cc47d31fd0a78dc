"""What is asked of a comparison is refused before any cluster is."""

import re

import pytest

from relay_pipelines.compare.request import Align, CompareRequest, parse_rename
from relay_pipelines.errors import ConfigError


@pytest.mark.parametrize(
    "text",
    ["orders", "orders=", "(=eu", r"(.*)=eu.\2", r"(.*)=\g<name>", "(.*)=a name"],
)
def test_rules_for_names_that_are_none(text: str) -> None:
    """A rule that could not name a topic is an error, not a traceback at the first one."""
    with pytest.raises(ConfigError, match=f"^--rename: {re.escape(repr(text))} is no rule"):
        parse_rename("--rename", text)
    match, _, to = text.partition("=")
    with pytest.raises(ConfigError, match="is no rule for names; write PATTERN=NAME"):
        CompareRequest("a:1", "b:1", ("t",), rename=((match, to),))


def test_a_text_that_names_a_way_to_compare() -> None:
    """In Python, it means what it says, or is refused."""
    assert CompareRequest(align="key").align is Align.KEY  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match="'keys' is no way to compare; name one of auto, order"):
        CompareRequest(align="keys")  # type: ignore[arg-type]


def test_a_rule_for_names() -> None:
    """What follows the first equals sign is the name."""
    assert parse_rename("--rename", r"(.*)=eu.\1") == ("(.*)", r"eu.\1")
