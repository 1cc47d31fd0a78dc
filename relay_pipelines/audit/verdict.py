"""What an audit has found, and how many records that rests on: one value with one wording.

Tables, JSON, pages, checks, metrics and exit codes follow from it. Pure functions.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum

from relay_pipelines.errors import DIFFERENCE
from relay_pipelines.finding import Finding, Severity

UNREADABLE = "they could not be read"
UNEXPLAINED = "nothing has looked at them"
NOTHING_COPIED = "no record was copied"
_FAILED = 1


class State(StrEnum):
    """What an audit has found.

    `NOT_VERIFIED`: there are records, and none could be looked at. `NOTHING`: there is nothing to
    look at.
    """

    AGREES = "agrees"
    DIFFERS = "differs"
    NOT_VERIFIED = "not verified"
    NOTHING = "nothing to verify"
    FAILED = "failed"


@dataclass(frozen=True, slots=True)
class Coverage:
    """What became of the records that were to be audited; each of them is counted once.

    Args:
        records: as many as the ledger has.
        by_content: they are the same, compared by their bytes or by the digest of the copy.
        by_count: they are there, and nothing more is known.
        left_out: a sample, or the level, reads others or none.
        not_verified: how many nobody could look at, by reason.
        entries: of the ledger, which were verified.
        expired: ledger entries that retention has deleted; nobody knows how many records they had.
        superseded: compaction has removed them, and a later record of their key is there.
    """

    records: int = 0
    by_content: int = 0
    by_count: int = 0
    left_out: int = 0
    not_verified: Mapping[str, int] = field(default_factory=dict)
    entries: int = 0
    expired: int = 0
    superseded: int = 0

    def __add__(self, other: Coverage) -> Coverage:
        return Coverage(
            self.records + other.records,
            self.by_content + other.by_content,
            self.by_count + other.by_count,
            self.left_out + other.left_out,
            Counter(self.not_verified) + Counter(other.not_verified),
            self.entries + other.entries,
            self.expired + other.expired,
            self.superseded + other.superseded,
        )

    @property
    def compared(self) -> int:
        """Records that were found to be there."""
        return self.by_content + self.by_count

    @property
    def unverified(self) -> int:
        """Records that nobody could look at."""
        return sum(self.not_verified.values())

    @property
    def unexplained(self) -> int:
        """Records that are in no other number, because they differ."""
        explained = self.compared + self.left_out + self.unverified + self.superseded
        return self.records - explained

    def explained(self, why: str) -> Coverage:
        """Return the coverage with a reason for what is in no other number."""
        more = {why: self.unexplained} if self.unexplained > 0 else {}
        return self + Coverage(not_verified=more)

    @property
    def is_whole(self) -> bool:
        """Whether all that was to be compared was compared by content."""
        return not (self.by_count or self.unverified or self.unexplained or self.expired)

    @property
    def numbers(self) -> dict[str, int]:
        """Each record is in one of these numbers."""
        return {
            "by_content": self.by_content,
            "by_count": self.by_count,
            "superseded": self.superseded,
            "left_out": self.left_out,
            "not_verified": self.unverified,
            "differing": max(0, self.unexplained),
        }

    @property
    def reasons(self) -> str:
        """Why records were not verified, and how many."""
        reasons = {why: number for why, number in self.not_verified.items() if number}
        return ", ".join(f"{number:,} ({why})" for why, number in reasons.items())

    @property
    def verified(self) -> str:
        """How many records were compared, or left out on purpose, as text."""
        parts = [f"{self.by_content:,} of {self.records:,} records compared by content"]
        parts += [f"{self.by_count:,} by count only"] if self.by_count else []
        if self.superseded:
            parts.append(f"{self.superseded:,} gone for a later one of their key")
        left_out = [f"the sample leaves out {self.left_out:,}"] if self.left_out else []
        return "; ".join([", ".join(parts), *left_out])

    def __str__(self) -> str:
        if not self.records:
            return NOTHING_COPIED
        not_verified = f"; not verified: {self.reasons}" if self.unverified else ""
        return f"{self.verified}{not_verified}"


@dataclass(frozen=True, slots=True)
class Verdict:
    """What an audit has found in a mirror, a topic or a topic-partition.

    Args:
        why: there is nothing to verify.
        has_notes: whether there is anything that a strict audit does not pass.
        reads: whether records were looked at; else ledger entries alone.
    """

    state: State
    coverage: Coverage
    why: str = ""
    has_notes: bool = False
    reads: bool = True

    def __str__(self) -> str:
        seen = self.coverage
        if not self.reads and not self.why:
            entries = f"{seen.entries:,} ledger {'entry' if seen.entries == 1 else 'entries'}"
            return f"{self.state}: {entries} compared; this level reads no records"
        if self.state is State.NOT_VERIFIED:
            reasons = [why for why, number in seen.not_verified.items() if number]
            why = reasons[0] if len(reasons) == 1 else seen.reasons
            return f"{self.state}: 0 of {seen.records:,} records compared: {why}"
        if self.state is State.DIFFERS and not seen.records:
            return f"{self.state}: 0 records compared"
        if self.state is State.AGREES and seen.unverified:  # nobody may stop at the first word
            return f"{State.NOT_VERIFIED}: {seen.reasons}; {self.state}: {seen.verified}"
        differing = f"; in what differs: {seen.unexplained:,}" if seen.unexplained > 0 else ""
        return f"{self.state}: {self.why or seen}{differing}"

    def exit_code(self, *, strict: bool = False) -> int:
        """Return the exit code of a command, and whether a check passes: it does with 0.

        Args:
            strict: whether whatever is noted is a difference.
        """
        if self.state is State.DIFFERS or (strict and self.has_notes):
            return DIFFERENCE
        return _FAILED if self.state in {State.FAILED, State.NOT_VERIFIED} else 0


def judge(coverage: Coverage, findings: Iterable[Finding], *, reads: bool = True) -> Verdict:
    """Return the verdict on what was found.

    Args:
        findings: differences, errors if something could not be read, and warnings, which a strict
            audit does not pass.
        reads: whether the level reads records; else it compares ledger entries alone.
    """
    severities = {finding.severity for finding in findings}
    has_notes = Severity.WARNING in severities or not coverage.is_whole
    if Severity.DIFFERENCE in severities:
        state = State.DIFFERS
    elif Severity.ERROR in severities:
        state = State.FAILED
    elif coverage.compared or coverage.superseded if reads else coverage.entries:
        state = State.AGREES
    elif coverage.records > coverage.left_out:
        state = State.NOT_VERIFIED
    else:
        return Verdict(State.NOTHING, coverage, _nothing(coverage), has_notes, reads)
    return Verdict(state, coverage, has_notes=has_notes, reads=reads)


def _nothing(coverage: Coverage) -> str:
    if coverage.records:
        return f"the chunks of the sample have none of the {coverage.records:,} records"
    if not coverage.expired:
        return NOTHING_COPIED
    if coverage.entries:
        return f"{NOTHING_COPIED} in the ledger entries that retention has left"
    return (
        f"retention has deleted all {coverage.expired:,} ledger entries, and the checkpoint says"
        " that none is missing"
    )


def total(coverages: Iterable[Coverage]) -> Coverage:
    """Return the coverage of several topic-partitions."""
    return sum(coverages, Coverage())
