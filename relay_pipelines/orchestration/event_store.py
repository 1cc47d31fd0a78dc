"""Stores the events of a window together, and its keys.

Dagster stores each event of an op by itself: it serializes it three times, prints it, and opens
SQLite three times. A window has two events for each of its topics, so they go straight to the
tables where Dagster keeps them in SQL, over one connection, as `event_deletion` deletes them.
"""

import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

import dagster as dg
import sqlalchemy
from dagster import DagsterEvent, DagsterEventType, EventLogEntry
from dagster._core.events import StepMaterializationData
from dagster._core.storage.event_log import SqlEventLogStorage
from dagster._core.storage.event_log.schema import (
    AssetCheckExecutionsTable as Evaluations,
)
from dagster._core.storage.event_log.schema import (
    AssetKeyTable as Assets,
)
from dagster._core.storage.event_log.schema import (
    DynamicPartitionsTable as Keys,
)
from dagster._core.storage.event_log.schema import (
    SqlEventLogStorageTable as Events,
)
from dagster._time import datetime_from_timestamp, get_current_timestamp
from sqlalchemy import bindparam

Event = dg.AssetMaterialization | dg.AssetCheckEvaluation
Batch = Sequence[Event]
"""Events that are stored together."""

_DEBUG = 10  # the level of events of an op
_VALUES = 500  # of a statement
_AT_ONCE = 20  # events: in milliseconds
_IN_TRANSACTION = 100  # events in SQLite: others wait for it, and fail after 30 s


def store(context: dg.OpExecutionContext, batch: Batch) -> list[DagsterEvent]:
    """Store events of an op; return what the op yields: Dagster stores it no more.

    A materialization and the event after it, which is its check, are stored together in SQLite. A
    storage that is not in SQL gets one after the other.
    """
    if not batch:
        return []
    made = _maker(context)
    entries = [made(event) for event in batch]
    storage = context.instance.event_log_storage
    if isinstance(storage, SqlEventLogStorage):
        _store(storage, entries)
    else:
        for entry in entries:
            context.instance.handle_new_event(entry)
    return [entry.get_dagster_event() for entry in entries]


def stored(context: dg.OpExecutionContext, batches: Iterable[Batch]) -> Iterator[DagsterEvent]:
    """Store batches as they come, and yield what the op yields."""
    for batch in batches:
        yield from store(context, batch)


def add_key(instance: dg.DagsterInstance, names: Sequence[str], key: str) -> None:
    """Add a key to many sets of dynamic partitions at once; those that have it keep it."""
    storage = instance.event_log_storage
    if not isinstance(storage, SqlEventLogStorage):
        for name in names:
            instance.add_dynamic_partitions(name, [key])
        return
    with storage.index_transaction() as connection:
        known: set[str] = set()
        for some in parts(names):
            among = Keys.c.partitions_def_name.in_(some)
            have = sqlalchemy.select(Keys.c.partitions_def_name).where(
                among, Keys.c.partition == key
            )
            known.update(connection.execute(have).scalars())
        rows = [
            {"partitions_def_name": name, "partition": key} for name in names if name not in known
        ]
        if rows:
            connection.execute(Keys.insert(), rows)


def parts(values: Sequence[str]) -> Iterator[Sequence[str]]:
    """Yield values in parts that fit into a statement."""
    return (values[begin : begin + _VALUES] for begin in range(0, len(values), _VALUES))


def _maker(context: dg.OpExecutionContext) -> Callable[[Event], EventLogEntry]:
    """Return what makes the entry of an event, as Dagster does for an event that an op yields."""
    step = context.get_step_execution_context()
    of_step: dict[str, Any] = {
        "job_name": step.job_name,
        "step_handle": step.step.handle,
        "node_handle": step.step.node_handle,
        "step_kind_value": step.step.kind.value,
        "logging_tags": step.event_tags,
        "pid": os.getpid(),
    }

    def made(event: Event) -> EventLogEntry:
        message = _message(event)
        kind, data = _kind(event)
        dagster_event = DagsterEvent(
            event_type_value=kind.value, event_specific_data=data, message=message, **of_step
        )
        return EventLogEntry(  # type: ignore[no-untyped-call]
            error_info=None,
            level=_DEBUG,
            user_message=message,
            run_id=context.run_id,
            timestamp=get_current_timestamp(),
            step_key=step.step.key,
            job_name=step.job_name,
            dagster_event=dagster_event,
        )

    return made


def _kind(
    event: Event,
) -> tuple[DagsterEventType, StepMaterializationData | dg.AssetCheckEvaluation]:
    if isinstance(event, dg.AssetMaterialization):
        return DagsterEventType.ASSET_MATERIALIZATION, StepMaterializationData(event)
    return DagsterEventType.ASSET_CHECK_EVALUATION, event


def _message(event: Event) -> str:
    if isinstance(event, dg.AssetMaterialization):
        return event.description or f"Materialized value {event.label}."
    result = "passed." if event.passed else "did not pass."
    more = f" Description: '{event.description}'" if event.description else ""
    return (
        f"Asset check '{event.check_name}' on '{event.asset_key.to_user_string()}' {result}{more}"
    )


_NEW_STATE = (
    Assets.update()
    .where(Assets.c.asset_key == bindparam("asset"))
    .values(
        last_materialization=bindparam("record"),
        last_run_id=bindparam("run"),
        last_materialization_timestamp=bindparam("at"),
    )
)


def _store(storage: SqlEventLogStorage, entries: Sequence[EventLogEntry]) -> None:
    rows = [storage._event_to_row(entry) for entry in entries]  # noqa: SLF001 - of this version
    if storage.is_run_sharded:  # SQLite has a file for each run, and one with what pages read
        with storage.run_connection(entries[0].run_id) as connection:
            connection.execute(Events.insert(), rows)
        for part in _transactions(entries):
            with storage.index_transaction() as connection:
                event_ids = [_inserted(connection, row) for row in rows[part]]
                _store_states(storage, connection, entries[part], rows[part], event_ids)
        return
    # readers go on after the greatest id that they see, and miss a smaller one that comes later.
    # Here, others write while a transaction is open: a few events at a time are committed at once
    with storage.index_connection() as connection:
        event_ids = list(_inserted_together(connection, rows))
    with storage.index_transaction() as connection:
        _store_states(storage, connection, entries, rows, event_ids)


def _transactions(entries: Sequence[EventLogEntry]) -> Iterator[slice]:
    """Divide events among transactions; a materialization stays with what follows it."""
    begin = 0
    for number in range(1, len(entries)):
        if number - begin >= _IN_TRANSACTION and not entries[number - 1].asset_materialization:
            yield slice(begin, number)
            begin = number
    yield slice(begin, len(entries))


def _inserted(connection: sqlalchemy.Connection, row: Mapping[str, Any]) -> int:
    key = connection.execute(Events.insert(), row).inserted_primary_key
    assert key is not None
    return int(key[0])


def _inserted_together(
    connection: sqlalchemy.Connection, rows: Sequence[Mapping[str, Any]]
) -> Iterator[int]:
    if not connection.dialect.insert_executemany_returning_sort_by_parameter_order:
        yield from (_inserted(connection, row) for row in rows)
        return
    insert = Events.insert().returning(Events.c.id, sort_by_parameter_order=True)
    for begin in range(0, len(rows), _AT_ONCE):
        yield from connection.execute(insert, rows[begin : begin + _AT_ONCE]).scalars()


def _store_states(
    storage: SqlEventLogStorage,
    connection: sqlalchemy.Connection,
    entries: Sequence[EventLogEntry],
    rows: Sequence[Mapping[str, Any]],
    event_ids: Sequence[int],
) -> None:
    """Say what pages show: the last materialization of assets, the last result of checks."""
    for entry, row, event_id in zip(entries, rows, event_ids, strict=True):
        evaluation = entry.asset_check_evaluation
        if evaluation is None:
            _store_state(storage, connection, entry, row, event_id)
        else:
            _store_evaluation(connection, evaluation, row, event_id)


def _store_state(
    storage: SqlEventLogStorage,
    connection: sqlalchemy.Connection,
    entry: EventLogEntry,
    row: Mapping[str, Any],
    event_id: int,
) -> None:
    """Say what the last materialization of an asset is."""
    text = row["event"]
    changed = connection.execute(
        _NEW_STATE,
        {
            "asset": row["asset_key"],
            # as Dagster serializes it, without doing that again
            "record": f'{{"__class__": "EventLogRecord", "event_log_entry": {text},'
            f' "storage_id": {event_id}}}',
            "run": entry.run_id,
            "at": datetime_from_timestamp(entry.timestamp),
        },
    )
    if not changed.rowcount:  # its first one; databases differ in how two may write it at once
        storage._store_asset_event(connection, entry, event_id)  # noqa: SLF001 - of this version


_SAME_EVALUATION = sqlalchemy.and_(
    Evaluations.c.asset_key == bindparam("of_asset"),
    Evaluations.c.check_name == bindparam("of_check"),
    Evaluations.c.run_id == bindparam("of_run"),
)
_EVALUATED_AGAIN = {
    True: Evaluations.update().where(
        _SAME_EVALUATION, Evaluations.c.partition == bindparam("of_partition")
    ),
    False: Evaluations.update().where(_SAME_EVALUATION, Evaluations.c.partition.is_(None)),
}
"""What a run has said of the same partition, or of the whole asset."""


def _store_evaluation(
    connection: sqlalchemy.Connection,
    evaluation: dg.AssetCheckEvaluation,
    row: Mapping[str, Any],
    event_id: int,
) -> None:
    """Say what state a check is in."""
    values = {
        "execution_status": "SUCCEEDED" if evaluation.passed else "FAILED",
        "evaluation_event": row["event"],
        "evaluation_event_timestamp": row["timestamp"],
        "evaluation_event_storage_id": event_id,
    }
    asset = evaluation.asset_key.to_string()
    where = {
        "of_asset": asset,
        "of_check": evaluation.check_name,
        "of_run": row["run_id"],
    }
    if evaluation.partition is not None:
        where["of_partition"] = evaluation.partition
    again = _EVALUATED_AGAIN[evaluation.partition is not None]
    if not connection.execute(again, where | values).rowcount:
        key = {
            "asset_key": asset,
            "check_name": evaluation.check_name,
            "run_id": row["run_id"],
            "partition": evaluation.partition,
        }
        connection.execute(Evaluations.insert(), key | values)
