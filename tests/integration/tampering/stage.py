"""The stage of the tamper matrix: brokers, mirrors, and one topic per row of the tables.

Every row has a topic of its own, which is copied in three rounds of ten records, a chunk each. All
rows are damaged together, and measured together: an audit of one mirror has all of their cells.
"""

import json
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from confluent_kafka.admin import AdminClient, NewTopic

from relay_pipelines import api
from relay_pipelines.ledger import checkpoint, ledger_topic
from relay_pipelines.ledger.statement import attest
from relay_pipelines.ledger.verified import read_verified_ledger
from relay_pipelines.local_kafka import LocalCluster
from relay_pipelines.model import Cluster, TopicPartition
from relay_pipelines.protocol.batch import Batch, split
from relay_pipelines.protocol.clock import SystemClock
from relay_pipelines.protocol.records import chained_digest
from relay_pipelines.run.run import run
from relay_pipelines.settings import Mirror, Settings, load
from relay_pipelines.sides import Sides
from tests.support import commands, segments
from tests.support.independent import (
    CREATE_TIME,
    Record,
    create,
    delete_if_there,
    producer,
    put,
    read,
    write,
)
from tests.support.segments import LogBatch

CLOCK = SystemClock()
MAIN = "main"
STATE = {checkpoint.TOPIC: checkpoint.CONFIGS, ledger_topic.TOPIC: ledger_topic.CONFIGS}
ROUNDS = (0, 1, 2)
COUNT = 10
"""Records of a round."""
BASE_MS = time.time_ns() // 1_000_000 - 600_000
"""The records are ten minutes old: no retention of days may have deleted one."""

KEPT_A_WEEK = {"retention.ms": str(7 * 24 * 3_600_000)}
USER_CODE = """
class Even:
    def keep(self, record):
        return record.offset % 2 == 0


class Picky:
    def keep(self, record):
        if record.offset % 10 == 5:
            raise ValueError("not this one")
        return True
"""

Records = Callable[[int], list[Record]]
Action = Callable[["Stage", "Row"], object]
Edit = Callable[[list[LogBatch]], list[LogBatch]]


def numbered(first: int, count: int, *, size: int = 20, keys: int = 7) -> list[Record]:
    """Records that all differ; a key comes again after `keys` records."""
    return [
        Record(
            f"k{n % keys}".encode(),
            f"{n:08d}".encode().ljust(size, b"."),
            (("n", str(n).encode()),),
            (CREATE_TIME, BASE_MS + n * 13),
        )
        for n in range(first, first + count)
    ]


def plain(number: int) -> list[Record]:
    """The records of a round; as small batches, they are merged."""
    return numbered(number * COUNT, COUNT)


def large(number: int) -> list[Record]:
    """The same in batches that are copied byte for byte."""
    return numbered(number * COUNT, COUNT, size=2_000)


@dataclass(frozen=True)
class Row:
    """One row of a table.

    Args:
        what: was done, as the table says it.
        expect: the state of each column, a letter each.
        mirror: that copies its topic.
        to: the destination topic, perhaps with a partition; that of the source's name by default.
        config: of the source topic.
        codecs: of its producers, by round.
        records: of each round.
        on_upstream: those of the second upstream; None if its mirror has no such upstream.
        override: of its topic in relay.yaml.
        section: of its mirror in relay.yaml.
        before: done before the first round; `between`, before the last one.
        after: done after the statement was made, while the brokers run.
        offline: done to the logs of the destination, while its broker is stopped.
        then: done after that.
        last: done after all others were measured, because it concerns whole state topics; its
            mirror, which has this one topic, is then measured by itself.
        topics: whose cells are those of the row besides its own.
    """

    name: str
    what: str
    expect: str
    mirror: str = MAIN
    to: str = ""
    config: Mapping[str, str] = field(default_factory=dict)
    codecs: tuple[str, ...] = ("none",) * len(ROUNDS)
    records: Records = plain
    on_upstream: Records | None = None
    override: Mapping[str, Any] = field(default_factory=dict)
    section: Mapping[str, Any] = field(default_factory=dict)
    before: Action | None = None
    between: Action | None = None
    after: Action | None = None
    offline: Action | None = None
    then: Action | None = None
    last: Action | None = None
    topics: tuple[str, ...] = ()

    @property
    def at(self) -> TopicPartition:
        """Its topic-partition at the source."""
        return TopicPartition(self.name, 0)

    @property
    def copies(self) -> TopicPartition:
        """The topic-partition with its copies."""
        topic, _, partition = (self.to or self.name).partition(":")
        return TopicPartition(topic, int(partition or 0))


@dataclass
class Stage:
    """The clusters, the mirrors and the rows.

    Args:
        source: also the first upstream of the mirrors with two.
        upstream: the second upstream.
        destination: of this stage alone: it is stopped, and its state topics are deleted.
        sections: of relay.yaml, by mirror.
        copied: the source offsets that were copied when the statements were made, by mirror.
        kept: the records of the state topics by partition, after everything was tampered with.
        open: producers with open transactions.
    """

    source: Cluster
    upstream: Cluster
    destination_cluster: LocalCluster
    folder: Path
    session: Any
    rows: list[Row]
    sections: dict[str, dict[str, Any]] = field(default_factory=dict)
    began_ms: int = field(default_factory=CLOCK.now_ms)
    copied: dict[str, dict[TopicPartition, int]] = field(default_factory=dict)
    kept: dict[str, list[list[Record]]] = field(default_factory=dict)
    open: list[Any] = field(default_factory=list)
    _configs: dict[str, Path] = field(default_factory=dict)
    _settings: dict[Path, Settings] = field(default_factory=dict)

    @property
    def destination(self) -> Cluster:
        return self.destination_cluster.cluster()

    @property
    def config(self) -> Path:
        """Write relay.yaml if a row has changed it."""
        text = json.dumps(self.sections, sort_keys=True)
        if text not in self._configs:
            spark = {"master": "local[2]"}
            self._configs[text] = commands.configured(self.folder, self.sections, spark=spark)
        return self._configs[text]

    def settings(self, mirror: str) -> Mirror:
        config = self.config
        if config not in self._settings:
            self._settings[config] = load(config)
        return self._settings[config].mirror(mirror)

    def statement(self, mirror: str) -> Path:
        return self.folder / f"{mirror}.json"

    # the play, in this order

    def set_up(self) -> None:
        """Create the topics of the source, and what relay.yaml says of them."""
        (self.folder / "user_code.py").write_text(USER_CODE)
        self.create(self.source, self.rows)
        self.create(self.upstream, [row for row in self.rows if row.on_upstream])
        for row in self.rows:
            self._configure(row)
        self.act("before")

    def create(self, cluster: Cluster, rows: Iterable[Row]) -> None:
        admin = AdminClient({"bootstrap.servers": ",".join(cluster.bootstrap_servers)})
        topics = [NewTopic(row.name, 1, config={**KEPT_A_WEEK, **row.config}) for row in rows]
        for created in admin.create_topics(topics).values():
            created.result(300)

    def _configure(self, row: Row) -> None:
        if row.mirror not in self.sections:
            # a topic-partition that is gone does not come back: the window check waits in vain
            more = {"give_up_after": "5s", **row.section}
            section = commands.mirror(self.source, self.destination, **more)
            if row.on_upstream:
                two = {"name": "two", **commands.at(self.upstream)}
                section["source"]["upstreams"].append(two)
            self.sections[row.mirror] = section
        topics = self.sections[row.mirror]["topics"]
        pattern = row.name.replace(".", r"\.")
        topics["allow"].append(pattern)
        if row.to:
            topics.setdefault("rename", {})[row.name] = row.to
        if row.override:
            topics.setdefault("overrides", {})[pattern] = dict(row.override)

    def copy_rounds(self) -> None:
        """Write and copy three rounds, and make the statements."""
        for number in ROUNDS:
            if number == ROUNDS[-1]:
                self.act("between")
            self.write(number)
            for mirror in self.sections:
                self.run(mirror)
        for mirror in self.sections:
            self.attest(mirror)

    def tamper(self) -> None:
        """Do what the rows say; the destination's broker starts again in between."""
        self.act("after")
        (broker,) = self.destination_cluster.brokers
        broker.stop()
        self.act("offline")
        broker.start()
        self.act("then")
        self.kept = {topic: list(self._state_records(topic)) for topic in STATE}

    def _state_records(self, topic: str) -> Iterator[list[Record]]:
        for at in checkpoint.homes(topic):
            yield [record for _, record in read(self.destination, at)]

    def restore(self, topic: str, records: list[list[Record]]) -> None:
        """Put a state topic in the place of what is there."""
        delete_if_there(self.destination, topic)
        create(self.destination, topic, checkpoint.PARTITIONS, STATE[topic])
        for at, some in zip(checkpoint.homes(topic), records, strict=True):
            write(self.destination, at, some)

    def act(self, when: str) -> None:
        """Do what the rows do at one moment."""
        for row in self.rows:
            action = getattr(row, when)
            if action is not None:
                action(self, row)

    # what rows do

    def write(self, number: int) -> None:
        """Write one round to all topics of the source, a batch each."""
        written = [(self.source, row, row.records) for row in self.rows]
        written += [(self.upstream, row, row.on_upstream) for row in self.rows if row.on_upstream]
        senders: dict[Any, Any] = {}
        for cluster, row, records in written:
            which = cluster.bootstrap_servers, row.codecs[number]
            if which not in senders:
                senders[which] = producer(cluster, compression_type=which[1])
            put(senders[which], row.at, records(number))
        for sender in senders.values():
            assert sender.flush(60) == 0

    def run(self, mirror: str, topic: str | None = None) -> None:
        """Copy what is new, and require success."""
        bound = self.bound(mirror)
        result = run(bound.prepare(topic), lambda: self.session, [])
        assert result.failures == [], result.failures

    def bound(self, mirror: str) -> api.Mirror:
        """The mirror as Python programs have it."""
        return api.load(self.config)[mirror]

    def attest(self, mirror: str) -> None:
        """Write the statement of a mirror, and remember what is copied."""
        found = read_verified_ledger(Sides(mirror, self.settings(mirror), CLOCK))
        assert found.breaks == []
        parts = attest(Sides(mirror, self.settings(mirror), CLOCK), None, "then")
        self.statement(mirror).write_bytes(b"".join(parts))
        self.copied[mirror] = {at: one.next_offset for at, one in found.checkpoints.items()}

    def edit(self, at: TopicPartition, change: Edit) -> None:
        """Change a log of the destination, whose broker is stopped."""
        segments.edit(self.destination_cluster.folder, at, change)

    def digest(self, at: TopicPartition, round_number: int) -> str:
        """The digest that a ledger entry has for a round of copies, as they are on the disk now."""
        data = memoryview(segments.log_of(self.destination_cluster.folder, at).read_bytes())
        batches = [run for run in split(data) if not run.first.is_control]
        run = batches[round_number]
        return f"{chained_digest(Batch(run.first, run.data)):08x}"

    def state(self, topic: str, mirror: str, at: TopicPartition) -> list[tuple[int, Record]]:
        """The records of a topic-partition in a state topic, with their offsets."""
        key = checkpoint.key_of(mirror, at)
        home = checkpoint.home(topic, key)
        return [found for found in read(self.destination, home) if found[1].key == key]

    def put_state(self, topic: str, key: bytes, *values: bytes | None) -> None:
        now = (CREATE_TIME, CLOCK.now_ms())
        records = [Record(key, value, (), now) for value in values]
        write(self.destination, checkpoint.home(topic, key), *([one] for one in records))


def topics_of(rows: Iterable[Row]) -> Iterator[str]:
    for row in rows:
        yield from (row.name, *row.topics)
