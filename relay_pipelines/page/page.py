"""The page of a mirror: is it copied, how old is the oldest uncopied record, who copies, what next.

`relay status`, Dagster, the exporter and JSON show this page, each in its own form.
"""

from __future__ import annotations

import heapq
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

from relay_pipelines.errors import DivergedUpstreamError, RelayError
from relay_pipelines.finding import Finding, Kind, warning
from relay_pipelines.model import BY_DRIVER, Checkpoint, TopicPartition
from relay_pipelines.page import held
from relay_pipelines.page.held import STATES, Held, State
from relay_pipelines.page.look import Look
from relay_pipelines.plan.positions import open_since
from relay_pipelines.prepare import findings
from relay_pipelines.snapshot.lag import NO_LAG, PartitionLag, total

_QUIET_SECONDS = 60.0
"""A session needs some seconds to start: nothing is said to stand still before."""
_QUIET_WINDOWS = 3


@dataclass(frozen=True, slots=True)
class Copier:
    """Who has committed last."""

    run_id: str
    upstream: str
    committed_at_ms: int


@dataclass(frozen=True, slots=True)
class Page:
    """What an operator has to know of a mirror now.

    Args:
        lag: of all topic-partitions of which it is known, also of those that are held back.
        opened: what waits for transactions at the source to end; it does not count as lag.
        upstream: what a run would read.
        upstream_behind: records that only other upstreams have.
        held: the worst first.
        findings: what else deserves attention, such as topics that the source no longer has.
        error: why nothing is known; empty if the clusters answer.
        since_ms: since when; None if they answer, or if unknown.
    """

    mirror: str
    state: State
    taken_ms: int
    lag: PartitionLag = NO_LAG
    opened: PartitionLag = NO_LAG
    upstream: str = ""
    upstream_behind: int = 0
    copier: Copier | None = None
    held: tuple[Held, ...] = ()
    findings: tuple[Finding, ...] = ()
    error: str = ""
    since_ms: int | None = None

    @property
    def command(self) -> str:
        """The next command; empty if there is nothing to do, or if it is that of what is held."""
        return STATES[self.state].command.format(mirror=self.mirror)

    @property
    def runbook(self) -> str:
        """The page that explains the state; empty if there is nothing to do."""
        return STATES[self.state].page


def page_of(look: Look) -> Page:
    """Say what has been seen of a mirror."""
    snapshot = look.snapshot
    state, stalled = _judge(look)
    return Page(
        mirror=snapshot.name,
        state=state,
        taken_ms=look.taken_ms,
        lag=total(look.lags.values()),
        opened=PartitionLag(
            sum(position.open_records for position in snapshot.positions),
            open_since(snapshot.positions, look.taken_ms),
        ),
        upstream=snapshot.upstream.name,
        upstream_behind=snapshot.selection.read.behind,
        copier=_copier(snapshot.checkpoints.values()),
        held=(
            *held.of_guards(look),
            *held.of_topics(look, stalled),
            *held.open_transactions(look),
            *held.hidden_copies(look),
        ),
        findings=(
            *(
                warning(
                    Kind.UPSTREAM_UNREADABLE,
                    "",
                    f"upstream {each.name} cannot be read now: {each.why}",
                    "see `relay upstreams`",
                )
                for each in snapshot.selection.upstreams
                if not each.eligible
            ),
            *findings.of_topics(snapshot),
            *_of_configs(look),
        ),
    )


def _of_configs(look: Look) -> Iterator[Finding]:
    if number := look.config_differences:
        yield warning(
            Kind.CONFIG_DIFFERENCE,
            "",
            f"keys of topics that are not as at the source: {number}",
            "see `relay plan`",
        )


def page_unreachable(
    mirror: str, error: RelayError, now_ms: int, since_ms: int | None = None
) -> Page:
    """Say that nothing is known of a mirror, and since when if that is known."""
    state = State.UNKNOWN if error.retryable else State.REFUSED
    if isinstance(error, DivergedUpstreamError):
        state = State.DIVERGED
    return Page(mirror, state, now_ms, error=str(error), since_ms=since_ms)


def _judge(look: Look) -> tuple[State, list[str]]:
    """Return the state of what is not held back, and the topics that alone are not copied."""
    positions, held_back = look.snapshot.positions, look.snapshot.held
    if not positions and not held_back:
        return State.NO_TOPIC, []
    if all(position.topic_partition in held_back for position in positions):
        return State.HELD_BACK, []
    waiting = _by_topic(
        {tp: lag for tp, lag in look.lags.items() if lag.records and tp not in held_back}
    )
    if waiting and _stands_still(look, waiting):
        return State.NOT_COPYING, []
    commits = _Commits(look.snapshot.checkpoints)
    names = {tp.topic for tp in look.late if tp not in held_back}
    late = {
        topic: _quiet_seconds(look, commits.of(topic), lag)
        for topic, lag in waiting.items()
        if topic in names
    }
    stalled = [
        topic
        for topic, quiet in late.items()
        if quiet > look.target_seconds(topic) >= _seconds_since(look, commits.of_others(topic))
    ]
    if late.keys() - stalled:
        return State.BEHIND, stalled
    return State.COPYING if waiting.keys() - stalled else State.UP_TO_DATE, stalled


def _stands_still(look: Look, waiting: Mapping[str, PartitionLag]) -> bool:
    """Whether nobody has committed for longer than a copy may take to begin, or ever."""
    copier = _copier(look.snapshot.checkpoints.values())
    if copier is None:
        return True
    quiet = _quiet_seconds(look, copier.committed_at_ms, total(waiting.values()))
    every = max(look.snapshot.sides.mirror.window_of(topic).every for topic in waiting) / 1000
    return quiet > max(_QUIET_SECONDS, _QUIET_WINDOWS * every)


def _quiet_seconds(look: Look, committed_at_ms: int | None, lag: PartitionLag) -> float:
    """For how long records have waited without a commit.

    Args:
        committed_at_ms: when something was committed last; None if nothing ever was.
    """
    since = _seconds_since(look, committed_at_ms)
    return since if lag.seconds is None else min(since, lag.seconds)


def _seconds_since(look: Look, committed_at_ms: int | None) -> float:
    return float("inf") if committed_at_ms is None else (look.taken_ms - committed_at_ms) / 1000


class _Commits:
    """When tasks have committed the topics last, in milliseconds since the Unix epoch."""

    def __init__(self, checkpoints: Mapping[TopicPartition, Checkpoint]) -> None:
        self._newest: dict[str, int] = {}
        for tp, checkpoint in checkpoints.items():
            if checkpoint.run_id != BY_DRIVER:
                known = self._newest.get(tp.topic, checkpoint.committed_at_ms)
                self._newest[tp.topic] = max(known, checkpoint.committed_at_ms)
        self._last = heapq.nlargest(2, self._newest.items(), key=lambda pair: pair[1])

    def of(self, topic: str) -> int | None:
        """Return the last commit of a topic."""
        return self._newest.get(topic)

    def of_others(self, topic: str) -> int | None:
        """Return the last commit of any other topic."""
        return next((committed for other, committed in self._last if other != topic), None)


def _copier(checkpoints: Iterable[Checkpoint]) -> Copier | None:
    by_tasks = (checkpoint for checkpoint in checkpoints if checkpoint.run_id != BY_DRIVER)
    last = max(by_tasks, key=lambda checkpoint: checkpoint.committed_at_ms, default=None)
    return None if last is None else Copier(last.run_id, last.upstream, last.committed_at_ms)


def _by_topic(lags: Mapping[TopicPartition, PartitionLag]) -> dict[str, PartitionLag]:
    groups: defaultdict[str, list[PartitionLag]] = defaultdict(list)
    for tp, lag in lags.items():
        groups[tp.topic].append(lag)
    return {topic: total(of_topic) for topic, of_topic in groups.items()}
