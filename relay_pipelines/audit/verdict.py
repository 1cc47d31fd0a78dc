"""What an audit has found, and how many records that rests on: one value with one wording.

Tables, JSON, pages, checks, metrics and exit codes follow from it. Pure functions.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field, fields
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


@dataclass(slots=True)
class Tally:
    """What became of records: one sum, from the batches of a part up to a whole mirror.

    A record that the ledger has is in one of `by_content`, `not_compared`, `not_verified`,
    `left_out` and `superseded`, unless it differs.

    Args:
        records: as many as the ledger has for the chunks that were looked at.
        counted: those that a count has found where these chunks are.
        by_content: they are the same, compared by their bytes or by the digest of the copy.
        not_compared: they are there, and nothing more is known, by reason.
        not_verified: could not be looked at, or are gone and may be, by reason.
        left_out: a sample, or the level, reads others or none.
        superseded: compaction has removed them, and a later record of their key is there.
        untimed: those found whose timestamps the destination's brokers have set.
        differing: chunks whose bytes differ from those that were produced, or which have another
            number of records that nothing explains.
        foreign: records between and after the chunks that this mirror did not write.
        unattributed: such records where ledger entries have expired: those may have named them.
        uncopied: records before the first copy, or where there is none, in a topic that the mirror
            has not created: another process may have written them before it began.
        entries: of the ledger, which were verified.
        expired: ledger entries that retention has deleted; it is unknown how many records they had.
    """

    records: int = 0
    counted: int = 0
    by_content: int = 0
    not_compared: Counter[str] = field(default_factory=Counter)
    not_verified: Counter[str] = field(default_factory=Counter)
    left_out: int = 0
    superseded: int = 0
    untimed: int = 0
    differing: int = 0
    foreign: int = 0
    unattributed: int = 0
    uncopied: int = 0
    entries: int = 0
    expired: int = 0

    def __add__(self, other: Tally) -> Tally:
        names = [each.name for each in fields(self)]
        return Tally(**{name: getattr(self, name) + getattr(other, name) for name in names})

    @property
    def by_count(self) -> int:
        """Records that are there, and of which nothing more is known."""
        return self.not_compared.total()

    @property
    def compared(self) -> int:
        """Records that were found to be there."""
        return self.by_content + self.by_count

    @property
    def unverified(self) -> int:
        """Records that could not be looked at."""
        return self.not_verified.total()

    @property
    def unexplained(self) -> int:
        """Records that are in no other number, because they differ."""
        explained = self.compared + self.left_out + self.unverified + self.superseded
        return self.records - explained

    def explained(self, why: str) -> Tally:
        """Return the tally with a reason for what is in no other number."""
        return self + Tally(not_verified=+Counter({why: self.unexplained}))

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
    tally: Tally
    why: str = ""
    has_notes: bool = False
    reads: bool = True

    def __str__(self) -> str:
        seen = self.tally
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


def judge(tally: Tally, findings: Iterable[Finding], *, reads: bool = True) -> Verdict:
    """Return the verdict on what was found.

    Args:
        findings: differences, errors if something could not be read, and warnings, which a strict
            audit does not pass.
        reads: whether the level reads records; else it compares ledger entries alone.
    """
    severities = {finding.severity for finding in findings}
    has_notes = Severity.WARNING in severities or not tally.is_whole
    if Severity.DIFFERENCE in severities:
        state = State.DIFFERS
    elif Severity.ERROR in severities:
        state = State.FAILED
    elif tally.compared or tally.superseded if reads else tally.entries:
        state = State.AGREES
    elif tally.records > tally.left_out:
        state = State.NOT_VERIFIED
    else:
        return Verdict(State.NOTHING, tally, _nothing(tally), has_notes, reads)
    return Verdict(state, tally, has_notes=has_notes, reads=reads)


def _nothing(tally: Tally) -> str:
    if tally.records:
        return f"the chunks of the sample have none of the {tally.records:,} records"
    if not tally.expired:
        return NOTHING_COPIED
    if tally.entries:
        return f"{NOTHING_COPIED} in the ledger entries that retention has left"
    return (
        f"retention has deleted all {tally.expired:,} ledger entries, and the checkpoint says"
        " that none is missing"
    )


def total(tallies: Iterable[Tally]) -> Tally:
    """Return the tally of several topic-partitions."""
    return sum(tallies, Tally())
