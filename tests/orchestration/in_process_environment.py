"""A relay.yaml, a Dagster instance and its definitions: ticks and runs in this process."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import dagster as dg
import yaml
from dagster import DagsterEventType, DagsterInstance, SensorResult

from relay_pipelines.definitions import build
from relay_pipelines.local_kafka import LocalCluster
from relay_pipelines.model import TopicPartition
from relay_pipelines.orchestration import naming, window_log
from relay_pipelines.orchestration.lane import Lane, lanes_of
from relay_pipelines.orchestration.topic_catalog import Catalog
from relay_pipelines.plan.frozen_window import WindowLimits
from relay_pipelines.resources import KafkaResource, SparkResource, kafka_key, spark_key
from relay_pipelines.settings import load
from relay_pipelines.windows import run_snapshot
from relay_pipelines.windows.cut import new_windows
from tests.support import independent
from tests.support.commands import at
from tests.support.independent import Record


class SharedSpark(SparkResource):
    """The Spark session of the test run, which outlives the Dagster run."""

    @property
    def spark_session(self) -> Any:
        """The session; another one if the last one has ended."""
        return _shared["session"]()

    def teardown_after_execution(self, context: Any) -> None:
        """Keep the session for other tests."""


_shared: dict[str, Any] = {}


@dataclass
class InProcessEnvironment:
    """One mirror between the two clusters of the test run, without any Dagster process.

    A test evaluates sensors and executes jobs itself, one after the other, so that it knows what
    has happened when it looks. What only processes show, such as a daemon that is killed, needs
    `DevEnvironment`, which starts a `dagster dev` and waits for what it does by itself.

    Args:
        folder: the folder of relay.yaml.
        name: the name of the mirror.
        location: definitions that a code location loaded earlier and whose planners still run. Runs
            load relay.yaml again, as run processes do.
    """

    folder: Path
    name: str
    source: LocalCluster
    destination: LocalCluster
    instance: DagsterInstance
    location: dg.Definitions | None = None

    @property
    def config(self) -> Path:
        """Path of relay.yaml."""
        return self.folder / "relay.yaml"

    def write(self, allow: Sequence[str], *, sync_configs: bool = False, **mirror: Any) -> None:
        """Write relay.yaml; `mirror` gives further keys of the mirror."""
        window = {"every": "10ms", "session": 0} | mirror.pop("window", {})
        source = self.source.cluster().bootstrap_servers[0]
        self.replace_config(
            yaml.safe_dump(
                {
                    "mirrors": {
                        self.name: {
                            "source": mirror.pop(
                                "source", {"nodes": [{"name": "a", "bootstrap_servers": source}]}
                            ),
                            "destination": mirror.pop(
                                "destination", at(self.destination.cluster())
                            ),
                            "topics": {
                                "allow": list(allow),
                                "rename": mirror.pop("rename", f"{self.name}.{{topic}}"),
                                "sync_configs": sync_configs,
                            },
                            "window": window,
                            **mirror,
                        }
                    }
                }
            )
        )

    def replace_config(self, text: str) -> None:
        """Write relay.yaml at once, so that no session reads half of it."""
        written = self.folder / "relay.yaml.new"
        written.write_text(text)
        written.replace(self.config)

    @property
    def lanes(self) -> list[Lane]:
        """The lanes of the mirror as they would be loaded now."""
        settings = load(self.config)
        return lanes_of(
            self.name,
            settings.mirror(self.name),
            Catalog.beside(self.config).known(self.name, settings.mirror(self.name)),
        )

    @property
    def definitions(self) -> dg.Definitions:
        """The definitions as they would be loaded now."""
        return build(self.config)

    @property
    def resources(self) -> dict[str, Any]:
        """The resources of the definitions, with the Spark session of the test run."""
        kafka = KafkaResource(config_path=str(self.config.absolute()))
        return {kafka_key(): kafka, spark_key(): SharedSpark(kafka=kafka)}

    def fill(self, topic: str, values: Sequence[str], partition: int = 0) -> None:
        """Write records to the source."""
        independent.write(
            self.source.cluster(),
            TopicPartition(topic, partition),
            [Record(None, value.encode()) for value in values],
        )

    def read(self, topic: str, partition: int = 0) -> list[str]:
        """Read the copy as an independent read_committed consumer."""
        found = independent.records_of(
            self.destination.cluster(), TopicPartition(f"{self.name}.{topic}", partition)
        )
        return [(record.value or b"").decode() for record in found]

    def tick(self, cursor: str | None = None) -> SensorResult:
        """Evaluate the planner and report its events as a daemon does, but launch no runs."""
        name = naming.planner(self.name)
        sensor = (self.location or self.definitions).get_repository_def().get_sensor_def(name)
        context = dg.build_sensor_context(
            instance=self.instance,
            cursor=cursor,
            resources={kafka_key(): self.resources[kafka_key()]},
        )
        result = sensor(context)
        if isinstance(result, dg.SkipReason):
            return SensorResult(skip_reason=result)
        assert isinstance(result, SensorResult)
        for event in result.asset_events:
            self.instance.report_runless_asset_event(event)
        return result

    def health(self, cursor: str | None = None) -> SensorResult:
        """Evaluate the health sensor."""
        sensor = self.definitions.get_repository_def().get_sensor_def(
            f"health_{naming.group(self.name)}"
        )
        context = dg.build_sensor_context(
            instance=self.instance,
            cursor=cursor,
            resources={kafka_key(): self.resources[kafka_key()]},
        )
        result = sensor(context)
        assert isinstance(result, SensorResult)
        return result

    def check(self, asset: dg.AssetKey, name: str) -> dg.AssetCheckEvaluation:
        """Run one check as from the UI."""
        wanted = dg.AssetSelection.checks(dg.AssetCheckKey(asset, name))
        job = dg.define_asset_job("one_check", selection=wanted)
        definitions = dg.Definitions.merge(self.definitions, dg.Definitions(jobs=[job]))
        result = definitions.resolve_job_def("one_check").execute_in_process(
            instance=self.instance, resources=self.resources
        )
        (evaluation,) = result.get_asset_check_evaluations()
        return evaluation

    def last_check(self, name: str) -> dg.AssetCheckEvaluation:
        """The latest evaluation of a check of the lane `main`."""
        key = dg.AssetCheckKey(naming.windows_asset(self.name, "main"), name)
        storage = self.instance.event_log_storage
        (record,) = storage.get_asset_check_execution_history(key, limit=1)
        assert record.event is not None
        assert record.event.dagster_event is not None
        return record.event.dagster_event.asset_check_evaluation_data

    def stored(self, name: str, *, passed: bool) -> list[dg.AssetCheckEvaluation]:
        """All stored evaluations of a check of the lane `main`, or of its topics, with a result."""
        (lane,) = self.lanes
        topics = [naming.mirrored_asset(lane.path, topic) for topic in lane.topics]
        storage = self.instance.event_log_storage
        found = [
            record.evaluation
            for asset in [lane.windows_asset, *topics]
            for record in storage.get_asset_check_execution_history(
                dg.AssetCheckKey(asset, name), limit=100
            )
        ]
        return [each for each in found if each is not None and each.passed == passed]

    def copy(
        self, lane: int = 0, tags: Mapping[str, str] | None = None
    ) -> dg.ExecuteInProcessResult:
        """Run the job of a lane, as the planner would have it."""
        return self.job(naming.lane_job(self.name, self.lanes[lane].name), tags=tags)

    def windows(self, topic: str | None = None) -> list[str]:
        """The windows of the lane `main`, or those of a topic."""
        name = (
            naming.windows_name(self.name, topic)
            if topic
            else naming.plans_name(self.name, naming.MAIN)
        )
        return sorted(self.instance.get_dynamic_partitions(name))

    def ranges(self, topic: str, partition: int = 0) -> list[tuple[int, int]]:
        """The source offsets of a topic-partition in the windows of the lane `main`, in order."""
        (lane,) = self.lanes
        plans = [window_log.find(self.instance, lane, key, ()) for key in self.windows()]
        return sorted(
            (each.start, each.end)
            for plan in plans
            if plan
            for each in plan.ranges
            if each.topic_partition == TopicPartition(topic, partition)
        )

    def freeze(self, max_records: int = 2**62) -> list[str]:
        """Freeze windows of all that is new and copy none, like runs that are killed."""
        (lane,) = self.lanes
        kafka = self.resources[kafka_key()]
        log = logging.getLogger(__name__)
        snapshot = run_snapshot.prepare(kafka, self.name, lane.belongs, log)
        now_ms = kafka.clock.now_ms()
        limits = WindowLimits(max_records, 2**62)
        for frozen in new_windows(snapshot, limits, now_ms):
            keyed = window_log.with_own_key(self.instance, lane, frozen)
            for batch in window_log.freeze(self.instance, lane, keyed, snapshot.destination):
                for event in batch:
                    self.instance.report_runless_asset_event(event)
        return self.windows()

    def is_retried(self, result: dg.ExecuteInProcessResult) -> bool:
        """Whether Dagster retries this failed run."""
        run = self.instance.get_run_by_id(result.run_id)
        assert run is not None
        return run.tags.get(naming.TAG_MAX_RETRIES) != "0"

    def materialize(
        self, topic: str, key: str | None, tags: dict[str, str] | None = None
    ) -> dg.ExecuteInProcessResult:
        """Materialise a window of a topic, as from the UI."""
        return dg.materialize(
            list(self.definitions.assets or []),
            selection=dg.AssetSelection.assets(naming.mirrored_asset(self.name, topic)),
            partition_key=key,
            instance=self.instance,
            resources=self.resources,
            tags=tags,
            raise_on_error=False,
        )

    def job(
        self,
        name: str,
        config: dict[str, Any] | None = None,
        tags: Mapping[str, str] | None = None,
    ) -> dg.ExecuteInProcessResult:
        """Run one of the jobs in this process."""
        job = self.definitions.get_repository_def().get_job(name)
        op = next(iter(job.graph.node_dict))
        run_config = {"ops": {op: {"config": config}}} if config else {}
        return job.execute_in_process(
            run_config=run_config,
            tags=dict(tags or {}),
            instance=self.instance,
            resources=self.resources,
            raise_on_error=False,
        )


def failure(result: dg.ExecuteInProcessResult) -> str:
    """The error message of a failed run."""
    events = [
        event for event in result.all_events if event.event_type is DagsterEventType.STEP_FAILURE
    ]
    data = events[0].step_failure_data
    return str(data.user_failure_data.description if data.user_failure_data else data.error)


def checks(result: dg.ExecuteInProcessResult) -> dict[str, dg.AssetCheckEvaluation]:
    """The count checks of a run by topic."""
    return {
        evaluation.asset_key.path[-1]: evaluation
        for evaluation in result.get_asset_check_evaluations()
        if evaluation.check_name == naming.MESSAGE_COUNTS
    }


def evaluations(result: SensorResult, check: str) -> list[dg.AssetCheckEvaluation]:
    """The evaluations of one check."""
    return [
        event
        for event in result.asset_events
        if isinstance(event, dg.AssetCheckEvaluation) and event.check_name == check
    ]


@contextmanager
def shared(session: Callable[[], Any]) -> Iterator[None]:
    """Let runs use the Spark session that this returns."""
    _shared["session"] = session
    yield
    _shared.clear()
