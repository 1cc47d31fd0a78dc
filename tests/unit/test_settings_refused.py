"""relay.yaml: what is refused (refused.yaml has the cases), and in which words (wordings.txt)."""

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.support.config_files import changed, refusal
from tests.support.wordings import Wordings

SHARED, *REFUSED = yaml.safe_load(Path(__file__).with_name("refused.yaml").read_text()).items()


@pytest.mark.parametrize(
    ("title", "changes"),
    [(f"{of}: {title}", each) for of, some in REFUSED for title, each in some.items()],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_is_refused_in_one_line(
    write_config: Callable[[str], Path], wordings: Wordings, title: str, changes: dict[str, Any]
) -> None:
    """It begins with the place of the mistake."""
    path = write_config(changed(changes))
    said = refusal(path).removeprefix(f"{path}: ")
    assert re.match(r"[^ :]+: [^\n]+$", said)
    wordings.check(title, said)
