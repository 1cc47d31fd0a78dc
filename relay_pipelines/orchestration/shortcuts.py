"""What this package does inside Dagster, because Dagster's own way is slow.

Dagster stores each event of an op by itself: it prints it, and opens its database three times. A
window has two events for each of its topics. Here, the same rows of many events are written over
one connection: by Dagster's own functions, but for what checks find, which costs it as much as all
the rest, and for keys. It also deletes keys one by one, has no way to delete what checks have said
of some partitions, and reads its migrations with each tick of a sensor. For its daemon, a code
server builds and writes the same definitions every minute. SQLite gets a new engine for each query,
which compiles it anew: more than half of what a session pays to look for other runs.

With a Dagster that is not as this module knows it, all is done in its own way.
"""

import logging
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import cache
from itertools import chain
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import dagster as dg
import sqlalchemy
from alembic.config import Config
from alembic.script import ScriptDirectory
from dagster import DagsterEvent, DagsterRunStatus, EventLogEntry, RunsFilter
from dagster._core.storage import sql
from dagster._core.storage.event_log import SqlEventLogStorage, schema
from dagster._core.storage.runs import SqlRunStorage
from dagster._time import get_current_timestamp

Event = dg.AssetMaterialization | dg.AssetCheckEvaluation
Batch = Sequence[Event]
"""Events that are stored together."""

_VALUES = 500  # of a statement
_TOGETHER = 50
"""Events of a transaction: others that write to SQLite wait for it, and fail after 30 s."""
_DEFINITIONS = '{"__class__": "ExternalRepositoryData"'
_CALLED = ("_event_to_row", "_store_asset_event", "_store_asset_event_tags")
_TABLES = {
    "SqlEventLogStorageTable": ("id",),
    "AssetCheckExecutionsTable": (
        *("id", "asset_key", "check_name", "partition", "run_id", "execution_status"),
        *("evaluation_event", "evaluation_event_timestamp", "evaluation_event_storage_id"),
    ),
    "DynamicPartitionsTable": ("partitions_def_name", "partition"),
}

IN_PROGRESS = [DagsterRunStatus.STARTING, DagsterRunStatus.STARTED, DagsterRunStatus.CANCELING]
_RUNS = sqlalchemy.text(
    "SELECT r.run_body, r.status FROM runs r"
    " JOIN run_tags a ON a.run_id = r.run_id AND a.key = :key_a AND a.value = :value_a"
    " JOIN run_tags b ON b.run_id = r.run_id AND b.key = :key_b AND b.value = :value_b"
    " WHERE r.status IN ('STARTING', 'STARTED', 'CANCELING') ORDER BY r.id DESC"
)


def runs_in_progress(
    instance: dg.DagsterInstance, tag_a: tuple[str, str], tag_b: tuple[str, str]
) -> Sequence[dg.DagsterRun]:
    """Return the runs with two tags that are in progress, the newest one first."""
    storage = instance.run_storage
    if not (isinstance(storage, SqlRunStorage) and hasattr(storage, "_rows_to_runs")):
        return instance.get_runs(RunsFilter(tags=dict([tag_a, tag_b]), statuses=IN_PROGRESS))
    (key_a, value_a), (key_b, value_b) = tag_a, tag_b
    query: Any = _RUNS.bindparams(key_a=key_a, value_a=value_a, key_b=key_b, value_b=value_b)
    return storage._rows_to_runs(storage.fetchall(query))  # noqa: SLF001 - as `get_runs` does


def store(context: dg.OpExecutionContext, batch: Batch) -> list[DagsterEvent]:
    """Store events of an op; return what the op yields: Dagster stores it no more.

    A materialization and the event after it, which is its check, are stored together in SQLite.
    """
    entries = _entries(context, batch)
    storage = _storage(context.instance)
    if storage is None:
        for entry in entries:
            context.instance.handle_new_event(entry)
    else:
        for part in _transactions(entries):
            _store(storage, part)
    return [entry.get_dagster_event() for entry in entries]


def stored(context: dg.OpExecutionContext, batches: Iterable[Batch]) -> Iterator[DagsterEvent]:
    """Store batches as they come, and yield what the op yields."""
    for batch in batches:
        yield from store(context, batch)


def add_key(instance: dg.DagsterInstance, names: Sequence[str], key: str) -> None:
    """Add a key to many sets of dynamic partitions at once; those that have it keep it."""
    storage = _storage(instance)
    if storage is None:
        for name in names:
            instance.add_dynamic_partitions(name, [key])
        return
    keys = schema.DynamicPartitionsTable
    with storage.index_transaction() as connection:
        known: set[str] = set()
        for some in _parts(names):
            of_key = keys.c.partitions_def_name.in_(some), keys.c.partition == key
            have = sqlalchemy.select(keys.c.partitions_def_name).where(*of_key)
            known.update(connection.execute(have).scalars())
        new = [
            {"partitions_def_name": name, "partition": key} for name in names if name not in known
        ]
        if new:
            connection.execute(keys.insert(), new)


def delete_key(instance: dg.DagsterInstance, names: Sequence[str], key: str) -> None:
    """Delete a key from many sets of dynamic partitions, in their order."""
    storage = _storage(instance)
    if storage is None:
        for name in names:
            instance.delete_dynamic_partition(name, key)
        return
    keys = schema.DynamicPartitionsTable
    for some in _parts(names):
        among = keys.c.partitions_def_name.in_(some)
        with storage.index_connection() as connection:
            connection.execute(keys.delete().where(among, keys.c.partition == key))


def delete_evaluations(
    instance: dg.DagsterInstance, assets: Mapping[str, Sequence[dg.AssetKey]]
) -> None:
    """Delete what checks of assets have said of windows, and of those before them.

    The newest evaluation of each check stays: a topic without news keeps its colour. Dagster's own
    way is to keep all.

    Args:
        assets: window -> the assets that have it.
    """
    storage = _storage(instance)
    if storage is None:
        return
    evaluations = schema.AssetCheckExecutionsTable
    keys = {window: [key.to_string() for key in some] for window, some in assets.items()}
    newest: list[int] = []
    for some in _parts(sorted(set(chain.from_iterable(keys.values())))):
        ids = (
            sqlalchemy.select(sqlalchemy.func.max(evaluations.c.id))
            .where(evaluations.c.asset_key.in_(some))
            .group_by(evaluations.c.asset_key, evaluations.c.check_name)
        )
        with storage.index_connection() as connection:
            newest += connection.execute(ids).scalars()
    for window, texts in keys.items():
        # of older windows, too: those rows were once the newest
        old = evaluations.c.partition <= window, evaluations.c.id.not_in(newest)
        for some in _parts(texts):
            with storage.index_connection() as connection:
                connection.execute(
                    evaluations.delete().where(evaluations.c.asset_key.in_(some), *old)
                )


@cache
def spare_code_server() -> None:
    """Let the code server whose process this is do once what never changes in it."""
    _read_migrations_once()
    _serialize_definitions_once()


def _read_migrations_once() -> None:
    """Let Dagster name the folder of its migrations, and import them once in this process.

    Dagster makes an instance for each tick and each run, and each asks Alembic for the newest
    migration of three databases. Alembic imports all of them for each question, which takes 0.1 CPU
    seconds. If they are named by a Python package, it also registers a function that Python calls
    at exit, and that holds on to a context until then: 6 KiB per tick, which are 200 MiB a day. For
    a folder it registers nothing.
    """
    folder = Path(dg.__file__).parent / "_core" / "storage" / "alembic"
    if not (folder.is_dir() and hasattr(sql.get_alembic_config, "cache_clear")):
        return
    sql.ALEMBIC_SCRIPTS_LOCATION = str(folder)
    sql.get_alembic_config.cache_clear()
    read = ScriptDirectory.from_config
    memo: list[ScriptDirectory] = []

    def from_config(config: Config) -> ScriptDirectory:
        if config.get_main_option("script_location") != str(folder):
            return read(config)  # of a program that shares this process
        if not memo:
            memo.append(read(config))
        return memo[0]

    ScriptDirectory.from_config = staticmethod(from_config)  # type: ignore[method-assign]


def _serialize_definitions_once() -> None:
    """Let a code server keep the text of its definitions.

    Dagster's daemon asks for them every minute, and those of 1,000 topics take 0.6 CPU seconds and
    have 5 MB. With others that it loads, a code server has another id.
    """
    name = "_get_serialized_external_repository_data"
    # of any process but a code server, Dagster has not imported it
    server: Any = getattr(sys.modules.get("dagster._grpc.server"), "DagsterApiServer", None)
    serialize: Callable[[Any, Any], Any] | None = getattr(server, name, None)
    if serialize is None:
        return

    def kept(self: Any, request: Any) -> Any:
        texts = vars(self).setdefault("_relay_definitions", {})
        server_id = getattr(self, "_server_id", None)
        key = server_id, request.serialized_repository_python_origin, request.defer_snapshots
        if (text := texts.get(key)) is None:
            text = serialize(self, request)
            if text.startswith(_DEFINITIONS):  # and no error
                texts[key] = text
        return text

    setattr(server, name, kept)


def _storage(instance: dg.DagsterInstance) -> SqlEventLogStorage | None:
    """Return the storage of events if it is in tables as this module knows them."""
    storage = instance.event_log_storage
    return storage if isinstance(storage, SqlEventLogStorage) and _is_known(type(storage)) else None


@cache
def _is_known(kind: type[SqlEventLogStorage]) -> bool:
    missing = [name for name in _CALLED if not hasattr(kind, name)]
    for table, columns in _TABLES.items():
        known = getattr(getattr(schema, table, None), "c", ())
        missing += [f"{table}.{column}" for column in columns if column not in known]
    if missing:
        logging.getLogger(__name__).warning(
            "%s of this Dagster has no %s: its events are stored one by one, which is slower",
            *(kind.__name__, ", ".join(missing)),
        )
    return not missing


def _entries(context: dg.OpExecutionContext, batch: Batch) -> list[EventLogEntry]:
    """Return the entries that Dagster stores for events that an op yields."""
    step = context.get_step_execution_context()
    entries: list[EventLogEntry] = []

    def keep(level: int, msg: str, dagster_event: DagsterEvent, **_: object) -> None:
        entry = EventLogEntry(  # type: ignore[no-untyped-call]
            error_info=None,
            level=level,
            user_message=msg,
            run_id=context.run_id,
            timestamp=get_current_timestamp(),
            step_key=step.step.key,
            job_name=step.job_name,
            dagster_event=dagster_event,
        )
        entries.append(entry)

    # Dagster's functions give an event to the log of its step, which prints and stores it
    silent: Any = SimpleNamespace(
        job_name=step.job_name,
        step=step.step,
        event_tags=step.event_tags,
        log=SimpleNamespace(log_dagster_event=keep),
    )
    for event in batch:
        if isinstance(event, dg.AssetMaterialization):
            DagsterEvent.asset_materialization(silent, event)
        else:
            DagsterEvent.asset_check_evaluation(silent, event)
    return entries


def _transactions(entries: Sequence[EventLogEntry]) -> Iterator[Sequence[EventLogEntry]]:
    """Divide events among transactions; a materialization stays with what follows it."""
    begin = 0
    for number in range(1, len(entries)):
        if number - begin >= _TOGETHER and not entries[number - 1].asset_materialization:
            yield entries[begin:number]
            begin = number
    if entries:
        yield entries[begin:]


def _store(storage: SqlEventLogStorage, entries: Sequence[EventLogEntry]) -> None:
    rows = [storage._event_to_row(entry) for entry in entries]  # noqa: SLF001 - see _CALLED
    # readers go on after the greatest id that they see, and miss a smaller one that comes later: in
    # PostgreSQL, where others write while a transaction is open, this commits at once
    with storage.run_connection(entries[0].run_id) as connection:
        ids = _inserted(connection, rows)
    with storage.index_transaction() as connection:
        if storage.is_run_sharded:  # SQLite has a file for each run, and one with what pages read
            ids = _inserted(connection, rows)
        for entry, row, event_id in zip(entries, rows, ids, strict=True):
            if evaluation := entry.asset_check_evaluation:
                _store_evaluation(connection, evaluation, row, event_id)
            else:
                storage._store_asset_event_tags(connection, [entry], [event_id])  # noqa: SLF001
                storage._store_asset_event(connection, entry, event_id)  # noqa: SLF001


def _inserted(
    connection: sqlalchemy.Connection, rows: Sequence[Mapping[str, Any]]
) -> Sequence[int]:
    """Insert events, and return their ids."""
    events = schema.SqlEventLogStorageTable
    if connection.dialect.insert_executemany_returning_sort_by_parameter_order:
        insert = events.insert().returning(events.c.id, sort_by_parameter_order=True)
        return connection.execute(insert, rows).scalars().all()
    inserted = (connection.execute(events.insert(), row).inserted_primary_key for row in rows)
    return [int(key[0]) for key in inserted if key]


def _store_evaluation(
    connection: sqlalchemy.Connection,
    evaluation: dg.AssetCheckEvaluation,
    row: Mapping[str, Any],
    event_id: int,
) -> None:
    """Say what state a check is in; what a run says again replaces what it has said."""
    evaluations = schema.AssetCheckExecutionsTable
    key = {
        "asset_key": evaluation.asset_key.to_string(),
        "check_name": evaluation.check_name,
        "run_id": row["run_id"],
        "partition": evaluation.partition,
    }
    values = {
        "execution_status": "SUCCEEDED" if evaluation.passed else "FAILED",
        "evaluation_event": row["event"],
        "evaluation_event_timestamp": row["timestamp"],
        "evaluation_event_storage_id": event_id,
    }
    again = evaluations.update().where(*(evaluations.c[name] == key[name] for name in key))
    if not connection.execute(again, values).rowcount:
        connection.execute(evaluations.insert(), key | values)


def _parts(values: Sequence[str]) -> Iterator[Sequence[str]]:
    """Yield values in parts that fit into a statement."""
    return (values[begin : begin + _VALUES] for begin in range(0, len(values), _VALUES))
