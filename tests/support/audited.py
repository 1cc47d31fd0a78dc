"""Three chunks of a topic-partition, and the audit of them, for tests of what is made of it."""

from relay_pipelines.audit.audit import Audit, PartitionAudit
from relay_pipelines.audit.chunks import AuditJob
from relay_pipelines.audit.comparison import ComparedChunk, Comparison, Difference, ShownRecord
from relay_pipelines.audit.coverage import coverage
from relay_pipelines.audit.recount import DestinationCount
from relay_pipelines.audit.request import AuditRequest, Level
from relay_pipelines.audit.verdict import Tally
from relay_pipelines.ledger.chain import Chain
from relay_pipelines.model import Cluster, CopyOptions, LedgerEntry, OffsetRange, TopicPartition

AT, TO = TopicPartition("orders", 0), TopicPartition("copy.orders", 0)


def entry(start: int, end: int, to: int | None = None, **skipped: int) -> LedgerEntry:
    """A chunk whose copies begin at the destination offset `to`; at `start` by default."""
    records = end - start - sum(skipped.values())
    first = start if to is None else to
    ranges = OffsetRange(AT, start, end), OffsetRange(TO, first, first + records)
    return LedgerEntry(
        "m", *ranges, records, 100, 1, 0, dict(skipped), "", 7, "kafka-a", "", "r", 0
    )


def wanted(start: int, end: int) -> OffsetRange:
    return OffsetRange(AT, start, end)


def counted(start: int, end: int, records: int, there: int, foreign: int = 0) -> DestinationCount:
    """A part that was counted; what others wrote begins at offset 30."""
    tally = Tally(records, there, foreign=foreign)
    offsets = wanted(start, end)
    return DestinationCount(offsets, None, tally, 30 if foreign else None, size_bytes=100)


CHUNKS = [entry(0, 10), entry(10, 30, filtered=5), entry(30, 40, aborted=9, control=1)]
BAD = "<script>alert(1)</script>"


def audited(difference: Difference | None = None) -> PartitionAudit:
    chunk = ComparedChunk(wanted(10, 30), OffsetRange(TO, 10, 25), 15, 100, 5)
    result = Comparison(chunk, "kafka-a", 15, 0, difference)
    covered = coverage(wanted(0, 60), CHUNKS, 45)
    rule = "record by record"
    return PartitionAudit(
        covered, Chain(AT), Level.FULL, rule=rule, chunks=[chunk], results=[result]
    )


def whole(difference: Difference | None = None) -> PartitionAudit:
    """A topic-partition of which the ledger has everything."""
    found = audited(difference)
    found.coverage = coverage(wanted(0, 40), CHUNKS, 40)
    return found


def audit(found: PartitionAudit) -> Audit:
    here = Cluster("here", ("127.0.0.1:1",))
    job = AuditJob("m", (here,), here, CopyOptions())
    return Audit("m", AuditRequest(level=Level.FULL), job, {found.topic_partition: found})


SHOWN = ShownRecord(15, 1_700_000_000_000, "k", BAD, "a=1")
DIFFERENCE = Difference("1 record differs", SHOWN, None)
