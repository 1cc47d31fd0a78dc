"""What is wrong at the end of a soak: with the copies, the ledger, or what Dagster left."""

from collections.abc import Callable, Collection, Sequence
from contextlib import suppress

from relay_pipelines.ledger import checkpoint, ledger_topic
from relay_pipelines.local_kafka import LocalCluster
from tests.chaos import compare
from tests.orchestration.soak.sampling import Deployment
from tests.orchestration.soak.topics import SoakTopic
from tests.support.independent import records_of, until


def complaints(
    mirror: str,
    topics: Collection[SoakTopic],
    source: LocalCluster,
    destination: LocalCluster,
    deployments: Sequence[Deployment],
) -> list[str]:
    """What is wrong; empty if nothing is."""
    checks: list[Callable[[], object]] = [
        *(topic.assert_equal for topic in topics),
        lambda: _assert_ledger_covers(mirror, topics, source, destination),
    ]
    found = []
    for check in checks:
        try:
            check()
        except Exception as error:  # noqa: BLE001 - the report says it
            found.append(f"{type(error).__name__}: {str(error).partition(chr(10))[0]}")
    copies = [topic.copy_name for topic in topics]
    found += compare.held_back(destination, [*copies, checkpoint.TOPIC, ledger_topic.TOPIC])
    for deployment in deployments:
        with suppress(AssertionError):
            until(lambda: not list(deployment.processes()), "the end of all processes", 20.0, 1.0)  # noqa: B023 - it is called at once
        found += [f"{role} is left: {process}" for role, process in deployment.processes()]
    return found


def _assert_ledger_covers(
    mirror: str, topics: Collection[SoakTopic], source: LocalCluster, destination: LocalCluster
) -> None:
    counts = {
        (at.topic, at.partition): [*map(len, logs), len(records_of(source.cluster(), at))]
        for topic in topics
        for at, logs in zip(topic.originals, topic.logs, strict=True)
    }
    ends = compare.ends(source, list(counts))
    compare.assert_ledger_covers_logs(destination, mirror, ends, counts)
