"""Our definitions in a project of one's own: names, resources and executors do not collide."""

import re
import socket
from functools import partial
from pathlib import Path
from typing import Any

import dagster as dg
import pytest
import yaml
from dagster.components.testing import create_defs_folder_sandbox

import relay_pipelines as relay
from relay_pipelines.orchestration.topic_catalog import Catalog
from relay_pipelines.resources import KafkaResource
from relay_pipelines.sensors.tick_ends import TickError

SAMPLE = """
mirrors:
  shop:
    source: {upstreams: [{name: a, bootstrap_servers: ["192.0.2.1:9092"]}]}
    destination: {bootstrap_servers: ["192.0.2.3:9092"]}
    topics: {allow: [orders]}
    audit: {schedule: "0 3 * * *"}
"""


class Clusters(dg.ConfigurableResource):
    """A resource of the user that has a name which ours had."""

    address: str = "kafka:9092"


@pytest.fixture
def config(tmp_path: Path) -> Path:
    path = tmp_path / "relay.yaml"
    path.write_text(SAMPLE)
    return path


def users(**more: Any) -> dg.Definitions:
    """Definitions of a user, with an asset that is downstream of a mirrored topic."""

    @dg.asset(
        deps=[relay.asset_key("shop", "orders")], partitions_def=relay.partitions("shop", "orders")
    )
    def invoices(context: dg.AssetExecutionContext, kafka: Clusters) -> None:
        context.log.info("%s %s", context.partition_key, kafka)

    job = dg.define_asset_job("invoicing", [invoices])
    both = {"kafka": Clusters(), "pyspark": Clusters()}
    return dg.Definitions(assets=[invoices], jobs=[job], resources=both, **more)


def executors(definitions: dg.Definitions) -> dict[str, str]:
    repository = definitions.get_repository_def()
    return {name: repository.get_job(name).executor_def.name for name in repository.job_names}


@pytest.mark.parametrize(
    ("executor", "expected"),
    [(dg.multiprocess_executor, "multiprocess"), (None, "multi_or_in_process_executor")],
)
def test_each_project_keeps_its_executor_and_its_resources(config, monkeypatch, executor, expected):
    """Our jobs run in one process; jobs and runs of assets have the user's executor."""
    own = users(executor=executor) if executor else users()
    merged = dg.Definitions.merge(relay.definitions(config), own)
    dg.Definitions.validate_loadable(merged)
    ours = ("mirror_shop", "mirror_once", "backfill_by_date", "replay", "audit", "move")
    in_process = dict.fromkeys((*ours, "sample_audit_shop"), "in_process")
    assert executors(merged) == in_process | {"invoicing": expected, "__ASSET_JOB": expected}
    keys = {key for key in merged.resources or {} if key.startswith("relay")}
    assert keys == {"relay_kafka", "relay_spark"}
    graph = merged.get_repository_def().asset_graph
    invoices = graph.get(dg.AssetKey("invoices"))
    orders = graph.get(dg.AssetKey(["shop", "orders"]))
    assert invoices.parent_keys == {orders.key}
    assert invoices.partitions_def == orders.partitions_def
    # our own code location runs assets in one process: another one would cost two seconds a run
    monkeypatch.setenv("RELAY_CONFIG", str(config))
    from relay_pipelines.definitions import defs

    assert executors(defs())["__ASSET_JOB"] == "in_process"


def test_two_relay_files_in_one_project(config, tmp_path):
    """Even of mirrors with the same name, if one has a key prefix; all names have it."""
    other = tmp_path / "other.yaml"
    other.write_text(SAMPLE.replace("192.0.2.1", "192.0.2.9"))
    eu = relay.definitions(other, key_prefix=["eu", "north"])
    merged = dg.Definitions.merge(relay.definitions(config), eu, users())
    dg.Definitions.validate_loadable(merged)
    repository = merged.get_repository_def()
    graph = eu.get_repository_def().asset_graph
    keys = {key.to_user_string() for key in graph.get_all_asset_keys()}
    names = ("shop/orders", "shop/main/windows", "source/shop/source.orders", "upstreams/shop/a")
    assert keys == {f"eu/north/{name}" for name in (*names, "audits/shop/sample_audit")}
    assert relay.asset_key("shop", "orders", key_prefix=["eu", "north"]).to_user_string() in keys
    sensors = {sensor.name for sensor in repository.sensor_defs}
    mirrors = ("shop", "eu_north_shop")
    assert sensors == {f"{kind}_{name}" for kind in ("plan", "health") for name in mirrors}
    schedules = {schedule.name for schedule in repository.schedule_defs}
    assert schedules == {"sample_audit_shop", "sample_audit_eu_north_shop"}
    jobs = ("mirror_once", "backfill_by_date", "replay", "audit", "move")
    named = {"mirror_eu_north_shop", *(f"eu_north_{job}" for job in jobs)}
    assert named < set(repository.job_names)
    windows = relay.partitions("shop", "orders", key_prefix=("eu", "north"))
    assert windows.name == "eu/north/shop/orders/windows"
    orders = repository.asset_graph.get(dg.AssetKey(["eu", "north", "shop", "orders"]))
    assert orders.partitions_def == windows
    resources: Any = merged.resources
    kafka = [resources[key] for key in ("relay_kafka", "eu_north_relay_kafka")]
    assert [each.config_path for each in kafka] == [str(config), str(other)]
    assert all(isinstance(each, KafkaResource) for each in kafka)


def test_mirrors_of_one_name_do_not_get_each_others_topics(config, tmp_path):
    """The two relay.yaml are in one folder, or RELAY_CATALOG names one file for both."""
    other = tmp_path / "other.yaml"
    by_pattern = SAMPLE.replace("[orders]", "[orders.*]").replace("192.0.2.1", "127.0.0.1")
    for path in (config, other):
        path.write_text(by_pattern.replace("9092", "1"))
    for catalog, topic in ((Catalog.beside(config), "eu"), (Catalog.beside(other, ("us",)), "us")):
        catalog.learn("shop", [f"orders.{topic}"])

    def topics(definitions):
        keys = definitions.get_repository_def().asset_graph.get_all_asset_keys()
        return {key.path[-1] for key in keys if key.path[-1].startswith("orders")}

    assert topics(relay.definitions(config)) == {"orders.eu"}
    assert topics(relay.definitions(other, key_prefix="us")) == {"orders.us"}


@pytest.mark.parametrize("prefix", [(), "eu"])
def test_jobs_and_sensors_find_their_resources(config, prefix):
    """Clusters that do not answer are what they fail at."""
    text = SAMPLE.replace("192.0.2.1:9092", "127.0.0.1:1").replace("192.0.2.3:9092", "127.0.0.1:2")
    config.write_text(f"{text}    give_up_after: 1ms\n")
    definitions = relay.definitions(config, key_prefix=prefix)
    repository = definitions.get_repository_def()
    start = f"{prefix}_" if prefix else ""
    needed: dict[str, dict[str, Any]] = {
        "backfill_by_date": {"copy_time_span": {"from": "2026-01-01"}},
        "move": {"step_of_move": {"mirror": "shop"}},
    }
    jobs = ("mirror_once", "backfill_by_date", "replay", "audit", "move")
    for job in (*(f"{start}{job}" for job in jobs), f"sample_audit_{start}shop"):
        of_job = needed.get(job.removeprefix(start), {})
        ops = {f"{start}{op}": {"config": given} for op, given in of_job.items()}
        with pytest.raises(dg.Failure, match=r"destination broker 127\.0\.0\.1:2 cannot be"):
            repository.get_job(job).execute_in_process(run_config={"ops": ops})
    found = definitions.resources or {}
    kafka = {key: each for key, each in found.items() if key.endswith("relay_kafka")}
    context = dg.build_sensor_context(dg.DagsterInstance.ephemeral(), resources=kafka)
    health: Any = repository.get_sensor_def(f"health_{start}shop")(context)
    assert "127.0.0.1:1 cannot be reached" in str(health.skip_reason)
    with pytest.raises(TickError, match=r"destination broker 127\.0\.0\.1:2 cannot be"):
        repository.get_sensor_def(f"plan_{start}shop")(context)


def test_a_cluster_that_never_answers_holds_a_tick_up_for_seconds(config):
    """Such as one that is stopped: a tick has the next one, and other lanes, to care for."""
    with socket.create_server(("127.0.0.1", 0)) as stopped:
        address = f"127.0.0.1:{stopped.getsockname()[1]}"
        config.write_text(re.sub(r"192\.0\.2\.\d:9092", address, SAMPLE))
        definitions = relay.definitions(config)
        planner = definitions.get_repository_def().get_sensor_def("plan_shop")
        kafka = {"relay_kafka": (definitions.resources or {})["relay_kafka"]}
        with pytest.raises(TickError, match="no answer within 3 s"):
            planner(dg.build_sensor_context(dg.DagsterInstance.ephemeral(), resources=kafka))


@pytest.mark.parametrize("prefix", ["eu-north", ["eu", ""], "a/b"])
def test_a_prefix_that_dagster_refuses_is_one_line(config, prefix):
    with pytest.raises(relay.ConfigError, match="cannot begin a name in Dagster; use letters"):
        relay.definitions(config, key_prefix=prefix)


PAGE = Path(__file__).parents[2] / "docs" / "api.md"


def documented(heading: str, kind: str) -> str:
    """The first block of this kind in a section of docs/api.md."""
    section = PAGE.read_text().partition(f"\n## {heading}\n")[2].partition("\n## ")[0]
    found = re.search(rf"```{kind}\n(.*?)```", section, re.DOTALL)
    assert found
    return found[1]


@pytest.mark.filterwarnings("ignore::dagster.BetaWarning")  # backfill policies
def test_the_documented_project_loads(config, monkeypatch):
    """The example of docs/api.md, whose asset has the windows of the topic."""
    config.write_text(SAMPLE.replace("shop:", "orders:").replace("orders]", r"orders\.new]"))
    monkeypatch.chdir(config.parent)
    project: dict[str, dg.Definitions] = {}
    exec(documented("Your own Dagster project", "python"), project)
    dg.Definitions.validate_loadable(project["defs"])
    graph = project["defs"].get_repository_def().asset_graph
    mirrored = graph.get(dg.AssetKey(["orders", "orders.new"]))
    assert graph.get(dg.AssetKey("invoices")).partitions_def == mirrored.partitions_def


@pytest.mark.filterwarnings("ignore::dagster.BetaWarning", "ignore::dagster.PreviewWarning")
def test_assets_follow_windows(config):
    """What docs/api.md says of automation conditions, and of windows that two topics share."""
    config.write_text(SAMPLE.replace("[orders]", "[orders, refunds]"))
    condition = dg.AutomationCondition
    partitions_def = relay.partitions("shop", "orders")
    orders, refunds = (relay.asset_key("shop", topic) for topic in ("orders", "refunds"))
    same = dg.AssetDep(refunds, partition_mapping=dg.IdentityPartitionMapping())

    @dg.asset(
        deps=[orders], partitions_def=partitions_def, automation_condition=condition.on_missing()
    )
    def once() -> None: ...

    @dg.asset(
        deps=[orders, same], partitions_def=partitions_def, automation_condition=condition.eager()
    )
    def both() -> None: ...

    merged = dg.Definitions.merge(relay.definitions(config), dg.Definitions(assets=[once, both]))
    cursor = None
    with dg.DagsterInstance.ephemeral() as instance:

        def copied(window: str, *topics: str) -> tuple[Any, ...]:
            """What is requested, and then run, when a session has copied a window."""
            nonlocal cursor
            for topic in topics:
                windows = relay.partitions("shop", topic).name
                assert windows is not None
                instance.add_dynamic_partitions(windows, [window])
                event = dg.AssetMaterialization(relay.asset_key("shop", topic), partition=window)
                instance.report_runless_asset_event(event)
            found = dg.evaluate_automation_conditions(merged, instance, cursor=cursor)
            cursor = found.cursor
            for asset in (once, both):
                for key in found.get_requested_partitions(asset.key):
                    assert dg.materialize([asset], partition_key=key, instance=instance).success
            return tuple(found.get_requested_partitions(asset.key) for asset in (once, both))

        assert copied("w0", "orders", "refunds") == (set(), set()), "before the first tick"
        assert copied("w1", "orders", "refunds") == ({"w1"}, {"w1"})
        assert copied("w2", "orders") == ({"w2"}, {"w2"})
        assert copied("w1", "orders") == (set(), {"w1"}), "materialised again by a person"
        assert copied("w3", "refunds") == (set(), set())


# from Dagster itself, when it loads components
@pytest.mark.filterwarnings("ignore:`parse_obj_as` is deprecated", "ignore::dagster.BetaWarning")
class TestComponent:
    """What `dg` makes of defs.yaml, without its processes."""

    @pytest.mark.parametrize("prefix", ["", "eu"])
    def test_the_documented_attributes_change_specs(self, config, prefix):
        """Those of mirrored topics only; the prefix is that of `relay.definitions`."""
        written = documented("As a component", "yaml").replace("relay.yaml ", f"{config} ")
        text = written if prefix else re.sub("  key_prefix.*\n", "", written)
        with create_defs_folder_sandbox() as sandbox:
            path = sandbox.defs_folder_path / "shop"
            path.mkdir()
            (path / "defs.yaml").write_text(text)
            with sandbox.load_component_and_build_defs(defs_path=path) as (component, defs):
                assert isinstance(component, relay.MirrorComponent)
                dg.Definitions.validate_loadable(defs)
                graph = defs.get_repository_def().asset_graph
                mirrored = graph.get(relay.asset_key("shop", "orders", key_prefix=prefix))
        assert (mirrored.description, mirrored.owners) == ("orders of shop", ["team:orders"])
        others = [graph.get(key) for key in graph.get_all_asset_keys() if key != mirrored.key]
        assert len(others) == 4
        assert not any(other.owners for other in others)
        plain = relay.definitions(config, key_prefix=prefix).get_repository_def().asset_graph
        assert set(graph.get_all_asset_keys()) == set(plain.get_all_asset_keys())
        assert mirrored.partitions_def == plain.get(mirrored.key).partitions_def

    def test_what_is_refused_before_dagster_does(self, config):
        """Runs report their windows by key and partitions; a broken relay.yaml is its own line."""
        component = relay.MirrorComponent(
            str(config), translation=lambda spec, _: spec.replace_attributes(key="other")
        )
        with pytest.raises(dg.DagsterInvalidDefinitionError, match=r"^shop/orders: key and part"):
            component.build_defs(dg.ComponentTree.for_test().load_context)
        config.write_text("mirrors: {}")
        with pytest.raises(dg.DagsterInvalidDefinitionError, match=f"^{config}:1: mirrors: "):
            relay.MirrorComponent(str(config)).build_defs(dg.ComponentTree.for_test().load_context)

    def test_the_scaffolder_keeps_files(self):
        """It writes a relay.yaml that loads, and a .gitignore, if there is none."""
        with create_defs_folder_sandbox() as sandbox:
            given = {"source": "a:9092,b:9092", "destination": "c:9092", "topics": "orders"}
            scaffold = partial(sandbox.scaffold_component, component_cls=relay.MirrorComponent)
            path = scaffold(scaffold_params=given)
            written = (path / "relay.yaml").read_text()
            (mirror,) = relay.load(path / "relay.yaml").values()
            assert mirror.settings.upstreams[0].bootstrap_servers == ("a:9092", "b:9092")
            (path / "relay.yaml").write_text(f"# mine\n{written}")
            again = scaffold(defs_path=path, scaffold_params=given)
            assert (again / "relay.yaml").read_text().startswith("# mine")
        with create_defs_folder_sandbox() as sandbox:
            path = sandbox.scaffold_component(component_cls=relay.MirrorComponent)
            assert (path / ".gitignore").read_text() == "var/\n"
            (path / "relay.yaml").unlink()
            (path / ".gitignore").write_text("mine\n")
            sandbox.scaffold_component(component_cls=relay.MirrorComponent, defs_path=path)
            assert (path / ".gitignore").read_text() == "mine\n"

    # of Dagster's own components, all of which it looks at
    @pytest.mark.filterwarnings("ignore:Class `SparkDeclarativePipelineScaffolder`")
    def test_a_second_component_has_names_of_its_own(self):
        """It is scaffolded with a key prefix; without one, a line says so before Dagster does."""
        given = {"source": "192.0.2.1:9092", "destination": "192.0.2.3:9092", "topics": "orders"}
        with create_defs_folder_sandbox() as sandbox:
            scaffold = partial(sandbox.scaffold_component, component_cls=relay.MirrorComponent)
            names = ("shop", "shop-2")
            first, second = (scaffold(defs_path=name, scaffold_params=given) for name in names)
            assert "key_prefix" not in (first / "defs.yaml").read_text()
            written = yaml.safe_load((second / "defs.yaml").read_text())
            assert written["attributes"] == {"config": "relay.yaml", "key_prefix": ["shop_2"]}
            with sandbox.build_all_defs() as definitions:
                dg.Definitions.validate_loadable(definitions)

            del written["attributes"]["key_prefix"]
            (second / "defs.yaml").write_text(yaml.safe_dump(written))
            with pytest.raises(Exception, match="Error while building") as refused:  # noqa: SIM117
                with sandbox.build_all_defs():
                    pass
            line = r".*/shop(-2)?: .*/shop(-2)? has the same names, without a key_prefix; set key"
            assert re.match(line, str(refused.value.__cause__))
