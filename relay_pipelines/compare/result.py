"""What a comparison of two clusters has found, and the verdict that follows."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace

from relay_pipelines.audit.verdict import UNREADABLE, State, Tally, Verdict, judge, total
from relay_pipelines.compare.pairs import (
    CHANGED,
    HIDDEN,
    KINDS,
    MISSING,
    OUT_OF_ORDER,
    CompareJob,
    Pair,
    PairResult,
)
from relay_pipelines.compare.request import CompareRequest
from relay_pipelines.finding import Finding, Kind, Severity, warning

NOTHING = "there is no record in what was asked for"
_NOT_VERIFIED = 1
_AT_SOURCE = (CHANGED, MISSING, OUT_OF_ORDER)


def tally(result: PairResult) -> Tally:
    """Return what became of the records that were read; what differs is in no number of it."""
    differing = sum(result.numbers[kind] for kind in _AT_SOURCE)
    known = result.same + result.superseded + result.not_compared.total()
    seen = Tally(
        known + differing,
        by_content=result.same,
        not_verified=Counter(result.not_compared),
        superseded=result.superseded,
        untimed=result.untimed,
        differing=differing,
    )
    return seen.explained(UNREADABLE) if result.error else seen


def findings_of(result: PairResult) -> Iterator[Finding]:
    """Yield what was found in a pair: differences first."""
    where = result.pair.where
    for kind in KINDS:
        if number := result.numbers[kind]:
            text = (
                f"{kind}: {number:,}{_what_changed(result, kind)}; the first: {result.first[kind]}"
            )
            yield Finding(Kind.OTHER_RECORDS, where, Severity.DIFFERENCE, text)
    yield from _judged(result)
    if result.error:
        yield Finding(Kind.UNREADABLE, where, Severity.ERROR, result.error)
    for why, number in result.not_compared.items():
        yield warning(Kind.NOT_VERIFIED, where, f"not compared: {number:,} ({why})")
    if result.bounded:
        text = "there are too many differences to tell apart all that is missing or extra from what"
        yield warning(Kind.NOT_VERIFIED, where, f"{text} is out of order or duplicated")
    if result.untimed:
        text = f"{result.untimed:,} records have the times at which the destination got them"
        yield warning(Kind.NOT_VERIFIED, where, text)


def _judged(result: PairResult) -> Iterator[Finding]:
    for judged in result.judged:
        text = f"group {judged.commit.group}: {judged.verdict}"
        if judged.skips:
            text += f" records: it has committed {judged.commit.destination}, and must go on at"
            text = f"{text} {judged.expected}"
            yield Finding(Kind.OTHER_RECORDS, result.pair.where, Severity.DIFFERENCE, text)
        elif judged.rereads or judged.unknown:
            yield warning(Kind.NOT_VERIFIED, result.pair.where, text)


def _what_changed(result: PairResult, kind: str) -> str:
    if kind != CHANGED:
        return ""
    fields = ", ".join(f"{names} {number:,}" for names, number in sorted(result.changed.items()))
    added = ", ".join(f"{names} to {number:,}" for names, number in sorted(result.added.items()))
    return f" (in {fields}{f'; headers were only added: {added}' if added else ''})"


@dataclass(slots=True)
class Compared:
    """What a comparison is to read, and what it has found so far.

    Args:
        pairs: in the order in which they are read.
        unpaired: topics and partitions that one side does not have.
        rules: how topics are compared whose partitions do not matter.
        hidden: offsets that an open transaction hides at the source, by where they are.
        topic_ids: of the topics of both sides, when it began.
    """

    name: str
    request: CompareRequest
    job: CompareJob
    pairs: list[Pair] = field(default_factory=list)
    unpaired: list[Finding] = field(default_factory=list)
    rules: list[Finding] = field(default_factory=list)
    hidden: dict[str, int] = field(default_factory=dict)
    topic_ids: tuple[dict[str, str], ...] = ()
    results: list[PairResult] = field(default_factory=list)
    seconds: float = 0.0

    @property
    def work(self) -> list[Pair]:
        """What tasks read, each pair in one."""
        return [pair for pair in self.pairs if not pair.is_shuffled]

    def add(self, results: Sequence[PairResult]) -> None:
        """Take the results of a task."""
        self.results += results

    @property
    def findings(self) -> list[Finding]:
        """All that was found; differences first."""
        each = [finding for results in self.results for finding in findings_of(results)]
        hidden = [
            warning(Kind.NOT_VERIFIED, where, f"{number:,} offsets were not read")
            for where, number in self.hidden.items()
        ]
        order = [*Severity].index
        findings = [*self.unpaired, *each, *hidden, *self.rules]
        return sorted(findings, key=lambda finding: order(finding.severity), reverse=True)

    @property
    def tally(self) -> Tally:
        """What became of all records."""
        seen = total(map(tally, self.results))
        number = sum(self.hidden.values())
        return seen + Tally(number, not_verified=Counter({HIDDEN: number} if number else {}))

    @property
    def verdict(self) -> Verdict:
        """What was found, with what it rests on."""
        verdict = judge(self.tally, self.findings)
        if verdict.tally.records:
            return verdict
        if verdict.state is State.NOTHING:
            return replace(verdict, why=NOTHING)
        return replace(verdict, why=UNREADABLE) if verdict.state is State.FAILED else verdict

    @property
    def exit_code(self) -> int:
        """Of a command: 0 if all was compared and is the same, 4 for a difference, else 1."""
        verdict = self.verdict
        code = verdict.exit_code()
        unjudged = any(each.unknown for results in self.results for each in results.judged)
        is_whole = verdict.tally.is_whole and not unjudged
        return code or (0 if is_whole else _NOT_VERIFIED)
