"""What a look at the schemas of copied records finds: one value with one wording."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, NamedTuple

from relay_pipelines.errors import DIFFERENCE
from relay_pipelines.model import TopicPartition

_FAILED = 1
_SHOWN = 3
# before a key or value, a zero byte and four bytes of an id; newer serialisers can write a header
# instead, with a GUID. Source: confluent-kafka's `schema_registry` package.
_PREFIX_BYTES = 5
_PARTS = (("key", "__key_schema_id"), ("value", "__value_schema_id"))
BY_HEADER = "a header names their schema by a GUID, which this does not compare"


class State(StrEnum):
    """What was found.

    `NO_IDS`: records were read, and none names a schema. `NOT_VERIFIED`: some do, and nobody could
    look at all of them. `NOTHING`: there are no records.
    """

    AGREES = "agrees"
    DIFFERS = "differs"
    NOT_VERIFIED = "not verified"
    NO_IDS = "no ids found"
    NOTHING = "nothing to verify"


class Place(NamedTuple):
    """Where the first record that names an id is."""

    topic_partition: TopicPartition
    offset: int
    part: str

    def __str__(self) -> str:
        return f"the {self.part} of {self.topic_partition} at offset {self.offset}"


@dataclass(frozen=True, slots=True)
class IdProblem:
    """An id that does not resolve to the same schema, or that nobody could resolve.

    Args:
        uses: how many keys and values name it.
        differs: whether it resolves to another schema, and is not only unknown.
    """

    id: int
    uses: int
    first: Place
    why: str
    differs: bool

    def __str__(self) -> str:
        return f"id {self.id} of {self.first}: {self.why}"


@dataclass(slots=True)
class TopicVerdict:
    """What the records of a topic name, or those of several, and which of that is not the same.

    Args:
        topic: at the source.
        records: that were read.
        left_out: that a sample did not read, by the ledger.
        with_ids: of the records that were read, those whose key or value has an id.
        ids: how many keys and values name each.
        first: where each is named first.
        not_looked_at: records, by the reason.
        problems: ids that are not known to be the same at both registries.
        entries_gone: ledger entries that retention has deleted, or that were lost: nobody knows
            where their copies are.
    """

    topic: str
    records: int = 0
    left_out: int = 0
    with_ids: int = 0
    ids: Counter[int] = field(default_factory=Counter)
    first: dict[int, Place] = field(default_factory=dict)
    not_looked_at: Counter[str] = field(default_factory=Counter)
    problems: Sequence[IdProblem] = ()
    entries_gone: int = 0
    topics: int = 1

    def see(self, tp: TopicPartition, record: object) -> None:
        """Take a record in."""
        offset = int(getattr(record, "offset"))  # noqa: B009 - of the codec, without types
        self.records += 1
        named = list(named_by(record))
        ids = [(part, number) for part, number in named if number is not None]
        self.with_ids += bool(ids)
        self.not_looked_at[BY_HEADER] += len(ids) < len(named)
        for part, number in ids:
            self.ids[number] += 1
            self.first.setdefault(number, Place(tp, offset, part))

    @property
    def differing(self) -> list[IdProblem]:
        """The ids that resolve to other schemas."""
        return [problem for problem in self.problems if problem.differs]

    @property
    def unknown(self) -> list[IdProblem]:
        """The ids that nobody could resolve, or compare."""
        return [problem for problem in self.problems if not problem.differs]

    @property
    def same(self) -> set[int]:
        """The ids that resolve to the same schema at both registries."""
        return self.ids.keys() - {problem.id for problem in self.problems}

    @property
    def state(self) -> State:
        """The worst of what was found."""
        if self.differing:
            return State.DIFFERS
        if self.problems or self.not_looked_at.total():
            return State.NOT_VERIFIED
        if self.ids:
            return State.AGREES
        return State.NO_IDS if self.records else State.NOTHING

    @property
    def exit_code(self) -> int:
        """Of the command; a check passes with 0 alone."""
        if self.state is State.DIFFERS:
            return DIFFERENCE
        return 0 if self.state is State.AGREES else _FAILED

    def __str__(self) -> str:
        gone = (
            f"ledger entries that are gone: {self.entries_gone:,}; their copies were not looked at"
            if self.entries_gone
            else ""
        )
        if self.state is State.NOTHING:
            return f"{self.state}: {gone or 'no record was copied'}"
        of_topics = f" of {self.topics:,} topics" if self.topics > 1 else ""
        ids = f"{len(self.same):,} of {len(self.ids):,} ids are the same at both registries"
        records = f"in {self.with_ids:,} of {self.records:,} records{of_topics}"
        parts = [f"{self.state}: {ids}, {records}"]
        parts += [str(problem) for problem in (*self.differing, *self.unknown)[:_SHOWN]]
        more = len(self.differing) + len(self.unknown) - _SHOWN
        parts += [f"{more:,} more ids"] if more > 0 else []
        parts += [
            f"not looked at: {number:,} records ({why})"
            for why, number in self.not_looked_at.items()
            if number
        ]
        parts += [f"the sample leaves out {self.left_out:,} records"] if self.left_out else []
        return "; ".join([*parts, *filter(None, [gone])])


def total(name: str, verdicts: Sequence[TopicVerdict]) -> TopicVerdict:
    """Return the verdict on several topics; an id is one, however many topics name it."""
    all_topics = TopicVerdict(name, topics=len(verdicts))
    for verdict in verdicts:
        all_topics.records += verdict.records
        all_topics.left_out += verdict.left_out
        all_topics.with_ids += verdict.with_ids
        all_topics.entries_gone += verdict.entries_gone
        all_topics.ids += verdict.ids
        all_topics.not_looked_at += verdict.not_looked_at
    all_topics.problems = list(
        {problem.id: problem for v in verdicts for problem in v.problems}.values()
    )
    return all_topics


def named_by(record: Any) -> Iterator[tuple[str, int | None]]:
    """Yield which of key and value of a record names a schema, and its id; None for a GUID.

    A number of eight bytes begins as an id does: with id 0, which no registry gives.
    """
    headers = {name for name, _ in record.headers}
    for part, header in _PARTS:
        content = getattr(record, part)
        if header in headers:
            yield part, None
        elif content is not None and (number := _id_before(content)):
            yield part, number


def _id_before(content: bytes) -> int:
    if len(content) < _PREFIX_BYTES or content[0] != 0:
        return 0
    return int.from_bytes(content[1:_PREFIX_BYTES], "big")
