"""A mirror of one topic in memory, whose copies and ledger a test may change."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from unittest.mock import patch

from relay_pipelines.audit.against_statement import StatementAudit, audit_against
from relay_pipelines.audit.audit import Audit, PartitionAudit, begin
from relay_pipelines.audit.recount import Recount
from relay_pipelines.audit.request import AuditRequest, Level
from relay_pipelines.ledger import ledger_topic, reader, statement
from relay_pipelines.ledger.checkpoint import replay_name
from relay_pipelines.ledger.verified import VerifiedLedger, read_verified_ledger
from relay_pipelines.model import LedgerEntry, OffsetRange, TopicPartition
from relay_pipelines.settings import Mirror
from relay_pipelines.sides import Sides
from tests.copying import copy_as_it_is
from tests.support import copies_in_memory as memory
from tests.support.copies_in_memory import AT, checkpoints_of, copy, destination, filled, job, whole
from tests.support.fake_cluster import put, served
from tests.support.filled import Clock
from tests.support.findings import compared, unreadable
from tests.support.recounted import recounted

BATCHES = ((0, 5), (5, 10), (10, 15), (15, 20))
MADE_AT = "2026-11-22T12:00:00Z"


class World:
    """A source of twenty records in four batches, and its copies."""

    def __init__(self, folder: Path) -> None:
        self.source, self.copies = filled(*BATCHES), destination("a")
        self.copies.cleanup_policy = "delete"
        self.path = folder / "statement.jsonl"
        self.rename_upstream("source")

    def rename_upstream(self, name: str) -> None:
        """Give the upstream another name in the settings."""
        self.mirror = Mirror.model_validate(
            {
                "source": {"upstreams": [{"name": name, "bootstrap_servers": "fake:1"}]},
                "destination": {"bootstrap_servers": "fake:1"},
                "topics": {"allow": ["a"]},
                "give_up_after": "1s",
            }
        )

    def copy(self, end: int) -> None:
        copy(self.copies, self.source, end)

    @contextmanager
    def answering(self) -> Iterator[None]:
        homes = [TopicPartition(ledger_topic.TOPIC, 0)]
        with served(destination=self.copies), patch.object(reader, "_HOMES", homes):
            yield

    def replay(self, end: int) -> None:
        """Copy up to an offset into the same topic, as a replay does."""
        name = replay_name("m", "r")
        known = [each for each in checkpoints_of(self.copies) if each.mirror == name]
        wanted = replace(whole("a", end), checkpoint=[None, *known][-1])
        with served(source=self.source, destination=self.copies):
            own = replace(job(chunk_bytes=1), mirror=name)
            (outcome,) = copy_as_it_is(own, [wanted], Clock())
        assert outcome.error == ""

    def expire(self, entries: Callable[[LedgerEntry], bool]) -> None:
        """Remove some entries, as retention does."""
        log = self.copies.logs[ledger_topic.TOPIC]
        gone = {r.offset for r in log.committed() if entries(ledger_topic.from_record(r.value))}
        log.entries[:] = [each for each in log.entries if each.header.base_offset not in gone]
        self.copies.low_watermarks[ledger_topic.TOPIC] = log.entries[0].header.base_offset

    def write(self, number: int) -> None:
        """Write a record that is no copy."""
        put(self.copies, "a", memory.batch(memory.record(number)))

    def recount(self) -> Recount:
        """Count as a window of ten offsets does."""
        some, to = [OffsetRange(AT, 0, 10)], self.mirror.destination_cluster
        with self.answering():
            (found,) = recounted(
                "m", some, to, self.mirror.copy_options, Clock(), 0
            ).counted.values()
        return found

    def recounted(self) -> Audit:
        with self.answering():
            sides = Sides("m", self.mirror, Clock())
            return compared(begin(sides, AuditRequest(level=Level.RECOUNT)))

    def audited(self) -> PartitionAudit:
        """Recount all that the ledger has, and that can be read."""
        audit = self.recounted()
        assert unreadable(audit) == []
        return audit.partitions[AT]

    def ledger(self) -> VerifiedLedger:
        with self.answering():
            return read_verified_ledger(Sides("m", self.mirror, Clock()))

    def attest(self, topic: str | None = None) -> list[str]:
        """Write a statement, and return its lines."""
        with self.answering():
            lines = [*statement.attest(Sides("m", self.mirror, Clock()), topic, MADE_AT)]
        self.path.write_bytes(b"".join(lines))
        return [line.decode().removesuffix("\n") for line in lines]

    def audit(self, mirror: str = "m") -> StatementAudit:
        with self.answering():
            return audit_against(self.path, Sides(mirror, self.mirror, Clock()))
