"""`relay run --every`: rounds of all mirrors with one warm Spark session, until Ctrl-C.

What keeps failing from round to round: one line when it begins, and one when it is over.
"""

from __future__ import annotations

import re
import uuid
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING

from relay_pipelines import api
from relay_pipelines.errors import (
    INTERRUPTED,
    FencedError,
    PolicySupersededError,
    RelayError,
    error_class,
)
from relay_pipelines.invocation import Invocation, every_seconds, followed_mirrors, observed
from relay_pipelines.model import Status, TopicPartition
from relay_pipelines.output import json_output, messages, run_report
from relay_pipelines.output.formatting import format_time, plural, seconds, size, stderr
from relay_pipelines.output.progress import Lines, status_line
from relay_pipelines.protocol.clock import Clock, SystemClock
from relay_pipelines.run import other_writers, run_plan
from relay_pipelines.run.other_writers import OtherWriters
from relay_pipelines.run.result import RunResult
from relay_pipelines.run.run import Observer
from relay_pipelines.run.session import Session, StoppableClock, StopSignal
from relay_pipelines.settings import Mirror
from relay_pipelines.sides import Sides
from relay_pipelines.user_sources import Sources

if TYPE_CHECKING:
    from relay_pipelines.metrics import MetricsObserver, Publication

_LOG_SECONDS = 10.0  # between two lines of progress in a log
_STATUS_SECONDS = 0.5


def run(
    invocation: Invocation, names: Sequence[str], topic: str | None, every: str, *, as_json: bool
) -> int:
    """Copy all new records in rounds until a signal.

    Args:
        every: from the start of one round to the start of the next; a longer one delays the next.

    Returns:
        The highest exit code of what still fails at the end; as for an interrupted run if nothing
        does.

    Raises:
        ConfigError: `every` is not a duration of a second or more, or relay.yaml is not valid.
    """
    pause = every_seconds(every)
    settings = invocation.settings()
    followed = followed_mirrors(invocation, names, in_use="the version of the start")
    clock, stop = SystemClock(), StopSignal()
    session = Session(
        settings.spark, stop, purpose=", ".join(followed.part), verbose=invocation.debug
    )
    began = clock.monotonic()
    # another daemon may hold the port for now: the next rounds try again
    with (
        stop.heard(),
        observed(settings.metrics) as publication,
        ExitStack() as groups,
    ):
        for name, mirror in followed.part.items():
            say = partial(_warn_of_groups, name)
            groups.enter_context(api.Mirror(name, mirror, session).followed_groups(say))
        rounds = _Rounds(invocation, followed.part, topic, session, publication, pause, as_json)
        try:
            with status_line(stderr()) as show:
                while not stop():
                    round_began = clock.monotonic()
                    if followed.changed():
                        messages.note(
                            "relay.yaml has changed, and the version of the start stays in use:"
                            " start this command again to use the new one"
                        )
                    rounds.copy(show)
                    show(f"{rounds}; the last one ended at {format_time(clock.now_ms())}")
                    left = round_began + pause - clock.monotonic()
                    # not after a signal that came while signals were deferred
                    StoppableClock(clock, stop).sleep(max(0.0, left))
        except KeyboardInterrupt:
            pass  # how it ends
        finally:
            messages.note(f"stopped after {seconds(clock.monotonic() - began)}: {rounds}")
            session.stop()
            rounds.mark_end()
    return rounds.exit_code or INTERRUPTED


def _warn_of_groups(mirror: str, line: str) -> None:
    messages.warning(f"{mirror}: {line}")


@dataclass(slots=True)
class _Rounds:
    """The rounds of a command, and what they have copied so far."""

    invocation: Invocation
    mirrors: Mapping[str, Mirror]
    topic: str | None
    session: Session
    publication: Publication | None
    pause: float
    as_json: bool
    _problems: dict[str, LastingProblems] = field(default_factory=dict, init=False)
    _warnings: dict[str, set[str]] = field(default_factory=dict, init=False)
    _writers: dict[str, OtherWriters] = field(default_factory=dict, init=False)
    _fenced: set[str] = field(default_factory=set, init=False)
    _copied: set[str] = field(default_factory=set, init=False)
    _sources: Sources | None = field(default=None, init=False)
    _run_id: str = field(default_factory=lambda: uuid.uuid4().hex[:12], init=False)
    _rounds: int = field(default=0, init=False)
    _records: int = field(default=0, init=False)
    _size_bytes: int = field(default=0, init=False)

    def __str__(self) -> str:
        copied = f"{plural(self._records, 'record')}, {size(self._size_bytes)}"
        return f"{copied} in {plural(self._rounds, 'round')}"

    @property
    def exit_code(self) -> int:
        """The highest of what still fails; 0 if nothing does."""
        return max((lasting.exit_code for lasting in self._problems.values()), default=0)

    def copy(self, show: Callable[[str], None]) -> None:
        """Copy what is new in each mirror; a failure does not stop the next mirror.

        Args:
            show: replaces the status line.
        """
        self._rounds += 1
        self._read_sources()
        problems = self._publish(lambda publication: publication.serve())
        self._lasting("").update(problems, complete=False)
        for name, mirror in self.mirrors.items():
            if not self.session.stopped():
                self._copy_mirror(name, mirror, show)
        problems += self._publish(lambda publication: publication.write())
        self._lasting("").update(problems, complete=True)

    def mark_end(self) -> None:
        """Let no process wait for this command any more; Spark has ended."""
        for name in sorted(self._copied):
            other_writers.mark_end(Sides(name, self.mirrors[name]), self._run_id)

    def _read_sources(self) -> None:
        """Read the user's classes once for all mirrors and tasks of a round."""
        sources = Sources.of(spec for mirror in self.mirrors.values() for spec in mirror.classes)
        for line in sources.changes(self._sources):
            messages.note(f"{line}: the rounds from this one on use it")
        self._sources = sources

    @property
    def metrics(self) -> MetricsObserver | None:
        """What counts the copied records, if they are counted."""
        return None if self.publication is None else self.publication.observer

    def _publish(self, step: Callable[[Publication], None]) -> list[Problem]:
        try:
            if self.publication is not None:
                step(self.publication)
        except RelayError as error:
            return [problem(error)]
        return []

    def _copy_mirror(self, name: str, mirror: Mirror, show: Callable[[str], None]) -> None:
        lasting, writers = self._lasting(name), self._writers_of(name)
        try:
            # the next round is the retry: until then, it is the other mirrors' turn
            bound = api.Mirror(name, mirror, self.session)
            take = partial(bound.snapshot, self.topic, patient=False, settled=True)
            snapshot, waits = writers.prepared(take)
            if waits:
                # what is superseded waits for the operator, whenever the other one ends
                held = dict.fromkeys(snapshot.held.values())
                superseded = [each for each in held if isinstance(each, PolicySupersededError)]
                lasting.update(map(problem, superseded), complete=True)
                return
            planned = run_plan.plan(snapshot).with_all_configs()
            self._warn(name, set(map(str, run_report.warnings(planned))))
            observers: list[Observer] = [self._progress(name, show)]
            if self.metrics is not None:
                observers.append(self.metrics)
            result = bound.copy(planned, self.topic, observers, self._sources, self._run_id)
        except RelayError as error:
            if self.invocation.debug:
                messages.trace(error)
            if self.metrics is not None:
                self.metrics.failed(name, type(error).__name__)
            lasting.update([problem(error)], complete=False)
        else:
            self._report(result)
            current = list(problems(result))
            fenced_before = name in self._fenced
            self._fenced.discard(name)
            if any(one.kind is FencedError for one in current):
                self._fenced.add(name)
            if not fenced_before:  # the next round finds out who copies the mirror
                current = [one for one in current if one.kind is not FencedError]
            lasting.update(current, complete=not result.interrupted)

    def _writers_of(self, name: str) -> OtherWriters:
        return self._writers.setdefault(
            name,
            OtherWriters(
                *(self._run_id.__eq__, self.pause, SystemClock()),
                lambda line: messages.note(f"{name}: {line}"),
            ),
        )

    def _report(self, result: RunResult) -> None:
        self._records += result.records
        if result.topics:
            self._copied.add(result.mirror)
        self._size_bytes += result.size_bytes
        for upstream, why in result.diverged.items():
            messages.warning(f"{result.mirror}: upstream {upstream} is in quarantine: {why}")
        now_ms = SystemClock().now_ms()
        if self.as_json:
            if result.topics or result.reconfigured:
                messages.json_line(json_output.run(result, now_ms))
            return
        for change in result.reconfigured:
            messages.line(f"{result.mirror}: {change.done}")
        if result.topics:
            copied = f"{plural(result.records, 'record')}, {size(result.size_bytes)}"
            of_topics = f"of {plural(len(result.topics), 'topic')} in {seconds(result.seconds)}"
            messages.line(f"{result.mirror}: {format_time(now_ms)}: {copied} {of_topics}")

    def _warn(self, name: str, lines: set[str]) -> None:
        """Print the warnings that the last round of the mirror did not have."""
        for line in sorted(lines - self._warnings.get(name, set())):
            messages.warning(f"{name}: {line}")
        self._warnings[name] = lines

    def _progress(self, name: str, show: Callable[[str], None]) -> Lines:
        if stderr().is_terminal:
            return Lines(lambda line: show(f"{name}: {line}"), _STATUS_SECONDS)
        return Lines(lambda line: messages.note(f"{name}: {line}"), _LOG_SECONDS, announce=False)

    def _lasting(self, name: str) -> LastingProblems:
        return self._problems.setdefault(
            name, LastingProblems(f"{name}: " if name else "", SystemClock())
        )


_SHOWN = 3  # of each kind, when many begin or end in one round
_QUOTED = re.compile(r"'[^']*'")

Key = tuple[str, str]
"""The kind of a problem, and where it is; empty if it concerns a whole side."""


@dataclass(frozen=True, slots=True)
class Problem:
    """A failure of one round.

    Args:
        line: what happened, where, and what to do.
    """

    kind: type[RelayError]
    topic_partition: TopicPartition | None
    line: str

    @property
    def key(self) -> Key:
        """What stays the same while it lasts; messages may change, such as the offsets in them.

        What can be retried looks different from round to round: its side stands for its kind. A
        fight with another deployment is one problem, however many topic-partitions it stops.
        """
        if self.kind is FencedError:
            return self.kind.__name__, ""
        kind = (self.kind.retryable and self.kind.side) or self.kind.__name__
        # errors without a topic-partition quote the topics that they are about
        where = self.topic_partition or ", ".join(_QUOTED.findall(self.line))
        return kind, str(where)

    @property
    def is_outage(self) -> bool:
        """Whether it may be the cause of others of its kind."""
        return self.kind.retryable and not self.key[1]


def problem(error: RelayError) -> Problem:
    """Return the problem that an error is."""
    return Problem(type(error), error.topic_partition, str(error))


def problems(result: RunResult) -> Iterator[Problem]:
    """Yield the problems of a run."""
    yield from map(problem, result.errors)
    for outcome in result.outcomes:
        if outcome.status is not Status.DONE:
            kind = error_class(outcome.error_kind)
            yield Problem(kind, outcome.range.topic_partition, outcome.error)


class LastingProblems:
    """The problems of one mirror that last, and their lines on stderr.

    Args:
        prefix: of every line.
    """

    def __init__(self, prefix: str, clock: Clock) -> None:
        self._prefix = prefix
        self._clock = clock
        self._lasting: dict[Key, tuple[Problem, float]] = {}
        self._symptoms: dict[Key, set[Key]] = {}

    def update(self, problems: Iterable[Problem], *, complete: bool) -> None:
        """Report what is new, and what is over.

        Args:
            complete: whether the round reached its end, so that what it did not find is over.
        """
        now = self._clock.monotonic()
        current: dict[Key, Problem] = {}
        for problem in problems:
            current.setdefault(problem.key, problem)
        current = self._without_symptoms(current, complete=complete)
        new = {key: problem for key, problem in current.items() if key not in self._lasting}
        self._lasting |= {key: (problem, now) for key, problem in new.items()}
        for line in _lines({key: problem.line for key, problem in new.items()}, "and"):
            messages.error(f"{self._prefix}{line}")
        if complete:
            self._end({*self._lasting} - current.keys(), now)

    def _without_symptoms(
        self, present: Mapping[Key, Problem], *, complete: bool
    ) -> dict[Key, Problem]:
        """Return the problems without what an outage explains.

        What begins to fail beside an outage is part of it; it gets one more round to recover.
        """
        current = dict(present)
        outages = {key for key, problem in present.items() if problem.is_outage}
        for outage in outages | (self._symptoms.keys() if complete else set()):
            if outage in outages:
                same = {key for key in present if key[0] == outage[0] and key != outage}
                symptoms = self._symptoms[outage] = same - self._lasting.keys()
            elif symptoms := self._symptoms.pop(outage) & present.keys():
                current[outage] = self._lasting[outage][0]
            for key in symptoms:
                del current[key]
        return current

    def _end(self, keys: set[Key], now: float) -> None:
        lines = {}
        for key in [key for key in self._lasting if key in keys]:
            problem, since = self._lasting.pop(key)
            what, _, _ = problem.line.partition("; ")
            lines[key] = f"over after {seconds(now - since)}: {what}"
        for line in _lines(lines, "over, too:"):
            messages.note(f"{self._prefix}{line}")

    @property
    def exit_code(self) -> int:
        """The highest exit code of what lasts; 0 if nothing does."""
        return max((problem.kind.exit_code for problem, _ in self._lasting.values()), default=0)


def _lines(lines: Mapping[Key, str], more: str) -> Iterator[str]:
    """Yield the first lines of each kind, and one that counts the others of it."""
    kinds: dict[str, list[Key]] = defaultdict(list)
    for key in lines:
        kinds[key[0]].append(key)
    for keys in kinds.values():
        shown = _SHOWN if len(keys) > _SHOWN + 1 else len(keys)
        others = keys[shown:]
        yield from (lines[key] for key in keys[:shown])
        if others:
            places = ", ".join(where for _, where in others[:_SHOWN])
            places += ", ..." if len(others) > _SHOWN else ""
            yield f"{more} {len(others)} more problems of this kind: {places}"
