"""Very many topics: ticks of all their planners, one run for all of them, and the pages."""

from __future__ import annotations

import itertools
from collections.abc import Callable

from confluent_kafka import Producer

from benchmarks.orchestration.environment import Environment, dagster_variables, mirrored
from benchmarks.orchestration.figures import Wide, middle, spent
from relay_pipelines.demo.dagster import running
from tests.orchestration import graphql
from tests.support.independent import client

_REPEATED = 5
_IN_VIEW = 100
_ALL = "{ assetNodes { assetKey { path } groupName dependencyKeys { path } } }"


def measure(environment: Environment, progress: Callable[[str], None]) -> Wide:
    """Copy one record of each topic-partition in one run, then measure ticks and pages."""
    sender = Producer(client(environment.source))
    for topic, partition in itertools.product(environment.topics, range(environment.partitions)):
        sender.produce(topic, b"a record", partition=partition)
        sender.poll(0)
    sender.flush(60)
    tick = environment.ticker().tick
    first = spent(tick)
    progress(f"{len(environment.topics)} topics: ticks {first.seconds:.2f} s")
    run = environment.run("mirror_once")
    progress(f"the run: {run.seconds:.1f} s")
    tick()  # reports what the run has changed
    ticks = [spent(tick) for _ in range(_REPEATED)]
    with running(environment.folder, environment=dagster_variables(environment.folder)) as dagster:
        dagster.sensors()
        in_view = [mirrored(topic).path for topic in environment.topics[:_IN_VIEW]]

        def graph() -> None:
            assert len(dagster.ask(_ALL)["assetNodes"]) > len(environment.topics)
            assert all(state for state, _ in graphql.graph(dagster, in_view).values())

        graphs = [spent(graph) for _ in range(_REPEATED)]
        key = mirrored(environment.topics[0]).path
        topics = [spent(lambda: graphql.partitions(dagster, key)) for _ in range(_REPEATED)]
    found = Wide(
        topics=len(environment.topics),
        lanes=len(environment.lanes),
        first_ticks=first,
        ticks=middle(ticks),
        run=run,
        graph_seconds=(graphs[0].seconds, middle(graphs[1:]).seconds),
        topic_seconds=(topics[0].seconds, middle(topics[1:]).seconds),
    )
    progress(str(found))
    return found
