"""Fixtures for all tests: two real Kafka clusters, a Spark session and a unique topic name."""

import os
import re
import signal
import uuid
from collections import Counter
from collections.abc import Iterator
from hashlib import sha256
from pathlib import Path
from typing import Any

import pytest
from pyspark import SparkContext

from relay_pipelines import redaction
from relay_pipelines.local_kafka import LocalCluster
from relay_pipelines.protocol import idle_connections
from relay_pipelines.spark.session import connect, end
from tests.support import wheel
from tests.support.old_kafka import OldKafka
from tests.support.trap import Trap

_TESTS = Path(__file__).parent
_QUICK_ROOMS = ("contract", "property", "unit")
_FIRST = ("test_tampering.py", "test_versions.py", "test_time.py", "test_task_python.py")
"""Files that wait for minutes: last in a run, a worker would be alone with one of them."""

_LONG_MINUTES = 3.0
"""What a test that is marked `long` takes, unless its marker says it."""


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add options: an older Kafka, which `make versions` uses, and to keep new wordings."""
    parser.addoption(
        "--update-wordings",
        action="store_true",
        help="write down what the tests of settings see, instead of comparing; without xdist",
    )
    parser.addoption(
        "--for-minutes",
        type=float,
        help="of long tests, run as many as two workers can in this time; --seed chooses which",
    )
    parser.addoption("--seed", default="", help="chooses long tests, see --for-minutes")
    for side in ("source", "destination"):
        parser.addoption(
            f"--{side}-kafka",
            metavar="VERSION",
            help=f"version of the {side}'s broker, from 2.4.1 to 3.9.x",
        )


@pytest.hookimpl(tryfirst=True)  # before pytest selects by markers
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Let `make test` run what needs few processes; journeys through the product are marked."""
    for item in items:
        if item.path.relative_to(_TESTS).parts[0] in _QUICK_ROOMS:
            item.add_marker(pytest.mark.quick)
    items.sort(key=lambda item: item.path.name not in _FIRST)
    if config.option.for_minutes:
        items[:] = _chosen(items, config.option.for_minutes, config.option.seed)


def _chosen(items: list[pytest.Item], minutes: float, seed: str) -> list[pytest.Item]:
    """Return long tests that fit into the time, in their order; another seed returns others.

    Two workers share them file by file: the last file to end begins, at the latest, when each
    worker has had half of the others. What is `together` shares a set-up that takes its time.
    """
    together: dict[str, list[pytest.Item]] = {}
    for item in items:
        long = item.get_closest_marker("long")
        if long is not None and not long.kwargs.get("downloads"):
            together.setdefault(long.kwargs.get("together", item.nodeid), []).append(item)
    chosen: set[pytest.Item] = set()
    by_file: Counter[Path] = Counter()
    for name in sorted(together, key=lambda each: sha256(f"{seed}{each}".encode()).digest()):
        some = together[name]
        taken = by_file + Counter({some[0].path: max(map(_minutes, some))})
        if (taken.total() + max(taken.values())) / 2 <= minutes:
            by_file, chosen = taken, chosen.union(some)
    return [item for item in items if item in chosen]


def _minutes(item: pytest.Item) -> float:
    long = item.get_closest_marker("long")
    return float(long.kwargs.get("minutes", _LONG_MINUTES)) if long else 0.0


def pytest_report_header(config: pytest.Config) -> str:
    """Say how to run the same long tests again."""
    seed = config.option.seed
    return f"long tests of the seed {seed}; again: make long-part SEED={seed}" if seed else ""


def pytest_configure() -> None:
    """Let tests not depend on the width of the terminal, or on who has started them."""
    os.environ.pop("COLUMNS", None)
    # a shell lets what runs in its background ignore SIGINT, and all processes would inherit that:
    # `dagster dev` would have to be killed, after 20 s
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.fixture(autouse=True)
def no_connections_left() -> Iterator[None]:
    """Leave no connections to the next test: it may count its own, or change who may connect."""
    yield
    idle_connections.close_all()


@pytest.fixture(autouse=True)
def no_secrets_left() -> Iterator[None]:
    """Hide nothing from the next test that only this one calls a secret, such as a word."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(redaction, "_values", set(redaction._values))
        patch.setattr(redaction, "_pattern", redaction._pattern)
        yield


@pytest.fixture(autouse=True)
def same_environment() -> Iterator[None]:
    """Fail a test that leaves variables to the tests after it, and to the processes they start."""
    before = _environment()
    yield
    after = _environment()
    assert dict(before.items() ^ after.items()) == {}


@pytest.fixture(scope="session")
def source_cluster(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[LocalCluster]:
    """One broker to copy from, shared by all tests.

    A test that stops brokers starts its own; so does one that changes settings and leaves them so.
    """
    yield from _cluster("source", request, tmp_path_factory)


@pytest.fixture(scope="session")
def destination_cluster(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[LocalCluster]:
    """One broker to copy to, shared by all tests, as the source."""
    yield from _cluster("destination", request, tmp_path_factory)


@pytest.fixture
def topic_name(request: pytest.FixtureRequest) -> str:
    """A unique topic name that contains the name of the test."""
    return (
        f"{re.sub(r'[^a-zA-Z0-9]+', '-', request.node.name).strip('-')[:60]}-{uuid.uuid4().hex[:8]}"
    )


def _environment() -> dict[str, str]:
    """Return the variables that only a test can change."""
    ours = (
        "PYSPARK_PYTHON",
        "PYTEST_CURRENT_TEST",
        "SPARK_AUTH_SOCKET_TIMEOUT",
        "SPARK_BUFFER_SIZE",
    )
    return {name: value for name, value in os.environ.items() if name not in ours}


def _cluster(
    name: str, request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[LocalCluster]:
    folder = tmp_path_factory.mktemp(name)
    version = request.config.getoption(f"{name}_kafka")
    cluster: Any = OldKafka(version, folder) if version else LocalCluster(name, folder=folder)
    cluster.start()
    yield cluster
    # data and logs of a run that failed stay for whoever wants to know why
    if request.session.testsfailed:
        cluster.close()
    else:
        cluster.discard()


@pytest.fixture(scope="session")
def local_trap(tmp_path_factory: pytest.TempPathFactory) -> Trap:
    """The trap of the Spark session in this process."""
    return Trap.unset(tmp_path_factory.mktemp("local"))


class LocalSpark:
    """The Spark sessions of this process, all in one JVM: it has the environment of the first."""

    def __init__(self, fault: str) -> None:
        self._fault = fault
        self._session: Any = None

    def session(self) -> Any:
        """Return the session; a new one if a test has ended the last one, as `relay run` does."""
        if self._session is None or self._session.sparkContext._jsc is None:
            with pytest.MonkeyPatch.context() as patch:
                patch.setenv("RELAY_FAULT", self._fault)
                self._session = connect("local[2]")
        return self._session

    def close(self) -> None:
        """End the session and wait for its JVM, which ends when its input does."""
        if self._session is None:
            return
        gateway = SparkContext._gateway
        end(self._session)
        gateway.shutdown()
        gateway.proc.stdin.close()
        gateway.proc.wait(30)


@pytest.fixture(scope="session")
def local_spark(local_trap: Trap) -> Iterator[LocalSpark]:
    """The Spark sessions of this process."""
    spark = LocalSpark(local_trap.fault)
    yield spark
    spark.close()


@pytest.fixture
def local_session(local_spark: LocalSpark) -> Any:
    """A Spark session in this process, shared by all tests: a process can hold only one."""
    return local_spark.session()


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The package as installed from a wheel, without a checkout."""
    return wheel.unpacked(tmp_path_factory.mktemp("wheel"))
