"""The Dagster definitions of a relay.yaml: all names, without connecting to a cluster."""

import gc
import json
import re
import socket
from collections import defaultdict
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from unittest.mock import Mock

import alembic.util
import dagster as dg
import pytest
import yaml
from dagster._core.errors import SensorExecutionError, user_code_error_boundary

from relay_pipelines.cli import main
from relay_pipelines.definitions import build
from relay_pipelines.errors import ConfigError
from relay_pipelines.resources import KafkaResource, kafka_key
from relay_pipelines.sensors.tick_ends import TickError
from tests.support.tables import titled

# RFC 5737: nothing has these addresses, so connecting to them would take until the timeout
SAMPLE = r"""
mirrors:
  to-eu:
    source:
      health: {request_timeout: 100ms}
      upstreams:
        - {name: a, bootstrap_servers: ["192.0.2.1:9092"]}
        - {name: b-2, bootstrap_servers: ["192.0.2.2:9092"]}
    destination: {bootstrap_servers: ["192.0.2.3:9092"]}
    topics:
      allow: ['shop\.orders', shop-orders, 'big\..*', payments]
      rename: "eu.{topic}"
    owners: [team:data-eng, someone@example.com]
    lanes:
      big: {topics: ['big\..*'], window: {every: 1m}}
      idle: {topics: ['idle.*']}
  logs:
    source:
      health: {request_timeout: 100ms}
      upstreams: [{name: only, bootstrap_servers: ["192.0.2.4:9092"]}]
    destination: {bootstrap_servers: ["192.0.2.3:9092"]}
    topics: {allow: ["logs_.*"]}
"""
SEEN = {"to-eu": ["big.one", "big-two", "gone"], "logs": ["logs_b", "logs_a"]}


def catalog(mirrors: dict[str, list[str]]) -> str:
    return json.dumps({"version": 100, "mirrors": mirrors})


@pytest.fixture
def sample(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A relay.yaml of two mirrors with a catalog next to it."""
    monkeypatch.delenv("RELAY_CATALOG", raising=False)
    (tmp_path / "var" / "relay").mkdir(parents=True)
    (tmp_path / "var" / "relay" / "topics.json").write_text(catalog(SEEN))
    path = tmp_path / "relay.yaml"
    path.write_text(SAMPLE)
    return path


def copying(path: Path) -> list[dg.AssetsDefinition]:
    return [asset for asset in build(path).assets or [] if isinstance(asset, dg.AssetsDefinition)]


def names(path: Path) -> Iterator[str]:
    """Yield all that Dagster knows by name, in lines."""
    repository = build(path).get_repository_def()
    graph = repository.asset_graph
    checks = defaultdict(set)
    for check in graph.asset_check_keys:
        blocks = " (blocks)" if graph.get_check_spec(check).blocking else ""
        checks[check.asset_key].add(f"{check.name}{blocks}")
    for key in sorted(graph.get_all_asset_keys(), key=str):
        asset, of_asset = graph.get(key), sorted(checks[key])
        windows = getattr(asset.partitions_def, "name", "none")
        yield f"asset {key.to_user_string()} in {asset.group_name}: partitions {windows}"
        yield from [f"  checks {', '.join(of_asset)}"] if of_asset else ()
    for sensor in sorted(repository.sensor_defs, key=lambda each: each.name):
        yield f"sensor {sensor.name} every {sensor.minimum_interval_seconds} s"
    yield from sorted(f"job {name}" for name in repository.job_names if name[:2] != "__")
    yield from sorted(f"op {asset.op.name} in {asset.op.pool}" for asset in copying(path))


class TestNames:
    """Names do not change: histories, schedules and people refer to them."""

    def test_names(self, sample, wordings):
        """If one changes, users lose the history of assets, or limits of pools do not hold."""
        wordings.check("dagster: names", "\n".join(names(sample)))

    def test_a_mirrored_topic_names_its_owners_and_its_destination(self, sample):
        graph = build(sample).get_repository_def().asset_graph
        mirrored = graph.get(dg.AssetKey(["to-eu", "shop.orders"]))
        assert mirrored.owners == ["team:data-eng", "someone@example.com"]
        assert mirrored.metadata["dagster/uri"] == "kafka://192.0.2.3:9092/eu.shop.orders"
        assert mirrored.parent_keys == {dg.AssetKey(["source", "to-eu", "source.shop.orders"])}

    def test_a_description_is_true_of_what_is_copied(self, sample, wordings):
        """A copy that leaves records out, or changes them, is not called a verbatim one."""
        filters = [{"class": "shop:Paid", "topics": ["payments"]}]
        overrides = {
            r"shop\.orders": {"where": "partition > 0", "on_record_error": "quarantine"},
            "shop-orders": {"transform": {"class": "shop:Masked"}, "select": {"key": "NULL"}},
        }
        configured = yaml.safe_load(SAMPLE)
        mirror = configured["mirrors"]["to-eu"]
        mirror["filters"] = filters
        mirror["topics"]["overrides"] = overrides
        mirror["topics"]["rename"] = {"big.one": "merged:3"}
        sample.write_text(yaml.safe_dump(configured))
        graph = build(sample).get_repository_def().asset_graph
        topics = ("shop.orders", "shop-orders", "payments", "big.one")
        specs = {topic: graph.get(dg.AssetKey(["to-eu", topic])) for topic in topics}
        said = "\n".join(spec.description or "" for spec in specs.values())
        wordings.check("dagster: descriptions", said)
        decided = {"filters", "where", "transform", "select"}
        assert {topic: decided & {*spec.metadata} for topic, spec in specs.items()} == {
            "shop.orders": {"where"},
            "shop-orders": {"transform", "select"},
            "payments": {"filters"},
            "big.one": set(),
        }

    @pytest.mark.parametrize("written", ["on", "off"])
    def test_sensors_start_by_themselves_if_automation_is_on(self, sample, written):
        """After a wiped database, or in a new deployment, nobody has to switch them on."""
        sample.write_text(f"automation: {written}\n{SAMPLE}")
        sensors = build(sample).get_repository_def().sensor_defs
        expected = {"on": "RUNNING", "off": "STOPPED"}[written]
        assert {sensor.default_status.value for sensor in sensors} == {expected}

    def test_a_scheduled_audit(self, sample):
        """It has a job, a schedule and an asset, which is behind all topics of the mirror."""
        assert not build(sample).get_repository_def().schedule_defs
        more = 'audit: {schedule: "0  3 * * *", level: full}'
        sample.write_text(f"automation: on\n{SAMPLE}    {more}\n")
        repository = build(sample).get_repository_def()
        (schedule,) = repository.schedule_defs
        assert (schedule.name, schedule.job_name) == ("sample_audit_logs", "sample_audit_logs")
        assert schedule.cron_schedule == "0 3 * * *"
        assert schedule.default_status is dg.DefaultScheduleStatus.RUNNING
        history = repository.asset_graph.get(dg.AssetKey(["audits", "logs", "sample_audit"]))
        topics = {dg.AssetKey(["logs", "logs_a"]), dg.AssetKey(["logs", "logs_b"])}
        assert history.parent_keys == topics
        assert not history.is_materializable, "nobody materialises it with the topics"

    def test_schemas_have_a_check_if_both_registries_are_declared(self, sample):
        here = {"url": "http://127.0.0.1:1"}
        document = yaml.safe_load(SAMPLE)
        mirror = document["mirrors"]["logs"]
        mirror["source"]["schema_registry"] = here
        for declared in (False, True):
            if declared:
                mirror["destination"]["schema_registry"] = here
            sample.write_text(yaml.safe_dump(document))
            keys = build(sample).get_repository_def().asset_graph.asset_check_keys
            found = {key.asset_key.path[-1] for key in keys if key.name == "schemas"}
            assert found == ({"logs_a", "logs_b"} if declared else set())

    def test_audits_do_not_hold_copies_up(self, sample):
        """What copies runs first, and is in none of their pools; nothing is repeated."""
        sample.write_text(f'{SAMPLE}    audit: {{schedule: "0 3 * * *"}}\n')
        repository = build(sample).get_repository_def()
        for name in ("audit", "sample_audit_logs"):
            job = repository.get_job(name)
            assert (job.tags["dagster/priority"], job.tags["dagster/max_retries"]) == ("-1", "0")
            assert [node.definition.pools for node in job.nodes] == [{"relay_audits"}]
        checks = build(sample).asset_checks or []
        assert {check.op.pool for check in checks if check.op.name.startswith("audit_")} == {None}


def test_loading_neither_asks_nor_writes(sample, tmp_path, monkeypatch):
    """A code location loads quickly while a broker is down; a missing file is one line."""
    refuse = Mock(side_effect=AssertionError("loading opened a connection"))
    monkeypatch.setattr(socket.socket, "connect", refuse)
    monkeypatch.setattr(socket, "getaddrinfo", refuse)
    before = {path: path.stat().st_mtime_ns for path in sample.parent.rglob("*")}
    dg.Definitions.validate_loadable(build(sample))
    assert {path: path.stat().st_mtime_ns for path in sample.parent.rglob("*")} == before
    with pytest.raises(ConfigError) as caught:
        build(tmp_path / "none" / "relay.yaml")
    remedy = "name another file, or write one with `relay init`"
    assert str(caught.value) == f"{tmp_path}/none/relay.yaml does not exist; {remedy}"


def test_loads_without_a_catalog(sample):
    """Then only the topics that relay.yaml names have assets."""
    (sample.parent / "var" / "relay" / "topics.json").unlink()
    found = sorted(key.path[-1] for asset in copying(sample) for key in asset.keys)
    assert found == ["payments", "shop-orders", "shop.orders"]


BROKEN = [
    ("a misspelt key", ("owners:", "owner:")),
    ("an owner that Dagster refuses", ("team:data-eng", "someone@example.engineering")),
    ("mirrors that Dagster cannot tell apart", ("  logs:", "  to_eu:")),
    ("a mirror whose job has the name of another job", ("  logs:", "  once:")),
    ("a pattern that is none", ("idle.*", "idle(")),
]


@titled("change", BROKEN)
def test_a_broken_configuration_is_one_line(sample, change, capsys):
    """It is the line of `relay check`, without a traceback of Dagster."""
    assert change[0] in SAMPLE
    sample.write_text(SAMPLE.replace(*change))
    with pytest.raises(ConfigError) as caught:
        build(sample)
    line = str(caught.value)
    assert re.match(rf"{re.escape(str(sample))}:\d+: mirrors\.", line)
    assert "\n" not in line
    assert main(["--config", str(sample), "check"]) == 2
    assert capsys.readouterr().err == f"error: {line}\n"


@pytest.mark.parametrize("sensor", ["plan_logs", "health_logs"])
def test_a_tick_says_what_is_wrong_with_relay_yaml(
    sample: Path, sensor: str, instance: dg.DagsterInstance
) -> None:
    """Dagster shows our line, and none of its own above it; a mirror that is gone is no fault."""
    loaded = build(sample).get_repository_def().get_sensor_def(sensor)

    def tick() -> object:
        kafka = {kafka_key(): KafkaResource(config_path=str(sample))}
        with user_code_error_boundary(SensorExecutionError, lambda: "an error in a sensor"):
            return loaded(dg.build_sensor_context(instance, resources=kafka))

    sample.write_text(SAMPLE.replace('allow: ["logs', 'alow: ["logs'))
    line = rf"^logs: {re.escape(str(sample))}:\d+: mirrors\..*'allow'"
    with pytest.raises(TickError, match=line):
        tick()
    sample.write_text(SAMPLE.replace("  logs:", "  other:"))
    gone = "logs is no longer in relay.yaml; reload the code location"
    assert tick() == dg.SkipReason(gone)


@pytest.mark.parametrize(
    ("seen", "rename"),
    [
        pytest.param("big.one", "{payments: big.one}", id="of two lanes"),
        pytest.param("payments", r"[{match: 'payments|shop\.orders', to: both}]", id="of one lane"),
        pytest.param("payments", f'"{"x" * 245}{{topic}}"', id="too long"),
    ],
)
def test_destinations_that_are_refused_take_no_mirror_away(sample, seen, rename):
    """One of the topics may be long deleted; if not, the planner of the mirror says what to do."""
    sample.write_text(SAMPLE.replace('"eu.{topic}"', rename))
    loaded = build(sample)
    dg.Definitions.validate_loadable(loaded)
    keys = loaded.get_repository_def().asset_graph.get_all_asset_keys()
    assert {dg.AssetKey(["to-eu", seen]), dg.AssetKey(["logs", "logs_a"])} <= keys
    # also a topic and a check of another
    topics = catalog({"logs": ["logs_a", "logs_a.message_counts"]})
    (sample.parent / "var" / "relay" / "topics.json").write_text(topics)
    dg.Definitions.validate_loadable(build(sample))


def test_ticks_leave_nothing(sample: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A code server makes an instance for each tick, for months, and imports no migrations."""
    build(sample)

    def tick() -> int:
        with dg.DagsterInstance.from_ref(instance.get_ref()) as another:
            another.get_runs_count()
        gc.collect()
        return sum(isinstance(each, ExitStack) for each in gc.get_objects())

    with dg.DagsterInstance.local_temp(str(tmp_path)) as instance:
        first = tick()
        imported: list[tuple[str, str]] = []
        monkeypatch.setattr(alembic.util, "load_python_file", lambda *file: imported.append(file))
        assert [tick() for _ in range(3)] == [first] * 3
        assert imported == []
