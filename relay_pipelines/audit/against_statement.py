"""Compares a mirror's destination with a statement that was made before.

It reads the destination alone: the ledger, the checkpoints, and the copies.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

from relay_pipelines.audit.claims import Claims, accounted
from relay_pipelines.audit.coverage import last_history
from relay_pipelines.audit.part_count import count_ranges
from relay_pipelines.audit.recount import Recount
from relay_pipelines.audit.source_logs import DestinationTopics, read_destination_topics
from relay_pipelines.audit.verdict import UNEXPLAINED, Tally, Verdict, judge
from relay_pipelines.errors import ConfigError, RelayError
from relay_pipelines.finding import Finding, Kind, Severity, warning
from relay_pipelines.ledger.chain import Chain, verify_chain
from relay_pipelines.ledger.statement import Statement, read_statement
from relay_pipelines.ledger.verified import VerifiedLedger, read_verified_ledger
from relay_pipelines.model import LedgerEntry, OffsetRange, TopicPartition
from relay_pipelines.protocol.client import ClusterClient
from relay_pipelines.sides import Sides

_ANY_MS = 1 << 62  # a statement may begin with any entry: retention had taken those before it


@dataclass(slots=True)
class StatementAudit:
    """What a comparison with a statement found.

    Args:
        findings: differences, and why some records could not be compared.
        tally: what became of the attested records.
    """

    statement: Statement
    findings: list[Finding] = field(default_factory=list)
    tally: Tally = field(default_factory=Tally)

    @property
    def verdict(self) -> Verdict:
        """What was found, with what it rests on."""
        return judge(self.tally, self.findings)


def audit_against(path: Path, sides: Sides) -> StatementAudit:
    """Compare the destination with a statement.

    Raises:
        ConfigError: it is no statement, or one of another mirror or cluster.
    """
    statement = read_statement(path)
    attested = [record.entry for records in statement.records.values() for record in records]
    copies = {entry.to for entry in attested}
    ledger = read_verified_ledger(sides, copies)
    sides = sides.at(ledger.cluster_id)
    _require_same_mirror(path, statement, ledger)
    audit = StatementAudit(statement, tally=Tally(entries=len(attested)))
    audit.findings += [
        _difference(broken.topic_partition, broken.what_and_where, Kind.BROKEN_CHAIN)
        for broken in ledger.breaks
    ]
    topics = {to.topic for to in copies}
    there = read_destination_topics(sides, ledger, topics, with_configs=False)
    for tp in statement.heads:
        # another process may have changed the statement itself, too
        chain = verify_chain(tp, statement.records[tp], statement.heads[tp], _ANY_MS)
        audit.findings += [
            _difference(f"the statement itself: {tp}", broken.what, Kind.BROKEN_CHAIN)
            for broken in chain.breaks
        ]
        audit.findings += _differences_of_ledger(statement, tp, ledger)
        if replaced := there.replaced(ledger.checkpoints.get(tp)):
            audit.findings.append(_difference(tp, replaced))
    _recount(audit, ledger, there, sides)
    return audit


def _require_same_mirror(path: Path, statement: Statement, ledger: VerifiedLedger) -> None:
    header = statement.header
    if header.mirror != ledger.mirror:
        raise ConfigError(
            f"the statement {path} is about the mirror {header.mirror!r}, not {ledger.mirror!r}",
            remedy=f"name it: --mirror {header.mirror}",
        )
    if header.destination_cluster_id != ledger.cluster_id:
        raise ConfigError(
            f"the statement {path} is about the cluster {header.destination_cluster_id}, and the"
            f" destination of {ledger.mirror!r} is {ledger.cluster_id}",
            remedy="use the relay.yaml with which it was made",
        )


def _difference(where: TopicPartition | str, text: str, kind: Kind = Kind.OTHER_RECORDS) -> Finding:
    return Finding(kind, str(where), Severity.DIFFERENCE, text)


def _differences_of_ledger(
    statement: Statement, tp: TopicPartition, ledger: VerifiedLedger
) -> Iterator[Finding]:
    """Compare the attested entries with those that the ledger still has."""
    head = statement.heads[tp]
    chain, checkpoint = ledger.chains.get(tp, Chain(tp)), ledger.checkpoints.get(tp)
    if checkpoint is None or checkpoint.ledger_head.number < head.number:
        number = 0 if checkpoint is None else checkpoint.ledger_head.number
        yield _difference(
            tp,
            f"the statement's newest ledger entry is {head.number}, that of the checkpoint"
            f" is {number}: a chain was started again, or a checkpoint put back",
            Kind.LEDGER_DIFFERS,
        )
    hashes = {record.head.hash for record in chain.records}
    for record in statement.records[tp]:
        number = record.entry.number
        if number > chain.expired and record.head.hash not in hashes:
            yield _difference(
                tp,
                f"ledger entry {number}, of source offsets [{record.entry.source.start},"
                f" {record.entry.source.end}), is not in the ledger as the statement has it",
                Kind.LEDGER_DIFFERS,
            )


def _recount(
    audit: StatementAudit, ledger: VerifiedLedger, there: DestinationTopics, sides: Sides
) -> None:
    """Count the attested records at the destination, and find the chunks that differ."""
    whole: list[tuple[OffsetRange, Sequence[LedgerEntry]]] = []
    attested: list[LedgerEntry] = []
    for tp, records in audit.statement.records.items():
        entries = (record.entry for record in records)
        history = sorted(last_history(entries), key=lambda entry: entry.source)
        attested += history
        gone = there.gone.intersection(entry.to.topic for entry in history)
        audit.tally += Tally(sum(entry.records for entry in history if entry.to.topic in gone))
        audit.findings += [_difference(tp, there.lost([topic])) for topic in sorted(gone)]
        some = [entry for entry in history if len(entry.source) and entry.to.topic not in gone]
        if some:
            offsets = OffsetRange(tp, some[0].source.start, some[-1].source.end)
            whole.append((offsets, some))
    # records after the attested ones are in later chunks; the ledger may have expired since
    claims = Claims(ledger.mirror, [*attested, *ledger.entries], accounted(ledger, attested))
    with sides.destination("audit") as client:
        count = partial(_counted, client, claims)
        for (_, chunks), result in zip(whole, count(whole), strict=True):
            tp, problems = result.range.topic_partition, result.problems
            audit.tally += result.tally if problems else result.tally.explained(UNEXPLAINED)
            audit.findings += [warning(Kind.NOT_VERIFIED, str(tp), line) for line in result.notes()]
            if not problems:
                continue
            alone = count([(entry.source, [entry]) for entry in chunks])
            found_alone = [
                _difference(f"{entry.source}, copied to {entry.destination}", line)
                for entry, counted in zip(chunks, alone, strict=True)
                for line in counted.problems
            ]
            # only together, such as records of a lost chunk
            audit.findings += found_alone or [_difference(tp, line) for line in problems]


def _counted(
    client: ClusterClient,
    claims: Claims,
    ranges: Sequence[tuple[OffsetRange, Sequence[LedgerEntry]]],
) -> Iterator[Recount]:
    """Yield the counts, or raise an error: a statement is audited as a whole."""
    for result in count_ranges(client, ranges, claims):
        if isinstance(result, RelayError):
            raise result
        yield result
