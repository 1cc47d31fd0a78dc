"""What a tick finds of one lane: evaluations of checks, a run to request, and a line."""

from bisect import bisect_right
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import islice

import dagster as dg

from relay_pipelines.checks import lag, lag_target, other_deployments, source_topics
from relay_pipelines.errors import RelayError
from relay_pipelines.model import TopicPartition, digest_of
from relay_pipelines.orchestration import naming, turns
from relay_pipelines.orchestration.check_builder import dated
from relay_pipelines.orchestration.lane import Lane
from relay_pipelines.output.formatting import plural
from relay_pipelines.output.page_view import held_line
from relay_pipelines.plan.blockers import Blocker
from relay_pipelines.plan.topic_selection import select
from relay_pipelines.prepare import topics
from relay_pipelines.protocol.open_transactions import OpenTransaction
from relay_pipelines.resources import KafkaResource
from relay_pipelines.sensors import source_events
from relay_pipelines.sensors.pruning import prune
from relay_pipelines.sensors.run_requests import RunRequests
from relay_pipelines.sensors.said import DELETED, Cursor
from relay_pipelines.sensors.unevaluated import no_longer_mirrored, not_reported, was_unknown
from relay_pipelines.snapshot.cluster_snapshot import ClusterSnapshot

_TURN = "turn"
_LAG_SECONDS = 300.0
_LAG_CHANGE_SECONDS = 60.0
_BY_HAND_SECONDS = 3_600.0
"""After how long a check repeats itself, because a person may have had it say something else."""
TOPICS_PER_TICK = 50
_REST = 0.1
"""The part of the time between two reports of a topic by which the second may be late."""

Event = dg.AssetMaterialization | dg.AssetCheckEvaluation


@dataclass(frozen=True, slots=True)
class LanePlan:
    """What a tick found.

    Args:
        lane: its name.
        cursor: what the next tick must know.
        request: of the lane's job; None if it has nothing to do, or runs.
        held: what guards hold back.
        line: what is waiting, and what happens about it.
        idle: whether a session copies, and nothing is waiting.
    """

    lane: str
    events: list[Event]
    cursor: Cursor
    request: dg.RunRequest | None
    held: Mapping[TopicPartition, RelayError]
    line: str
    idle: bool


@dataclass(slots=True)
class LaneTick:
    """One evaluation of a lane.

    Args:
        lane, lanes: as of `RunRequests`.
        unloaded: the lanes of relay.yaml that the code location has not loaded.
        snapshot: of what the lane copies.
        hidden: what hides copies of any lane of the mirror from readers at the destination.
        with_asset: the topics that have an asset in the code location.
        cursor: of the last tick; then what the next one must know.
        now: seconds since the Unix epoch.
    """

    context: dg.SensorEvaluationContext
    lane: Lane
    lanes: Sequence[Lane]
    unloaded: Sequence[Lane]
    kafka: KafkaResource
    snapshot: ClusterSnapshot
    hidden: Sequence[OpenTransaction]
    with_asset: Collection[str]
    cursor: Cursor
    now: float
    remarks: list[str] = field(default_factory=list, init=False)

    def plan(self) -> LanePlan:
        """Evaluate the lane.

        Raises:
            RelayError: the source or the destination does not answer.
        """
        instance, lane, now = self.context.instance, self.lane, self.now
        if self.cursor.is_unknown(lane, now):
            self.cursor.checks.marks.pop(_TURN, None)
            if was_unknown(instance, lane):
                self.cursor = Cursor(foreign=self.cursor.foreign)  # all is reported again
        self.cursor.known_at = now
        measured = lag.measure(self.snapshot, self.hidden)
        self._ask_for_reload()
        checks = [*self._checks(measured), *self._other_deployments()]
        events: list[Event] = [*(dated(event, now) for event in checks), *self._topics(measured)]
        self._warn_of_missing_topics()
        self.remarks += turns.waits_of_people(instance, lane, now)
        requests = RunRequests(instance, self.lane, self.lanes, self.kafka, self.snapshot, now)
        first = held_line(lane.mirror, measured.held)
        request = requests.find("; ".join(filter(None, [first, str(measured)])))
        self._prune()
        line = "; ".join([str(measured), *self.remarks, *requests.remarks])
        page = measured.page
        waiting = page.lag.records or page.opened.records or measured.held
        idle = not (request or waiting or self.remarks)
        return LanePlan(lane.name, events, self.cursor, request, measured.held, line, idle)

    def _prune(self) -> None:
        """Delete what is old; if that fails, the lane is copied all the same."""
        try:
            prune(self.context.instance, self.lane, self.now)
        except Exception as error:
            self.context.log.exception("%s: old windows and runs stay", self.lane.name)
            self.remarks.append(f"old windows and runs cannot be deleted: {error}")

    def _due(self, check: str, mark: str, repeat: float) -> bool:
        return self.cursor.checks.due(check, mark, self.now, repeat)

    def _checks(self, measured: lag.Lag) -> Iterator[dg.AssetCheckEvaluation]:
        """The lag on a change of a minute or after a while, and missing topics on a change."""
        lane, snapshot = self.lane, self.snapshot
        oldest = measured.page.lag.seconds or 0.0
        is_other_age = abs(oldest - self.cursor.lag_seconds) > _LAG_CHANGE_SECONDS
        held = sorted(
            f"{tp} {type(error).__name__}"  # not what changes while it lasts
            for tp, error in measured.held.items()
            if tp.topic in self.with_asset
        )
        mark = f"{lag.passes(lane, measured)} {held}"
        if self._due(naming.LAG, mark, 0 if is_other_age else _LAG_SECONDS):
            self.cursor.lag_seconds = oldest
            yield lag.result(lane, measured).evaluation(lane.check(naming.LAG))
        loaded = [topic for topic in self._not_loaded() if topic in self.with_asset]
        without = [topic for topic in self._not_loaded() if topic not in self.with_asset]
        not_shown = map(str, snapshot.held_for(Blocker.UNKNOWN, Blocker.REFUSED))
        missing = [*map(sorted, (snapshot.selected.deleted, snapshot.selected.unseen, not_shown))]
        if self._due(naming.SOURCE_TOPICS, str([*missing, without, loaded]), _BY_HAND_SECONDS):
            result = source_topics.result(snapshot, without, loaded)
            yield result.evaluation(lane.check(naming.SOURCE_TOPICS))

    def _other_deployments(self) -> Iterator[dg.AssetCheckEvaluation]:
        """Other deployments, when one comes or the last one goes, and their runs after a while."""
        known = self.cursor.foreign
        foreign = other_deployments.find(self.context.instance, self.snapshot, self.now, known)
        self.cursor.foreign = foreign
        copying = other_deployments.copying(foreign)
        if copying:
            self.remarks.append(other_deployments.words(copying))
        repeat = _BY_HAND_SECONDS if foreign == known else _LAG_SECONDS
        if self._due(naming.OTHER_DEPLOYMENTS, str(bool(copying)), repeat):
            key = self.lane.check(naming.OTHER_DEPLOYMENTS)
            yield other_deployments.result(foreign).evaluation(key)

    def _topics(self, measured: lag.Lag) -> Iterator[Event]:
        """What is new of the topics with an asset: of some in a tick, first of those that fail.

        Dagster stores the events of a tick one by one, before it starts the run that the tick
        requests. So the rest of very many comes with the next ticks.
        """
        instance, lane, now, said = self.context.instance, self.lane, self.now, self.cursor.topics
        shown = self._topics_with_asset()
        misses = lag_target.missed(lane, self.snapshot, measured.look.late, round(now * 1000))
        marks = {topic: misses[topic].reason if topic in misses else "" for topic in shown}
        selected, denied = self.snapshot.selected, self._denied()
        missing = filter(self.with_asset.__contains__, [*selected.deleted, *selected.unseen])
        marks |= dict.fromkeys(missing, DELETED) | denied
        said.keep(marks)
        failing_first = sorted(marks, key=lambda topic: topic not in misses)
        changed = (topic for topic in failing_first if said.due(topic, marks[topic], now))
        due = list(islice(changed, TOPICS_PER_TICK))
        between = source_events.between_seconds(len(shown))
        turn = self._turn(shown, between * _REST, TOPICS_PER_TICK - len(due))
        due += not_reported(instance, lane, [topic for topic in turn if topic not in due], misses)
        for topic in due:
            if topic in denied:
                event = no_longer_mirrored(lane, topic, denied[topic], now)
            else:
                event = lag_target.evaluation(lane, topic, str(misses.get(topic, "")))
            yield dated(event, now)
        yield from source_events.find(instance, lane.path, self.snapshot, turn, between, now)

    def _turn(self, topics: Sequence[str], rest: float, most: int) -> Sequence[str]:
        """The topics of which this tick reads in Dagster what was reported.

        Ticks take turns over all, and rest after a turn until one may be due, or the topics are
        others: to read what was reported of fifty takes a third of an idle tick.
        """
        cursor = self.cursor
        if self._due(_TURN, digest_of(topics), rest):
            cursor.left = len(topics)
        # one that comes and goes keeps no other one from its turn
        first = bisect_right(topics, cursor.looked)
        turn = [*topics[first:], *topics[:first]][: min(most, cursor.left)]
        cursor.left -= len(turn)
        cursor.looked = turn[-1] if turn else cursor.looked
        return turn

    def _denied(self) -> dict[str, str]:
        """The topics with an asset that relay.yaml no longer mirrors, each with why."""
        configured = self.kafka.mirror(self.lane.mirror).topics
        return {
            decision.topic: decision.why
            for decision in select(self.with_asset, configured.allow, configured.deny)
            if not decision.included and self.lane.belongs(decision.topic)
        }

    def _topics_with_asset(self) -> list[str]:
        unknown = {tp.topic for tp in self.snapshot.held_for(Blocker.UNKNOWN)}
        every = unknown.union(self.snapshot.destinations)
        return sorted(topic for topic in every if topic in self.with_asset)

    def _not_loaded(self) -> list[str]:
        """The topics that are copied, and that have no asset, or not the lane of relay.yaml."""
        return sorted(
            topic
            for topic in self.snapshot.destinations
            if topic not in self.with_asset or any(each.belongs(topic) for each in self.unloaded)
        )

    def _ask_for_reload(self) -> None:
        without = [topic for topic in self._not_loaded() if topic not in self.with_asset]
        if without:
            self.remarks.append(
                f"{plural(len(without), 'topic')} without an asset ({', '.join(without[:3])}),"
                " copied all the same: reload the code location to see them"
            )
        topics_shown = self.snapshot.destinations
        if lanes := [lane.name for lane in self.unloaded if any(map(lane.belongs, topics_shown))]:
            names = ", ".join(lanes)
            self.remarks.append(
                f"{self.lane.name} copies what belongs to {names}: reload the code location, which"
                " has not loaded it"
            )

    def _warn_of_missing_topics(self) -> None:
        self.remarks += map(str, self.snapshot.all_takeovers)
        if self.snapshot.selected.deleted:
            self.remarks.append(
                f"missing at the source: {', '.join(sorted(self.snapshot.selected.deleted))}"
            )
        for line in map(str, topics.unseen(self.snapshot)):
            self.context.log.warning(line)
            self.remarks.append(line)
