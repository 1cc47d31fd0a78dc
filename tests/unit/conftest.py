"""Fixtures of several unit tests."""

from __future__ import annotations

import textwrap
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from relay_pipelines.settings import Mirror, load
from tests.support.config_files import changed, refusal
from tests.support.wordings import Wordings


@pytest.fixture
def write_config(tmp_path: Path) -> Callable[[str], Path]:
    """Write a relay.yaml and return its path."""

    def write(text: str) -> Path:
        path = tmp_path / "relay.yaml"
        path.write_text(textwrap.dedent(text))
        return path

    return write


@pytest.fixture
def load_mirror(write_config: Callable[[str], Path]) -> Callable[..., Mirror]:
    """Load the mirror of the minimal relay.yaml with changes, in an environment."""

    def load_changed(changes: dict[str, Any], environment: dict[str, str] | None = None) -> Mirror:
        return load(write_config(changed(changes)), environment or {}).mirror("orders")

    return load_changed


@pytest.fixture(scope="session")
def wordings(request: pytest.FixtureRequest) -> Iterator[Wordings]:
    """How relay.yaml is refused, word for word."""
    updates = request.config.getoption("update_wordings")
    kept = Wordings(Path(__file__).parent / "settings_wordings.txt", updates=updates)
    yield kept
    kept.close()


@pytest.fixture
def assert_said(request: pytest.FixtureRequest, wordings: Wordings) -> Callable[[str], None]:
    """Assert that a test case says what is kept of it."""
    module = request.path.stem.removeprefix("test_settings_")
    return lambda said: wordings.check(f"{module}: {request.node.callspec.id}", said)


@pytest.fixture
def assert_refused(
    write_config: Callable[[str], Path], assert_said: Callable[[str], None]
) -> Callable[[dict[str, Any], str], None]:
    """Assert that a changed relay.yaml is refused in one line, which begins with the place."""

    def check(changes: dict[str, Any], place: str) -> None:
        path = write_config(changed(changes))
        said = refusal(path).removeprefix(f"{path}: ")
        assert said.partition(": ")[0] == place
        assert "\n" not in said
        assert_said(said)

    return check
