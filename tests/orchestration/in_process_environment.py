"""A relay.yaml, a Dagster instance and its definitions: ticks and runs in this process."""

import datetime as dt
import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import dagster as dg
import yaml
from confluent_kafka.admin import ResourceType
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
from tests.support import commands, independent
from tests.support.commands import at
from tests.support.independent import Record

Result = dg.ExecuteInProcessResult
Evaluation = dg.AssetCheckEvaluation


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
        return self.folder / "relay.yaml"

    def write(
        self,
        topics: Sequence[str] = (),
        *,
        pattern: str | None = None,
        sync_configs: bool = False,
        **mirror: Any,
    ) -> None:
        """Write relay.yaml for topics, or a pattern; `mirror` gives further keys of the mirror."""
        names = [topic.replace(".", r"\.") for topic in topics]
        allow = names if pattern is None else [pattern]
        rename = mirror.pop("rename", f"{self.name}.{{topic}}")
        written = {
            "source": self.upstreams(),
            "destination": at(self.destination.cluster()),
            "topics": {"allow": allow, "rename": rename, "sync_configs": sync_configs},
            **mirror,
            "window": {"every": "10ms", "session": 0} | mirror.get("window", {}),
        }
        self.replace_config(yaml.safe_dump({"mirrors": {self.name: written}}))

    def upstreams(self, **servers: str) -> dict[str, Any]:
        """The section of the source: by name, the upstreams' servers; only `a` if none is given."""
        servers = servers or {"a": self.source.bootstrap_servers[0]}
        return {
            "upstreams": [
                {"name": name, "bootstrap_servers": server} for name, server in servers.items()
            ]
        }

    def replace_config(self, text: str) -> None:
        commands.replace(self.config, text)

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
        return build(self.config)

    @property
    def resources(self) -> dict[str, Any]:
        """The resources of the definitions, with the Spark session of the test run."""
        kafka = KafkaResource(config_path=str(self.config.absolute()))
        return {kafka_key(): kafka, spark_key(): SharedSpark(kafka=kafka)}

    def fill(self, topic: str, values: Sequence[str], partition: int = 0) -> None:
        independent.write(
            self.source.cluster(),
            TopicPartition(topic, partition),
            [Record(None, value.encode()) for value in values],
        )

    def copy_of(self, topic: str, partition: int = 0) -> TopicPartition:
        return TopicPartition(f"{self.name}.{topic}", partition)

    def read(self, topic: str, partition: int = 0) -> list[str]:
        """Read the copy as an independent read_committed consumer."""
        found = independent.records_of(self.destination.cluster(), self.copy_of(topic, partition))
        return [(record.value or b"").decode() for record in found]

    def recreate(self, topic: str) -> None:
        """Delete a topic of the source, and create it again."""
        independent.delete(self.source.cluster(), topic)
        independent.create(self.source.cluster(), topic, 2, {"retention.ms": "-1"})

    def delete_copy(self, topic: str) -> None:
        independent.delete(self.destination.cluster(), self.copy_of(topic).topic)

    def refuse_large(self, topic: str) -> None:
        """Create the topic of the copies so that it takes no record of 1,000 bytes."""
        copy = self.copy_of(topic).topic
        independent.create(self.destination.cluster(), copy, 2, {"max.message.bytes": "500"})

    def take_large(self, topic: str) -> None:
        copy, kind = self.copy_of(topic).topic, ResourceType.TOPIC
        independent.configure(self.destination.cluster(), kind, copy, max_message_bytes=5000)

    def tick(self, cursor: str | None = None) -> SensorResult:
        """Evaluate the planner and report its events as a daemon does, but launch no runs."""
        result = self._evaluated(self.location, naming.planner(self.name), cursor)
        for event in result.asset_events:
            self.instance.report_runless_asset_event(event)
        return result

    def health(self, cursor: str | None = None) -> SensorResult:
        return self._evaluated(None, f"health_{naming.group(self.name)}", cursor)

    def _evaluated(
        self, loaded: dg.Definitions | None, name: str, cursor: str | None
    ) -> SensorResult:
        sensor = (loaded or self.definitions).get_repository_def().get_sensor_def(name)
        kafka = {kafka_key(): self.resources[kafka_key()]}
        result = sensor(dg.build_sensor_context(self.instance, cursor, resources=kafka))
        if isinstance(result, dg.SkipReason):
            return SensorResult(skip_reason=result)
        assert isinstance(result, SensorResult)
        return result

    def check(self, asset: dg.AssetKey, name: str) -> Evaluation:
        """Run one check as from the UI."""
        result = self.check_all(dg.AssetCheckKey(asset, name))
        (evaluation,) = result.get_asset_check_evaluations()
        return evaluation

    def check_all(self, *keys: dg.AssetCheckKey) -> Result:
        """Run some checks, as their button in the UI does."""
        job = dg.define_asset_job("some_checks", selection=dg.AssetSelection.checks(*keys))
        definitions = dg.Definitions.merge(self.definitions, dg.Definitions(jobs=[job]))
        return definitions.resolve_job_def("some_checks").execute_in_process(
            instance=self.instance, resources=self.resources
        )

    def schedule(self, name: str, now: dt.datetime) -> Result:
        """Evaluate a schedule, and run what it requests."""
        schedule = self.definitions.get_repository_def().get_schedule_def(name)
        context = dg.build_schedule_context(self.instance, scheduled_execution_time=now)
        (request,) = schedule.evaluate_tick(context).run_requests or ()
        ((_, config),) = request.run_config["ops"].items()
        return self.job(schedule.job_name, config["config"])

    @property
    def plan(self) -> dg.AssetKey:
        """The asset of the lane `main`."""
        return naming.windows_asset(self.name, naming.MAIN)

    def asset(self, topic: str) -> dg.AssetKey:
        return naming.mirrored_asset(self.name, topic)

    def last_check(self, name: str, topic: str | None = None) -> Evaluation:
        """The latest evaluation of a check of a topic, or of the lane `main`."""
        found = self.last_checks(name, topic)
        assert found, f"{name} was never evaluated"
        return found[0]

    def last_checks(self, name: str, topic: str | None = None, limit: int = 1) -> list[Evaluation]:
        """The same, and those before, the newest first."""
        asset = self.asset(topic) if topic else self.plan
        return self.history(dg.AssetCheckKey(asset, name), limit)

    def history(self, key: dg.AssetCheckKey, limit: int = 1) -> list[Evaluation]:
        storage = self.instance.event_log_storage
        records = storage.get_asset_check_execution_history(key, limit=limit)
        return [record.evaluation for record in records if record.evaluation is not None]

    def run(
        self,
        lane: int = 0,
        tags: Mapping[str, str] | None = None,
        told: dict[str, Any] | None = None,
    ) -> Result:
        """Run the job of a lane, as the planner would have it."""
        return self.job(naming.lane_job(self.name, self.lanes[lane].name), told, tags)

    def launch(self, request: dg.RunRequest) -> Result:
        """Run what a planner has requested."""
        (op,) = request.run_config["ops"].values()
        return self.job(str(request.job_name), op["config"], request.tags)

    def copy(self, lane: int = 0, tags: Mapping[str, str] | None = None) -> Result:
        """The same; it must succeed."""
        return succeeded(self.run(lane, tags))

    def log(self, run_id: str) -> list[str]:
        """What a run has logged, without Dagster's events."""
        entries = self.instance.all_logs(run_id)
        return [entry.user_message for entry in entries if entry.dagster_event is None]

    def tags(self, run: Result) -> Mapping[str, str]:
        found = self.instance.get_run_by_id(run.run_id)
        assert found is not None
        return found.tags

    def materialized(self, topic: str) -> set[str]:
        """The windows of a topic that are shown as copied."""
        return self.instance.get_materialized_partitions(self.asset(topic))

    @contextmanager
    def other_deployment(self) -> Iterator["InProcessEnvironment"]:
        """Another Dagster, with a relay.yaml of its own, that copies the same mirror."""
        folder = self.folder / "other"
        (folder / "dagster").mkdir(parents=True)
        with DagsterInstance.local_temp(str(folder / "dagster")) as instance:
            yield replace(self, folder=folder, instance=instance)

    def windows(self, topic: str | None = None) -> list[str]:
        """The windows of the lane `main`, or those of a topic."""
        name = (
            naming.windows_name(self.name, topic)
            if topic
            else naming.plans_name(self.name, naming.MAIN)
        )
        return sorted(self.instance.get_dynamic_partitions(name))

    def ranges(
        self, topic: str, partition: int = 0, windows: Sequence[str] | None = None
    ) -> list[tuple[int, int]]:
        """The source offsets of a topic-partition in windows, or in all of the lane `main`."""
        (lane,) = self.lanes
        keys = self.windows() if windows is None else windows
        plans = [window_log.find(self.instance, lane, key, (topic,)) for key in keys]
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

    def is_retried(self, result: Result) -> bool:
        """Whether Dagster retries this failed run."""
        return self.tags(result).get(naming.TAG_MAX_RETRIES) != "0"

    def materialize(
        self, topic: str, key: str | None, tags: dict[str, str] | None = None
    ) -> Result:
        """Materialise a window of a topic, as from the UI."""
        assets: list[Any] = [*(self.definitions.assets or [])]
        return dg.materialize(
            assets,
            selection=dg.AssetSelection.assets(naming.mirrored_asset(self.name, topic)),
            partition_key=key,
            instance=self.instance,
            resources=self.resources,
            tags=tags,
            raise_on_error=False,
        )

    def job(
        self, name: str, config: dict[str, Any] | None = None, tags: Mapping[str, str] | None = None
    ) -> Result:
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


def failure(result: Result) -> str:
    events = [
        event for event in result.all_events if event.event_type is DagsterEventType.STEP_FAILURE
    ]
    data = events[0].step_failure_data
    return str(data.user_failure_data.description if data.user_failure_data else data.error)


def succeeded(result: Result) -> Result:
    assert result.success, failure(result)
    return result


def checks(result: Result, name: str = naming.MESSAGE_COUNTS) -> dict[str, Evaluation]:
    """The count checks of a run by topic, or others."""
    return {
        evaluation.asset_key.path[-1]: evaluation
        for evaluation in result.get_asset_check_evaluations()
        if evaluation.check_name == name
    }


def passed(result: Result, name: str = naming.MESSAGE_COUNTS) -> dict[str, bool]:
    return {topic: found.passed for topic, found in checks(result, name).items()}


def metadata(event: Evaluation | dg.AssetMaterialization) -> dict[str, Any]:
    return {name: value.value for name, value in event.metadata.items()}


def step_metadata(result: Result) -> dict[str, Any]:
    """The metadata of the only materialisation of a job's step."""
    (event,) = (event for event in result.all_events if event.is_step_materialization)
    return metadata(event.step_materialization_data.materialization)


def line_of(result: SensorResult) -> str:
    assert not result.run_requests
    assert result.skip_reason is not None
    return str(result.skip_reason.skip_message)


def evaluations(result: SensorResult, check: str) -> list[Evaluation]:
    return [
        event
        for event in result.asset_events
        if isinstance(event, Evaluation) and event.check_name == check
    ]


def by_topic(result: SensorResult, check: str) -> dict[str, Evaluation]:
    return {each.asset_key.path[-1]: each for each in evaluations(result, check)}


@contextmanager
def shared(session: Callable[[], Any]) -> Iterator[None]:
    """Let runs use the Spark session that this returns."""
    _shared["session"] = session
    yield
    _shared.clear()
