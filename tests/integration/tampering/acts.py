"""What the rows of the tamper matrix do: each function returns an action or an edit of a log."""

import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from hashlib import sha256
from typing import Any

from confluent_kafka.admin import ResourceType
from crc32c import crc32c

from relay_pipelines.ledger import checkpoint, ledger_topic
from relay_pipelines.model import TopicPartition
from tests.copying import opened
from tests.integration.tampering.stage import COUNT, ROUNDS, Action, Row, Stage, numbered, plain
from tests.support import independent
from tests.support.independent import Record
from tests.support.segments import ABORT, APPEND_TIME, LogBatch, LogRecord

HOUR_MS = 3_600_000


def both(*actions: Action) -> Action:
    """Do several things."""

    def act(stage: Stage, row: Row) -> None:
        for action in actions:
            action(stage, row)

    return act


# records at the destination, while its broker runs


def append(records: Sequence[Record], *, partition: int = 0) -> Action:
    """Produce records to the destination topic."""
    return lambda stage, row: independent.write(
        stage.destination, TopicPartition(row.copies.topic, partition), records
    )


def open_transaction(stage: Stage, row: Row) -> None:
    records, long = numbered(900, 1), 900_000
    sender = opened(stage.destination, row.copies, records, transaction_timeout_ms=long)
    stage.open.append(sender)


def delete_before(round_number: int) -> Action:
    """Delete the copies before those of a round, as retention does; 3 for all."""

    def act(stage: Stage, row: Row) -> None:
        end = independent.settled_end(stage.destination, row.copies)
        offset = min(end, round_number * (COUNT + 1))
        independent.delete_before(stage.destination, row.copies, offset)

    return act


def configure(**config: object) -> Action:
    """Change the configuration of the destination topic."""
    return lambda stage, row: independent.configure(
        stage.destination, ResourceType.TOPIC, row.copies.topic, **config
    )


def delete(stage: Stage, row: Row) -> None:
    independent.delete(stage.destination, row.copies.topic)


def recreate(*rounds: Sequence[Record]) -> Action:
    """Delete the destination topic, create it again, and write rounds in the same layout."""

    def act(stage: Stage, row: Row) -> None:
        delete(stage, row)
        independent.create(stage.destination, row.copies.topic)
        sender = independent.transactional(stage.destination, f"{row.name}-again")
        for records in rounds:  # of one producer, as the copies were
            sender.begin_transaction()
            independent.put(sender, row.copies, records)
            assert sender.flush(30) == 0
            sender.commit_transaction(30)
        independent.settled_end(stage.destination, row.copies)

    return act


# the source


def delete_source(stage: Stage, row: Row) -> None:
    independent.delete(stage.source, row.name)


def recreate_source(*rounds: Sequence[Record]) -> Action:
    """Delete the source topic, create it again, and write."""

    def act(stage: Stage, row: Row) -> None:
        delete_source(stage, row)
        independent.create(stage.source, row.name)
        independent.write(stage.source, row.at, *rounds)

    return act


def trim_source(round_number: int) -> Action:
    """Delete the source's records before those of a round, as retention does."""
    return lambda stage, row: independent.delete_before(stage.source, row.at, round_number * COUNT)


# logs at the destination, while its broker is stopped


def edit(change: Callable[[list[LogBatch]], list[LogBatch]]) -> Action:
    """Change the log with the copies."""
    return lambda stage, row: stage.edit(row.copies, change)


def _copy_of(source_offset: int) -> int:
    """The offset of a copy: every round ends with a marker."""
    return source_offset + source_offset // COUNT


def _map(batches: list[LogBatch], change: Callable[[LogBatch], LogBatch]) -> list[LogBatch]:
    return [batch if batch.is_control else change(batch) for batch in batches]


def change_record(source_offset: int, **fields: Any) -> Action:
    """Change fields of one copy; a callable gets the field as it was."""
    at = _copy_of(source_offset)

    def changed(record: LogRecord) -> LogRecord:
        new = {
            name: value(getattr(record, name)) if callable(value) else value
            for name, value in fields.items()
        }
        return replace(record, **new)

    def change(batch: LogBatch) -> LogBatch:
        records = tuple(
            changed(record) if batch.offset(record) == at else record for record in batch.records
        )
        return replace(batch, records=records)

    return edit(lambda batches: _map(batches, change))


def change_unseen(source_offset: int) -> Action:
    """Change five bytes of a value so that the CRC-32C of the batch stays what it is."""
    return change_record(source_offset, value=_with_same_crc)


def _with_same_crc(value: bytes) -> bytes:
    # the CRC is linear: of forty bits that may change, 32 bits of the CRC leave eight free
    basis: dict[int, tuple[int, int]] = {}
    for bit in range(40):
        bits = 1 << bit
        crc = crc32c(bits.to_bytes(5, "little")) ^ crc32c(bytes(5))
        while crc:
            high = crc.bit_length()
            if high not in basis:
                basis[high] = crc, bits
                break
            crc, bits = crc ^ basis[high][0], bits ^ basis[high][1]
        else:
            changed = int.from_bytes(value[:5], "little") ^ bits
            return changed.to_bytes(5, "little") + value[5:]
    raise AssertionError


def remove_record(source_offset: int) -> Action:
    """Take one copy out of its batch, as the cleaner does."""
    at = _copy_of(source_offset)

    def change(batch: LogBatch) -> LogBatch:
        kept = tuple(record for record in batch.records if batch.offset(record) != at)
        return replace(batch, records=kept)

    return edit(lambda batches: _map(batches, change))


def swap_records(one: int, other: int) -> Action:
    """Swap the contents of two copies in one batch."""
    places = _copy_of(one), _copy_of(other)

    def change(batch: LogBatch) -> LogBatch:
        found = {batch.offset(record): record for record in batch.records}
        if not found.keys() >= set(places):
            return batch
        first, second = (found[at] for at in places)
        found[places[0]] = replace(second, offset_delta=first.offset_delta)
        found[places[1]] = replace(first, offset_delta=second.offset_delta)
        return replace(batch, records=tuple(found[at] for at in sorted(found)))

    return edit(lambda batches: _map(batches, change))


def _data(batches: list[LogBatch]) -> list[int]:
    return [index for index, batch in enumerate(batches) if not batch.is_control]


def swap_rounds(batches: list[LogBatch]) -> list[LogBatch]:
    """Swap the contents of the first two rounds."""
    first, second = _data(batches)[:2]
    one, other = batches[first], batches[second]
    content = ("attributes", "base_timestamp_ms", "max_timestamp_ms", "records", "body", "count")
    swapped = list(batches)
    swapped[first] = replace(one, **{name: getattr(other, name) for name in content})
    swapped[second] = replace(other, **{name: getattr(one, name) for name in content})
    return swapped


def remove_round(batches: list[LogBatch]) -> list[LogBatch]:
    second = _data(batches)[1]
    return [batch for index, batch in enumerate(batches) if index != second]


def later(batches: list[LogBatch]) -> list[LogBatch]:
    """Make all records an hour younger, by the headers of their batches alone."""
    return _map(
        batches,
        lambda batch: replace(
            batch,
            base_timestamp_ms=batch.base_timestamp_ms + HOUR_MS,
            max_timestamp_ms=batch.max_timestamp_ms + HOUR_MS,
        ),
    )


def at_one_time(batches: list[LogBatch]) -> list[LogBatch]:
    """Say that the broker has set the times, an hour later."""
    return _map(
        batches,
        lambda batch: replace(
            batch,
            attributes=batch.attributes | APPEND_TIME,
            max_timestamp_ms=batch.max_timestamp_ms + HOUR_MS,
        ),
    )


def compressed(batches: list[LogBatch]) -> list[LogBatch]:
    return _map(batches, LogBatch.compressed)


def compressed_and_changed(batches: list[LogBatch]) -> list[LogBatch]:
    """Compress the batches, after a value in each was changed."""

    def change(batch: LogBatch) -> LogBatch:
        first, *rest = batch.records
        return replace(batch, records=(replace(first, value=b"forged"), *rest)).compressed()

    return _map(batches, change)


def replaced_keyless(batches: list[LogBatch]) -> list[LogBatch]:
    """Replace the records of each batch by half as many others."""

    def change(batch: LogBatch) -> LogBatch:
        records = tuple(replace(record, value=b"forged") for record in batch.records[::2])
        return replace(batch, records=records)

    return _map(batches, change)


def abort_round(batches: list[LogBatch]) -> list[LogBatch]:
    """Turn the marker that commits the second round into one that aborts it."""
    markers = [index for index, batch in enumerate(batches) if batch.is_control]
    marker = batches[markers[1]]
    (record,) = marker.records
    changed = list(batches)
    changed[markers[1]] = replace(marker, records=(replace(record, key=ABORT),))
    return changed


# the ledger


def edit_state(topic: str, change: Callable[[dict[str, Any]], dict[str, Any] | None]) -> Action:
    """Change or remove records of a row in a state topic, where they lie."""

    def act(stage: Stage, row: Row) -> None:
        key = checkpoint.key_of(row.mirror, row.at)

        def changed(record: LogRecord) -> LogRecord | None:
            if record.key != key:
                return record
            new = change(json.loads(record.value or b""))
            return None if new is None else replace(record, value=_json(new))

        def of_batch(batch: LogBatch) -> LogBatch:
            records = tuple(filter(None, map(changed, batch.records)))
            return replace(batch, records=records)

        def of_log(batches: list[LogBatch]) -> list[LogBatch]:
            readable = [batch.decompressed() for batch in batches]
            return [batch for batch in _map(readable, of_batch) if batch.records]

        stage.edit(checkpoint.home(topic, key), of_log)

    return act


def _json(value: dict[str, Any]) -> bytes:
    return json.dumps(value, separators=(",", ":")).encode()


def remove_entries(*numbers: int) -> Action:
    return edit_state(
        ledger_topic.TOPIC, lambda entry: None if entry["number"] in numbers else entry
    )


def change_entry(number: int, **fields: Any) -> Action:
    """Change fields of a ledger entry; a callable gets the field as it was."""

    def change(entry: dict[str, Any]) -> dict[str, Any]:
        if entry["number"] != number:
            return entry
        new = {
            name: value(entry[name]) if callable(value) else value for name, value in fields.items()
        }
        return entry | new

    return edit_state(ledger_topic.TOPIC, change)


def swap_entries(one: int, other: int) -> Action:

    def act(stage: Stage, row: Row) -> None:
        entries = {entry["number"]: entry for entry in entries_of(stage, row)}
        places = {one: entries[other], other: entries[one]}
        swap = edit_state(ledger_topic.TOPIC, lambda entry: places.get(entry["number"], entry))
        swap(stage, row)

    return act


_entries: dict[str, list[dict[str, Any]]] = {}


def entries_of(stage: Stage, row: Row) -> list[dict[str, Any]]:
    """The ledger entries of a row, as they were when they were read first."""
    if row.name not in _entries:
        found = stage.state(ledger_topic.TOPIC, row.mirror, row.at)
        _entries[row.name] = [json.loads(record.value or b"") for _, record in found]
    return _entries[row.name]


def remember(stage: Stage, row: Row) -> None:
    """Read the ledger entries of a row while the broker runs."""
    entries_of(stage, row)


def forge_entry(mirror: str = "", topic: str = "", **fields: Any) -> Action:
    """Append an entry like the last one, of records after the copies; {…}: the row's own name."""

    def act(stage: Stage, row: Row) -> None:
        entry = dict(entries_of(stage, row)[-1])
        end = independent.settled_end(stage.destination, row.copies)
        at = TopicPartition(topic.format(topic=row.name) or row.name, 0)
        name = mirror.format(mirror=row.mirror) or row.mirror
        source = {"topic_partition": {"topic": at.topic, "partition": 0}}
        begin = entry["source"]["end"] if at == row.at else 0
        start = entry["destination"]["end"] + 1
        entry |= {
            "mirror": name,
            "source": source | {"start": begin, "end": begin + end - start},
            "destination": entry["destination"] | {"start": start, "end": end},
            "records": end - start,
        } | fields
        stage.put_state(ledger_topic.TOPIC, checkpoint.key_of(name, at), _json(entry))

    return act


def repeat_entry(number: int) -> Action:
    """Append a ledger entry once more."""

    def act(stage: Stage, row: Row) -> None:
        (value,) = [
            record.value
            for _, record in stage.state(ledger_topic.TOPIC, row.mirror, row.at)
            if json.loads(record.value or b"")["number"] == number
        ]
        stage.put_state(ledger_topic.TOPIC, checkpoint.key_of(row.mirror, row.at), value)

    return act


def put_entry(value: bytes) -> Action:
    """Append any value as a ledger entry of the row."""
    return lambda stage, row: stage.put_state(
        ledger_topic.TOPIC, checkpoint.key_of(row.mirror, row.at), value
    )


def entry_of_another_mirror(stage: Stage, row: Row) -> None:
    """Append the last entry of another mirror of the same topic under this one's name."""
    last = entries_of(stage, row)[-1]
    begin, end = last["source"]["end"], last["source"]["end"] + COUNT
    other = last | {
        "mirror": row.mirror,
        "previous": sha256(b"of another mirror").hexdigest(),
        "source": last["source"] | {"start": begin, "end": end},
        "number": len(ROUNDS) + 1,
    }
    stage.put_state(ledger_topic.TOPIC, checkpoint.key_of(row.mirror, row.at), _json(other))


def match_state(number: int) -> Action:
    """Make entry, chain and checkpoint match the copies of a round, as they are now."""

    def act(stage: Stage, row: Row) -> None:
        hashes: dict[int, str] = {}

        def entry_of(entry: dict[str, Any]) -> dict[str, Any]:
            if entry["number"] == number:
                entry |= {"digest": stage.digest(row.copies, number - 1)}
            elif entry["number"] > number:
                entry |= {"previous": hashes[entry["number"] - 1]}
            hashes[entry["number"]] = sha256(_json(entry)).hexdigest()
            return entry

        def checkpoint_of(found: dict[str, Any]) -> dict[str, Any]:
            head = found.get("ledger_head")
            if head and head["number"] in hashes:
                found["ledger_head"] = head | {"hash": hashes[head["number"]]}
            return found

        edit_state(ledger_topic.TOPIC, entry_of)(stage, row)
        edit_state(checkpoint.TOPIC, checkpoint_of)(stage, row)

    return act


# checkpoints


def checkpoint_back(rounds: int) -> Action:
    """Produce the checkpoint of an earlier round again."""

    def act(stage: Stage, row: Row) -> None:
        found = [record.value for _, record in stage.state(checkpoint.TOPIC, row.mirror, row.at)]
        key = checkpoint.key_of(row.mirror, row.at)
        stage.put_state(checkpoint.TOPIC, key, found[-1 - rounds])

    return act


def checkpoint_tombstone(stage: Stage, row: Row) -> None:
    key = checkpoint.key_of(row.mirror, row.at)
    stage.put_state(checkpoint.TOPIC, key, None)


def checkpoint_forged(**fields: Any) -> Action:
    """Produce the checkpoint with other fields; a callable gets the field as it was."""

    def act(stage: Stage, row: Row) -> None:
        _, last = stage.state(checkpoint.TOPIC, row.mirror, row.at)[-1]
        value = json.loads(last.value or b"")
        value |= {name: new(value[name]) if callable(new) else new for name, new in fields.items()}
        key = checkpoint.key_of(row.mirror, row.at)
        stage.put_state(checkpoint.TOPIC, key, _json(value))

    return act


# whole state topics


def state_deleted(*topics: str, again: bool = False) -> Action:
    """Delete state topics, and perhaps create them again, empty."""

    def act(stage: Stage, row: Row) -> None:
        del row
        for topic in topics:
            independent.delete(stage.destination, topic)
            if again:
                stage.restore(topic, [[] for _ in checkpoint.homes(topic)])

    return act


def checkpoints_restored(stage: Stage, row: Row) -> None:
    """Restore a backup of the checkpoints from before the last round."""
    del row
    older = [list(_without_last(records)) for records in stage.kept[checkpoint.TOPIC]]
    stage.restore(checkpoint.TOPIC, older)


def _without_last(records: Sequence[Record]) -> Iterator[Record]:
    """Leave out the last checkpoint of every source topic-partition."""
    last = {record.key: index for index, record in enumerate(records)}
    for index, record in enumerate(records):
        is_checkpoint = b'"ledger_head"' in (record.value or b"")
        if index != last[record.key] or not is_checkpoint:
            yield record


def ledger_expired(stage: Stage, row: Row) -> None:
    """Let the ledger keep its entries for a moment, and delete all as retention does."""
    independent.configure(
        stage.destination, ResourceType.TOPIC, ledger_topic.TOPIC, retention_ms=1_000
    )
    home = checkpoint.home(ledger_topic.TOPIC, checkpoint.key_of(row.mirror, row.at))
    end = independent.settled_end(stage.destination, home)
    independent.delete_before(stage.destination, home, end)


def more_at_the_source(stage: Stage, row: Row) -> None:
    """Write a round that is not copied."""
    independent.write(stage.source, row.at, plain(len(ROUNDS)))


def grow_destination(stage: Stage, row: Row) -> None:
    """Give the destination topic a second partition."""
    independent.grow(stage.destination, row.copies.topic, 2)
