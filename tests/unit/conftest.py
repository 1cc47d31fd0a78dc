"""Fixtures of several unit tests."""

import textwrap
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from relay_pipelines.settings import Mirror, load
from tests.support.config_files import changed
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
    """What people read, word for word."""
    updates = request.config.getoption("update_wordings")
    kept = Wordings(Path(__file__).parent / "wordings.txt", updates=updates)
    yield kept
    kept.close()


@pytest.fixture
def instance() -> Iterator[Any]:
    """A Dagster instance in memory."""
    from dagster import DagsterInstance

    with DagsterInstance.ephemeral() as found:
        yield found
