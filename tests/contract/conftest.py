"""Brokers with odd answers, which end with the test."""

from collections.abc import Iterator
from contextlib import ExitStack
from typing import Any

import pytest

from tests.contract.fake_broker import AT, Answer, FakeBroker, Start, script


@pytest.fixture
def start() -> Iterator[Start]:
    """Starts a broker that gives these answers to fetches."""
    with ExitStack() as running:

        def begin(*answers: Answer, **more: Any) -> FakeBroker:
            return running.enter_context(FakeBroker(AT, script(*answers), **more))

        yield begin
