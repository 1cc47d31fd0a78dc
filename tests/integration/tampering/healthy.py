"""Changes of healthy life, none of which may raise an alarm.

The letters are those of `tamperings`; no row has a D. N: a column says what it could not verify.
"""

from functools import partial
from typing import Any

from confluent_kafka.admin import ResourceType

from relay_pipelines.model import Cluster, TopicPartition
from relay_pipelines.prepare.owners import set_quarantine
from relay_pipelines.recovery import reset
from relay_pipelines.recovery.reset import ResetTo
from relay_pipelines.replay.replay import plan_replay, start_replay
from relay_pipelines.replay.request import ReplayRequest
from relay_pipelines.run.run import run
from relay_pipelines.settings import load
from relay_pipelines.sides import Sides
from relay_pipelines.snapshot import read_clusters
from tests.copying import write_transaction
from tests.integration.tampering.acts import HOUR_MS, delete_before, ledger_expired, trim_source
from tests.integration.tampering.stage import (
    BASE_MS,
    CLOCK,
    COUNT,
    KEPT_A_WEEK,
    Action,
    Row,
    Stage,
    large,
    numbered,
    plain,
)
from tests.integration.tampering.tamperings import aged
from tests.support import commands, independent
from tests.support.independent import CREATE_TIME, Record
from tests.support.planned_copy import no_spark

COMPACTED = {
    "cleanup.policy": "compact",
    "segment.ms": "100",
    "min.cleanable.dirty.ratio": "0.01",
    "max.compaction.lag.ms": "100",
}
NOWHERE = ["127.0.0.1:1"]


def healthy(what: str, expect: str, **more: Any) -> Row:
    """A row; its topic has the name that is in front."""
    name, _, done = what.partition(": ")
    return Row(f"healthy.{name}", done, expect.replace(" ", ""), **more)


def quiet(what: str, **more: Any) -> Row:
    """A row of which no column says anything."""
    return healthy(what, ". ... ...", **more)


def odd_records(number: int) -> list[Record]:
    """Records without keys, tombstones, empty values, and headers without values."""
    first, second, third, *rest = plain(number)
    return [
        first._replace(key=None, headers=()),
        second._replace(value=None),
        third._replace(value=b"", headers=(("n", None), ("n", b""))),
        *rest,
    ]


def out_of_order(number: int) -> list[Record]:
    """Records whose times go backwards."""
    return [
        record._replace(timestamp=(CREATE_TIME, BASE_MS - at * 1_000))
        for at, record in enumerate(plain(number))
    ]


def none(number: int) -> list[Record]:
    """No records."""
    del number
    return []


def transactions(stage: Stage, row: Row) -> None:
    """Write a transaction that is aborted, and one that is committed."""
    for commit in (False, True):
        write_transaction(stage.source, row.at, numbered(500, 4), commit=commit)


def older_destination(**config: str) -> Action:
    """Create the destination topic beforehand, with records of others."""

    def act(stage: Stage, row: Row) -> None:
        independent.create(stage.destination, row.copies.topic, 1, KEPT_A_WEEK | config)
        independent.write(stage.destination, row.copies, numbered(700, 3))

    return act


def grow(stage: Stage, row: Row) -> None:
    """Add a partition at the source, and write to it."""
    independent.grow(stage.source, row.name, 2)
    independent.write(stage.source, TopicPartition(row.name, 1), numbered(0, COUNT))


def renamed(to: str, where: ResetTo) -> Action:
    """Let relay.yaml name another destination, and decide how to go on."""

    def act(stage: Stage, row: Row) -> None:
        topics = stage.sections[row.mirror]["topics"]
        topics.setdefault("rename", {})[row.name] = to
        mirror = stage.settings(row.mirror)
        snapshot = read_clusters.take_snapshot(Sides(row.mirror, mirror, CLOCK), row.name)
        moved = reset.execute(snapshot, reset.plan_resets(snapshot, where))
        assert [is_moved for _, is_moved in moved] == [True]

    return act


def replayed(to: str = "") -> Action:
    """Replay the second round, into another topic or into the copies themselves."""

    def act(stage: Stage, row: Row) -> None:
        request = ReplayRequest(
            topic=row.name,
            to=to or row.copies.topic,
            offsets=(COUNT, 2 * COUNT),
            into_itself=not to,
        )
        mirrors = load(stage.config).mirrors
        sides = Sides(row.mirror, mirrors[row.mirror], CLOCK)
        replay = start_replay(plan_replay(sides, request, no_spark, mirrors))
        result = run(replay.plan, lambda: stage.session, [])
        assert result.failures == []

    return act


def retention_passed(stage: Stage, row: Row) -> None:
    """Let both sides keep an hour, and delete the first round, which is older."""
    for cluster in (stage.source, stage.destination):
        independent.configure(cluster, ResourceType.TOPIC, row.name, retention_ms=HOUR_MS)
    delete_before(1)(stage, row)
    trim_source(1)(stage, row)


def set_codec(stage: Stage, row: Row) -> None:
    """Let both sides store everything with zstd from now on."""
    for cluster in (stage.source, stage.destination):
        independent.configure(cluster, ResourceType.TOPIC, row.name, compression_type="zstd")


def fail_over(stage: Stage, row: Row) -> None:
    """Let the first upstream be away."""
    stage.sections[row.mirror]["source"]["upstreams"][0]["bootstrap_servers"] = NOWHERE


def return_of_the_upstream(stage: Stage, row: Row) -> None:
    """Let the first upstream be back."""
    stage.sections[row.mirror]["source"]["upstreams"][0] |= commands.at(stage.source)


def quarantine(stage: Stage, row: Row) -> None:
    """Put the upstream in quarantine that has other records, and name it first."""
    upstreams = stage.sections[row.mirror]["source"]["upstreams"]
    upstreams.reverse()
    with Sides(row.mirror, stage.settings(row.mirror), CLOCK).destination() as client:
        set_quarantine(client, {"one": "other records"})


def second_upstream_first(stage: Stage, row: Row) -> None:
    stage.sections[row.mirror]["source"]["upstreams"].reverse()


def accepted_loss(stage: Stage, row: Row) -> None:
    """Write more records, and delete them at the source before they were copied."""
    independent.write(stage.source, row.at, numbered(800, 5))
    independent.delete_before(stage.source, row.at, 2 * COUNT + 5)


def another_run(stage: Stage, row: Row) -> None:
    """Copy more, after the broker of the destination has started again."""
    independent.write(stage.source, row.at, numbered(600, COUNT))
    stage.run(row.mirror, row.name)


def compacted(stage: Stage, row: Row) -> None:
    """Wait for the cleaner on both sides, which leaves the last segment alone."""
    for cluster in (stage.source, stage.destination):
        independent.configure(cluster, ResourceType.BROKER, "1", log_cleaner_backoff_ms=100)
        independent.until(
            partial(_is_cleaned, cluster, row.at, [3 * COUNT]),
            f"compaction of {row.name}",
            seconds=60,
            pause_seconds=1,
        )


def _is_cleaned(cluster: Cluster, at: TopicPartition, counts: list[int]) -> bool:
    """Whether records are gone, and no more than a second ago: it cleans segment by segment."""
    counts.append(len(independent.read(cluster, at)))
    return counts[-1] == counts[-2] < counts[0]


HEALTHY = [
    quiet("nothing: nothing happens", after=None),
    quiet("verbatim: batches that are copied byte for byte", records=large),
    quiet("odd: null keys, tombstones, empty values, headers without values", records=odd_records),
    quiet("times: times that go backwards", records=out_of_order),
    quiet("empty: an empty topic", records=none),
    quiet("gzip: records compressed with gzip", codecs=("gzip",) * 3),
    quiet("upgrade: producers that change their codec", codecs=("none", "lz4", "zstd")),
    quiet("transactions: transactions at the source, one of them aborted", between=transactions),
    quiet(
        "append-time: a source that sets the times (`LogAppendTime`)",
        config={"message.timestamp.type": "LogAppendTime"},
    ),
    healthy(
        "append-time-there: a destination that sets the times",
        ". NNN N . .",
        before=older_destination(**{"message.timestamp.type": "LogAppendTime"}),
    ),
    healthy(
        "records-before: a destination topic with records from before the mirror",
        ". NN. ...",
        before=older_destination(),
    ),
    healthy(
        "recompressed: a destination that compresses on its own",
        ". NN. N . N",
        mirror="recompressed",
        section={"topics": {"config_keys": ["retention.ms"]}},
        before=older_destination(**{"compression.type": "gzip"}),
    ),
    quiet(
        "codec-later: `compression.type=zstd` set on both sides after two rounds", between=set_codec
    ),
    quiet("codec-after: `compression.type=zstd` set on both sides after the copy", after=set_codec),
    healthy(
        "retention: retention deletes the oldest records on both sides",
        ". NNN N.N",
        records=aged,
        after=retention_passed,
    ),
    healthy(
        "source-trimmed: retention deletes the oldest records at the source",
        ". .NN ...",
        after=trim_source(1),
    ),
    healthy("compacted: compaction on both sides", ". NNN N.N", config=COMPACTED, after=compacted),
    quiet("growth: a partition more at the source", between=grow),
    healthy(
        "renamed: another name at the destination, and `relay reset --to-current`",
        ". ... ..N",
        between=renamed("healthy.renamed.new", ResetTo.CURRENT),
    ),
    healthy(
        "renamed-again: another name at the destination, and `relay reset --to-earliest`",
        ". ... ..N",
        between=renamed("healthy.renamed-again.new", ResetTo.EARLIEST),
    ),
    quiet("replayed: a replay into another topic", after=replayed("healthy.replayed.again")),
    quiet("replayed-here: a replay into the copies", after=replayed()),
    quiet("filtered: a filter", override={"filters": [{"class": "user_code:Even"}]}),
    healthy(
        "selected: records that `select` changes",
        ". .NN ...",
        override={"select": {"value": "upper(value)"}},
    ),
    quiet(
        "quarantined: records that go to the quarantine topic",
        override={"filters": [{"class": "user_code:Picky"}], "on_record_error": "quarantine"},
    ),
    quiet("pinned-one: two topics copied into one", to="healthy.pinned:0"),
    quiet("pinned-two: the other one of them", to="healthy.pinned:0"),
    quiet("leader: the leader starts again, and the mirror goes on", then=another_run),
    quiet(
        "second: a second mirror with the same destination",
        mirror="second",
        to="healthy.second.copy",
    ),
    quiet(
        "failover: an upstream is away, and another one is read",
        mirror="two-upstreams",
        on_upstream=plain,
        between=fail_over,
        after=return_of_the_upstream,
    ),
    quiet(
        "upstream-quarantined: an upstream with other records is in quarantine",
        mirror="quarantined",
        records=lambda number: numbered(300 + number * COUNT, COUNT),
        on_upstream=plain,
        before=second_upstream_first,
        after=quarantine,
    ),
    healthy(
        "loss: an accepted loss (`on_data_loss: continue`)",
        "N NNN ..N",
        mirror="lossy",
        section={"on_data_loss": "continue"},
        between=accepted_loss,
    ),
    healthy(
        "idle: nothing to copy for longer than the ledger keeps its entries",
        "N NNN . . N",
        mirror="idle",
        last=ledger_expired,
    ),
]
