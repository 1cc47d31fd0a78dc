"""The contract with what Dagster does inside: tables of events, and what a code server answers."""

import logging
from collections.abc import Callable, Iterator
from contextlib import closing
from functools import cache, partial
from pathlib import Path
from typing import Any

import dagster as dg
import pytest
import sqlalchemy
from dagster import DagsterInstance, DagsterRunStatus, RunsFilter
from dagster._core.event_api import EventLogRecord
from dagster._core.remote_origin import RegisteredCodeLocationOrigin, RemoteRepositoryOrigin
from dagster._core.remote_representation.external_data import RepositoryErrorSnap, RepositorySnap
from dagster._core.storage.event_log import schema
from dagster._grpc import server
from dagster._grpc.__generated__.dagster_api_pb2 import ExternalRepositoryRequest
from dagster._serdes import deserialize_value, serialize_value

from relay_pipelines.orchestration import shortcuts
from relay_pipelines.orchestration.shortcuts import Event
from tests.support.postgres import Postgres

ORDERS, PLAN = dg.AssetKey(["m", "orders"]), dg.AssetKey(["m", "main", "windows"])


def materialized(key: dg.AssetKey, window: str, records: int) -> dg.AssetMaterialization:
    return dg.AssetMaterialization(
        key, f"{records} records", {"records": records}, partition=window, tags={"a": "b"}
    )


def checked(window: str | None, *, passed: bool) -> dg.AssetCheckEvaluation:
    said = "all are there" if passed else None
    return dg.AssetCheckEvaluation(
        asset_key=ORDERS, check_name="counts", passed=passed, description=said, partition=window,
        metadata={"table": dg.MetadataValue.table([dg.TableRecord({"partition": 1})])},
    )  # fmt: skip


BATCHES: list[list[Event]] = [
    [materialized(PLAN, "w1", 3), materialized(ORDERS, "w1", 3), checked("w1", passed=False)],
    [],
    [
        materialized(ORDERS, "w2", 5),
        checked("w2", passed=True),
        # what a run says again replaces what it has said
        *(checked(None, passed=False), checked(None, passed=True), checked("w1", passed=True)),
        dg.AssetMaterialization(ORDERS, partition="w3"),
    ],
]


def together(context: dg.OpExecutionContext) -> Iterator[Any]:
    yield from shortcuts.stored(context, BATCHES)


def one_by_one(_context: dg.OpExecutionContext) -> Iterator[Any]:
    for batch in BATCHES:
        yield from batch


Body = Callable[[dg.OpExecutionContext], Iterator[Any]]


def ran(instance: DagsterInstance, body: Body) -> dg.ExecuteInProcessResult:
    @dg.op(out={}, name="copy")
    def copy(context: dg.OpExecutionContext) -> Iterator[Any]:
        yield from body(context)

    @dg.job(name="mirror", executor_def=dg.in_process_executor)
    def mirror() -> None:
        copy()

    return mirror.execute_in_process(instance=instance)


def instance_of(kind: str, folder: Path) -> DagsterInstance:
    if kind == "memory":
        return DagsterInstance.ephemeral()
    folder.mkdir()
    return DagsterInstance.local_temp(str(folder))


def rows(instance: DagsterInstance, table: sqlalchemy.Table, *names: str) -> list[dict[str, Any]]:
    with instance.event_log_storage.index_connection() as connection:  # type: ignore[attr-defined]
        found = connection.execute(sqlalchemy.select(table).order_by(table.c.id)).mappings()
        return [{name: known(name, row[name]) for name in names} for row in found]


def known(name: str, value: Any) -> Any:
    if name in {"event", "evaluation_event", "last_materialization"} and value:
        found: Any = deserialize_value(value)
        entry = found.event_log_entry if isinstance(found, EventLogRecord) else found
        event = entry.dagster_event and entry.dagster_event._replace(pid=0, logging_tags={})
        return entry._replace(run_id="", timestamp=0.0, dagster_event=event)
    return value


def found_after(instance: DagsterInstance, body: Body) -> list[Any]:
    """Run an op, and return what pages, sensors and pruning find then."""
    result = ran(instance, body)
    assert result.success
    events = rows(
        *(instance, schema.SqlEventLogStorageTable, "event", "dagster_event_type"),
        *("step_key", "asset_key", "partition"),
    )
    (state,) = instance.get_asset_records([ORDERS])
    of_run, *_ = instance.all_logs(result.run_id, dg.DagsterEventType.ASSET_CHECK_EVALUATION)
    log = [entry.message for entry in instance.all_logs(result.run_id)]
    return [
        # of steps, and of events that pass through logs, only some storages have a row here
        [row for row in events if row["dagster_event_type"].startswith("ASSET_")],
        rows(instance, schema.AssetKeyTable, "asset_key", "last_materialization"),
        rows(
            *(instance, schema.AssetCheckExecutionsTable, "asset_key", "check_name"),
            *("partition", "execution_status", "evaluation_event"),
            "materialization_event_storage_id",
        ),
        rows(instance, schema.AssetEventTagsTable, "asset_key", "key", "value"),
        [line for line in log if "check" in line or "ecords" in line],
        known("event", dg.serialize_value(of_run)),
        state.asset_entry.last_event_storage_id is not None,
        sorted(instance.get_materialized_partitions(ORDERS)),
        [found.partition for found in result.get_asset_materialization_events()],
        [found.passed for found in result.get_asset_check_evaluations()],
    ]


def assert_finds_runs(instance: DagsterInstance) -> None:
    """Look for those in progress with two tags, and compare with what Dagster finds itself."""
    tags, empty = {"m": "a%:b", "l": "x"}, dg.job(name="empty")(lambda: None)
    for status in set(DagsterRunStatus).difference([DagsterRunStatus.QUEUED]):
        for own in (tags, {**tags, "l": "y"}, {"m": "a%:b"}):
            instance.create_run_for_job(empty, status=status, tags=own)
    expected = instance.get_runs(RunsFilter(tags=tags, statuses=shortcuts.IN_PROGRESS))
    assert len(expected) == len(shortcuts.IN_PROGRESS)
    assert shortcuts.runs_in_progress(instance, *tags.items()) == expected


@pytest.mark.parametrize("kind", ["files", "memory"])
def test_rows_as_of_dagster(kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Pages, sensors and pruning find the same, whichever way the events came."""
    monkeypatch.setattr(shortcuts, "_TOGETHER", 2)
    with (
        instance_of(kind, tmp_path / "one by one") as first,
        instance_of(kind, tmp_path / "together") as second,
    ):
        assert found_after(second, together) == found_after(first, one_by_one)
        assert_finds_runs(first)


def test_others_see_events_in_order(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Dagster's automation goes on after the greatest id; in PostgreSQL others write meanwhile."""
    with closing(Postgres()) as server:
        first, second = (
            DagsterInstance.local_temp(str(tmp_path), server.storage(name)) for name in ("a", "b")
        )
        with first, second:
            expected = found_after(first, one_by_one)
            assert_finds_runs(first)
            evaluation, seen = shortcuts._store_evaluation, []

            def look(*arguments: Any) -> None:
                events = rows(second, schema.SqlEventLogStorageTable, "id", "dagster_event_type")
                seen.append(sum(row["dagster_event_type"].startswith("ASSET_") for row in events))
                evaluation(*arguments)

            monkeypatch.setattr(shortcuts, "_store_evaluation", look)
            assert found_after(second, together) == expected
    assert sorted({*seen}) == [len(BATCHES[0]), sum(map(len, BATCHES))], "before the states"


def test_a_topic_is_stored_as_a_whole(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Others write between the transactions of a window; each topic has its check in its own."""
    monkeypatch.setattr(shortcuts, "_TOGETHER", 2)
    topics = [dg.AssetKey(["m", f"topic{number}"]) for number in range(4)]
    window: list[Event] = [materialized(PLAN, "w1", 3)]
    for topic in topics:
        counts = dg.AssetCheckEvaluation(asset_key=topic, check_name="counts", passed=True)
        window += [materialized(topic, "w1", 3), counts]
    store_evaluation = shortcuts._store_evaluation
    stored: list[Any] = []

    def store_some(*arguments: Any) -> None:
        if len(stored) == len(topics) - 1:
            raise OSError("the disk is full")
        stored.append(arguments)
        store_evaluation(*arguments)

    def breaks(context: dg.OpExecutionContext) -> Iterator[Any]:
        monkeypatch.setattr(shortcuts, "_store_evaluation", store_some)
        with pytest.raises(OSError, match="full"):
            shortcuts.store(context, window)
        yield from ()

    with instance_of("files", tmp_path / "dagster") as instance:
        assert ran(instance, breaks).success
        materializations = [bool(instance.get_materialized_partitions(topic)) for topic in topics]
        evaluated = rows(instance, schema.AssetCheckExecutionsTable, "asset_key")
    assert materializations == [True, True, True, False]
    assert [row["asset_key"] for row in evaluated] == [key.to_string() for key in topics[:3]]


def test_other_tables_are_left_to_dagster(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """With a Dagster that has other tables, all is stored in its own way, and one line says so."""
    monkeypatch.setitem(shortcuts._TABLES, "DynamicPartitionsTable", ("partition", "key"))
    monkeypatch.setattr(shortcuts, "_is_known", cache(shortcuts._is_known.__wrapped__))

    def with_keys(context: dg.OpExecutionContext) -> Iterator[Any]:
        for window in ("w1", "w2", "w1"):
            shortcuts.add_key(context.instance, ["a", "b"], window)
        yield from together(context)
        shortcuts.delete_key(context.instance, ["b", "c"], "w1")
        shortcuts.delete_evaluations(context.instance, {"w2": [ORDERS]})

    with (
        instance_of("files", tmp_path / "one by one") as first,
        instance_of("files", tmp_path / "together") as second,
    ):
        monkeypatch.setattr(shortcuts, "_store", None)
        assert found_after(second, with_keys) == found_after(first, one_by_one)
        assert [second.get_dynamic_partitions(name) for name in "ab"] == [["w1", "w2"], ["w2"]]
    lines = [record.message for record in caplog.records if record.name == shortcuts.__name__]
    assert len(lines) == 1
    assert "has no DynamicPartitionsTable.key: " in lines[0]


@pytest.mark.parametrize("kind", ["files", "memory"])
def test_keys_of_windows_come_and_go(kind: str, tmp_path: Path) -> None:
    """Many sets keep a key once; a check keeps its state, if last evaluated in an old window."""
    names = [f"m/{number}/windows" for number in range(shortcuts._VALUES + 2)]
    with instance_of(kind, tmp_path / "dagster") as instance:
        instance.add_dynamic_partitions(names[1], ["w1", "w0"])
        for _ in range(2):
            shortcuts.add_key(instance, names, "w1")
        keys = rows(instance, schema.DynamicPartitionsTable, "partitions_def_name", "partition")
    expected = sorted([*((name, "w1") for name in names), (names[1], "w0")])
    assert sorted(tuple(key.values()) for key in keys) == expected
    seldom = dg.AssetKey(["m", "seldom"])

    def windows(context: dg.OpExecutionContext) -> Iterator[Any]:
        for window in ("w1", "w2", "w3"):
            keys = [ORDERS, seldom] if window == "w1" else [ORDERS]
            counts = partial(dg.AssetCheckEvaluation, check_name="counts", partition=window)
            batch = [counts(asset_key=key, passed=True) for key in keys]
            yield from shortcuts.store(context, batch)

    with instance_of(kind, tmp_path / "old") as instance:
        assert ran(instance, windows).success
        names = ["m/orders/windows", "m/main/plans"]
        for window in ("w1", "w2", "w3"):
            shortcuts.add_key(instance, names, window)
        shortcuts.delete_evaluations(instance, {"w1": [ORDERS, seldom], "w2": [ORDERS]})
        for window in ("w1", "w2"):
            shortcuts.delete_key(instance, names, window)
        left = rows(instance, schema.AssetCheckExecutionsTable, "asset_key", "partition")
        keys = rows(instance, schema.DynamicPartitionsTable, "partitions_def_name", "partition")
    assert left == [
        {"asset_key": seldom.to_string(), "partition": "w1"},
        {"asset_key": ORDERS.to_string(), "partition": "w3"},
    ]
    assert keys == [{"partitions_def_name": name, "partition": "w3"} for name in names]


def test_a_code_server_serializes_its_definitions_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its answers are Dagster's own; an error is not kept."""
    made: list[dg.RepositoryDefinition] = []
    make = RepositorySnap.from_def

    def from_def(definitions: dg.RepositoryDefinition, **options: Any) -> RepositorySnap:
        made.append(definitions)
        if len(made) == 1:
            raise ValueError("the first time it fails")
        return make(definitions, **options)

    monkeypatch.setattr(RepositorySnap, "from_def", from_def)
    monkeypatch.setattr(server, "DagsterApiServer", type("Copy", (server.DagsterApiServer,), {}))
    shortcuts._serialize_definitions_once()
    definitions = dg.Definitions([dg.AssetSpec(ORDERS)]).get_repository_def()
    code_server: Any = object.__new__(server.DagsterApiServer)
    code_server._logger = logging.getLogger(__name__)
    code_server._get_repo_for_origin = lambda _origin: definitions
    origin = RemoteRepositoryOrigin(RegisteredCodeLocationOrigin("here"), "repository")

    def answered(*, defer_snapshots: bool) -> Any:
        request = ExternalRepositoryRequest(
            serialized_repository_python_origin=serialize_value(origin),
            defer_snapshots=defer_snapshots,
        )
        return deserialize_value(
            code_server.ExternalRepository(request, None).serialized_external_repository_data
        )

    assert isinstance(answered(defer_snapshots=True), RepositoryErrorSnap)
    for deferred in (True, True, False, True, False):
        assert answered(defer_snapshots=deferred) == make(definitions, defer_snapshots=deferred)
    assert len(made) == 3
    code_server._server_id = "of other definitions"
    answered(defer_snapshots=True)
    assert len(made) == 4
