"""The tamperings, and what each column must make of them.

The letters of a row stand for the columns, in the order of `views.COLUMNS`: audits at the levels
ledger, recount, full (both clients), sample (both clients); `--against` a statement; exporter;
window check. D: a difference is found. N: the column says that it could not verify it. A dot: it
passes.
"""

from typing import Any

from relay_pipelines.ledger import checkpoint, ledger_topic
from tests.integration.tampering import acts
from tests.integration.tampering.acts import (
    HOUR_MS,
    append,
    both,
    change_record,
    checkpoint_forged,
    configure,
    delete_before,
    edit,
    forge_entry,
    recreate,
    recreate_source,
    remove_record,
)
from tests.integration.tampering.stage import BASE_MS, COUNT, ROUNDS, Row, large, numbered, plain
from tests.support.independent import CREATE_TIME, Record

MIDDLE = 15
"""A source offset in the second round; its key comes again later."""
FIRST = 1
"""The source offset of the first record with the key of `MIDDLE`."""
LAST = 29
"""The last source offset; its key does not come again."""
FORGED = numbered(900, 3)
CHANGED = change_record(MIDDLE, value=b"0000001!............")


def tampered(what: str, expect: str, **more: Any) -> Row:
    """A row; its topic has the name that is in front."""
    name, _, done = what.partition(": ")
    return Row(f"tampered.{name}", done, expect.replace(" ", ""), **more)


def in_copies(what: str, **more: Any) -> Row:
    """A row that every column finds which compares the copies."""
    return tampered(what, ". DDD D.D", **more)


def in_proofs(what: str, **more: Any) -> Row:
    """A row that the ledger's own audit finds, too."""
    return tampered(what, "D DDD D.D", **more)


def everywhere(what: str, **more: Any) -> Row:
    """A row that every column finds."""
    return tampered(what, "D DDD D D D", **more)


def keyless(number: int) -> list[Record]:
    """Records without a key."""
    return [record._replace(key=None) for record in plain(number)]


def aged(number: int) -> list[Record]:
    """Records of which those of the first round are two hours old."""
    records = plain(number)
    if number:
        return records
    old = BASE_MS - 2 * HOUR_MS
    return [record._replace(timestamp=(CREATE_TIME, old)) for record in records]


def others(number: int) -> list[Record]:
    """Other records than `plain`, with the same keys, times and sizes."""
    return [record._replace(value=b"forged..".ljust(20, b".")) for record in plain(number)]


PLAIN = [plain(number) for number in ROUNDS]
OTHERS = [others(number) for number in ROUNDS]

RECORDS = [
    tampered("appended: records appended after the copies", ". DD. D.D", after=append(FORGED)),
    tampered(
        "elsewhere: records written to a partition of the destination topic that has no copies",
        ". DD. ...",
        after=both(acts.grow_destination, append(FORGED, partition=1)),
    ),
    tampered(
        "inserted: records written between two rounds of copies",
        ". DD. D.D",
        between=append(FORGED),
    ),
    in_copies("value: a value changed", offline=CHANGED),
    in_copies(
        "value-verbatim: a value changed in a batch that was copied byte for byte",
        records=large,
        offline=change_record(MIDDLE, value=lambda value: value[:-1] + b"!"),
    ),
    in_copies("key: a key changed", offline=change_record(MIDDLE, key=b"kX")),
    in_copies("key-null: a key set to null", offline=change_record(MIDDLE, key=None)),
    in_copies("tombstone: a value set to null", offline=change_record(MIDDLE, value=None)),
    in_copies("header: a header changed", offline=change_record(MIDDLE, headers=((b"n", b"99"),))),
    in_copies("header-removed: a header removed", offline=change_record(MIDDLE, headers=())),
    in_copies(
        "timestamp: the timestamp of one record changed",
        offline=change_record(MIDDLE, timestamp_delta=lambda delta: delta + 1),
    ),
    in_copies(
        "timestamps: all records made an hour younger by the headers of their batches",
        offline=edit(acts.later),
    ),
    in_copies(
        "timestamps-verbatim: the same in batches that were copied byte for byte",
        records=large,
        offline=edit(acts.later),
    ),
    tampered(
        "append-time: batches marked as if the broker had set their times, an hour later",
        ". NNN N . .",
        offline=edit(acts.at_one_time),
    ),
    in_copies("order: two records swapped", offline=acts.swap_records(15, 16)),
    in_copies("rounds-swapped: two batches swapped", offline=edit(acts.swap_rounds)),
    in_copies(
        "removed: a record removed from its batch, as compaction does, in a topic that "
        "is not compacted",
        offline=remove_record(MIDDLE),
    ),
    in_copies("batch-removed: a batch removed", offline=edit(acts.remove_round)),
    in_copies(
        "repeated: a record replaced by the one before it",
        offline=change_record(
            MIDDLE,
            key=PLAIN[1][4].key,
            value=PLAIN[1][4].value,
            headers=((b"n", b"14"),),
            timestamp_delta=4 * 13,
        ),
    ),
    in_copies(
        "aborted: the marker that commits a transaction changed into one that aborts it",
        offline=edit(acts.abort_round),
    ),
    tampered(
        "open-transaction: a transaction left open after the copies, which hides what comes later",
        ". ... . D .",
        then=acts.open_transaction,
    ),
]

TOPICS = [
    everywhere("topic-deleted: topic deleted", after=acts.delete),
    everywhere(
        "topic-recreated: topic deleted and made again with the same records at the same offsets",
        after=recreate(*PLAIN),
    ),
    everywhere(
        "topic-replaced: topic deleted and made again with other records at the same offsets",
        after=recreate(*OTHERS),
    ),
    everywhere(
        "topic-shifted: topic deleted and made again with the same records at other offsets",
        after=recreate(numbered(900, 1), *PLAIN),
    ),
    everywhere("topic-emptied: topic deleted and made again empty", after=recreate()),
    in_copies(
        "beginning-kept: the first copies deleted, in a topic that keeps everything",
        config={"retention.ms": "-1"},
        after=delete_before(1),
    ),
    in_copies(
        "beginning: the first copies deleted, which are younger than the topic's retention",
        after=delete_before(1),
    ),
    in_copies(
        "all-deleted: all copies deleted, which are younger than the topic's retention",
        after=delete_before(3),
    ),
    tampered(
        "retention-before: `retention.ms` set to an hour, and the first copies deleted, "
        "which are older",
        ". DDD N D D",
        records=aged,
        after=both(configure(retention_ms=HOUR_MS), delete_before(1)),
    ),
    tampered(
        "retention-value: a value changed, and `retention.ms` set to a minute",
        ". DDD D D D",
        after=configure(retention_ms=60_000),
        offline=CHANGED,
    ),
    tampered(
        "compact-keyless: records without keys replaced, and `cleanup.policy=compact` set",
        ". DDD N D D",
        records=keyless,
        after=configure(cleanup_policy="compact"),
        offline=edit(acts.replaced_keyless),
    ),
    tampered(
        "compact-value: a value changed that a later record of its key replaces, and "
        "`cleanup.policy=compact` set",
        ". DDD D D D",
        after=configure(cleanup_policy="compact"),
        offline=CHANGED,
    ),
    tampered(
        "compact-last: the last value of a key changed, and `cleanup.policy=compact` set",
        ". DDD D D D",
        after=configure(cleanup_policy="compact"),
        offline=change_record(LAST, value=b"0000002!............"),
    ),
    tampered(
        "compact-removed: the last record of a key removed, and `cleanup.policy=compact` set",
        ". DDD N D D",
        after=configure(cleanup_policy="compact"),
        offline=remove_record(LAST),
    ),
    tampered(
        "compact-earlier: the first record of a key removed, and `cleanup.policy=compact` set",
        ". DDD N D D",
        after=configure(cleanup_policy="compact"),
        offline=remove_record(FIRST),
    ),
    tampered(
        "compact-hole: a record removed between others of its key, and "
        "`cleanup.policy=compact` set",
        ". DDD N D D",
        after=configure(cleanup_policy="compact"),
        offline=remove_record(MIDDLE),
    ),
    tampered(
        "codec-value: a value changed, and `compression.type=zstd` set",
        ". DDD D D D",
        after=configure(compression_type="zstd"),
        offline=CHANGED,
    ),
    tampered(
        "codec: batches compressed, with the same records",
        ". N.. N . N",
        offline=edit(acts.compressed),
    ),
    tampered(
        "codec-set-value: batches compressed with a changed value, and `compression.type=gzip` set",
        ". NDD N D N",
        after=configure(compression_type="gzip"),
        offline=edit(acts.compressed_and_changed),
    ),
    tampered(
        "timestamp-type: batches marked with the broker's time, and "
        "`message.timestamp.type=LogAppendTime` set",
        ". NNN N . .",
        after=configure(message_timestamp_type="LogAppendTime"),
        offline=edit(acts.at_one_time),
    ),
]

SOURCE = [
    tampered("source-deleted: source topic deleted", ". .NN . D .", after=acts.delete_source),
    tampered(
        "source-shorter: source topic deleted and made again, shorter",
        ". .NN . D N",
        after=recreate_source(plain(0)),
    ),
    tampered(
        "source-longer: source topic deleted and made again with other records, longer",
        ". .NN . D N",
        after=recreate_source(*OTHERS, FORGED),
    ),
]

LEDGER = [
    in_proofs("entry-removed: a ledger entry removed", offline=acts.remove_entries(2)),
    in_proofs(
        "entry-last-removed: the newest ledger entry removed", offline=acts.remove_entries(3)
    ),
    in_proofs(
        "entry-first-removed: the oldest ledger entry removed", offline=acts.remove_entries(1)
    ),
    in_proofs("entries-removed: all ledger entries removed", offline=acts.remove_entries(1, 2, 3)),
    in_proofs(
        "entry-changed: the digest in a ledger entry changed",
        offline=acts.change_entry(2, digest="00000000"),
    ),
    in_proofs(
        "entry-moved: the destination offsets in a ledger entry changed",
        offline=acts.change_entry(2, destination=lambda there: there | {"start": 22, "end": 32}),
    ),
    in_proofs(
        "entry-matched: a value changed, and the digest in its ledger entry removed",
        offline=both(CHANGED, acts.change_entry(2, digest="")),
    ),
    tampered(
        "all-matched: a value changed, and ledger entries and checkpoint made to match",
        ". .DD D . .",
        offline=both(CHANGED, acts.match_state(2)),
    ),
    tampered(
        "entries-swapped: two ledger entries swapped",
        "D DDD D . .",
        after=acts.remember,
        offline=acts.swap_entries(1, 2),
    ),
    in_proofs("entry-repeated: a ledger entry appended once more", after=acts.repeat_entry(2)),
    everywhere(
        "entry-forged: records appended, and a ledger entry of the mirror for them",
        after=both(append(FORGED), forge_entry(number=4)),
    ),
    everywhere(
        "entry-old: records appended, and an entry for them with neither number nor link",
        mirror="older",
        after=both(append(FORGED), forge_entry(number=0, previous="", previous_at_ms=0)),
    ),
    in_proofs(
        "entry-of-a-replay: records appended, and an entry for them of a replay that never was",
        after=both(
            append(FORGED),
            forge_entry("{mirror}.replay@x", number=1, previous="start", previous_at_ms=0),
        ),
    ),
    in_proofs(
        "entry-never-copied: records appended, and an entry for them of a topic that was "
        "never copied",
        after=both(
            append(FORGED),
            forge_entry(topic="{topic}.x", number=1, previous="start", previous_at_ms=0),
        ),
        topics=("tampered.entry-never-copied.x",),
    ),
    tampered(
        "entry-of-another: a ledger entry copied from another mirror",
        "D DDD D . .",
        after=acts.entry_of_another_mirror,
    ),
    tampered(
        "entry-malformed: a ledger entry that is no entry",
        "D DDD D . D",
        mirror="malformed",
        after=acts.put_entry(b"no entry"),
    ),
]

CHECKPOINTS = [
    everywhere(
        "checkpoint-back: an older checkpoint produced again", after=acts.checkpoint_back(1)
    ),
    tampered(
        "checkpoint-tombstone: a tombstone written for the checkpoint: the one before it "
        "counts until the cleaner comes",
        ". ... ...",
        after=acts.checkpoint_tombstone,
    ),
    everywhere(
        "checkpoint-removed: the checkpoint removed, as after a tombstone and the cleaner",
        offline=acts.edit_state(checkpoint.TOPIC, lambda _: None),
    ),
    tampered(
        "checkpoint-ahead: a checkpoint forged beyond the end of the source",
        "D DDD D D N",
        after=checkpoint_forged(next_offset=1_000),
    ),
    tampered(
        "checkpoint-skips: a checkpoint forged to skip records",
        "D DDD D . .",
        after=both(
            acts.more_at_the_source, checkpoint_forged(next_offset=(len(ROUNDS) + 1) * COUNT)
        ),
    ),
    tampered(
        "checkpoint-head: the hash of the newest entry in the checkpoint changed",
        "D DDD D . D",
        after=checkpoint_forged(ledger_head=lambda head: head | {"hash": "0" * 64}),
    ),
    tampered(
        "checkpoint-number: the newest ledger entry removed, and the checkpoint before "
        "it produced again",
        ". DD. D D D",
        after=acts.checkpoint_back(1),
        offline=acts.remove_entries(3),
    ),
]

STATE = [
    everywhere(
        "ledger-deleted: `__relay_ledger` deleted",
        mirror="ledger-deleted",
        last=acts.state_deleted(ledger_topic.TOPIC),
    ),
    tampered(
        "ledger-emptied: `__relay_ledger` deleted and made again",
        "D DDD D . D",
        mirror="ledger-emptied",
        last=acts.state_deleted(ledger_topic.TOPIC, again=True),
    ),
    everywhere(
        "checkpoints-restored: an older `__relay_checkpoints` restored",
        mirror="checkpoints-restored",
        last=acts.checkpoints_restored,
    ),
    everywhere(
        "checkpoints-deleted: `__relay_checkpoints` deleted",
        mirror="checkpoints-deleted",
        last=acts.state_deleted(checkpoint.TOPIC),
    ),
    tampered(
        "both-deleted: `__relay_ledger` and `__relay_checkpoints` deleted",
        "N NNN D . .",
        mirror="both-deleted",
        last=acts.state_deleted(ledger_topic.TOPIC, checkpoint.TOPIC),
    ),
]

TAMPERINGS = {
    "Records at the destination": RECORDS,
    "Topics at the destination, and their configuration": TOPICS,
    "The source": SOURCE,
    "The ledger": LEDGER,
    "Checkpoints": CHECKPOINTS,
    "Whole state topics": STATE,
}
