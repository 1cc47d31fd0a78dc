"""What a tick finds of one lane: evaluations of checks, a run to request, and a line."""

from collections.abc import Collection, Container, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

import dagster as dg

from relay_pipelines.checks import lag, lag_target, other_deployments, source_topics
from relay_pipelines.errors import RelayError
from relay_pipelines.model import TopicPartition
from relay_pipelines.orchestration import naming, turns
from relay_pipelines.orchestration.lane import Lane, Share
from relay_pipelines.output.formatting import plural
from relay_pipelines.output.page_view import held_line
from relay_pipelines.plan.blockers import Blocker
from relay_pipelines.prepare import topics
from relay_pipelines.protocol.open_transactions import OpenTransaction
from relay_pipelines.resources import KafkaResource
from relay_pipelines.sensors import source_events
from relay_pipelines.sensors.pruning import prune
from relay_pipelines.sensors.run_requests import RunRequests
from relay_pipelines.sensors.source_events import Cursor, dated
from relay_pipelines.snapshot.cluster_snapshot import ClusterSnapshot

_LAG_SECONDS = 300.0
_LAG_CHANGE_SECONDS = 60.0
_TOPICS_PER_TICK = 50

Event = dg.AssetMaterialization | dg.AssetCheckEvaluation
Found = tuple[list[dg.AssetCheckEvaluation], Cursor]


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
        snapshot: of what the lane copies.
        hidden: what hides copies of any lane of the mirror from readers at the destination.
        with_asset: the topics that have an asset in the code location.
        cursor: of the last tick.
    """

    context: dg.SensorEvaluationContext
    share: Share
    kafka: KafkaResource
    snapshot: ClusterSnapshot
    hidden: Sequence[OpenTransaction]
    with_asset: Container[str]
    cursor: Cursor
    remarks: list[str] = field(default_factory=list, init=False)

    @property
    def _lane(self) -> Lane:
        return self.share.lane

    def plan(self) -> LanePlan:
        """Evaluate the lane.

        Raises:
            RelayError: the source or the destination does not answer.
        """
        now = self.kafka.clock.now_ms() / 1000
        instance, lane = self.context.instance, self._lane
        measured = lag.measure(self.snapshot, self.hidden)
        self._ask_for_reload()
        checks, cursor = self._checks(measured, now)
        shown = replace(lane, topics=tuple(self._topics_with_asset()))
        sources, cursor = source_events.find(instance, shown, self.snapshot, cursor, now)
        self._warn_of_missing_topics()
        self.remarks += turns.waits_of_people(instance, lane, now)
        requests = RunRequests(
            instance, self.share, self.kafka, self.snapshot, now, self._not_loaded()
        )
        first = held_line(lane.mirror, measured.held)
        request = requests.find("; ".join(filter(None, [first, str(measured)])))
        prune(instance, replace(lane, topics=self.share.topics), now)
        line = "; ".join([str(measured), *self.remarks, *requests.remarks])
        events: list[Event] = [*sources, *checks]
        page = measured.page
        waiting = page.lag.records or page.opened.records or measured.held
        idle = not (request or waiting or self.remarks)
        return LanePlan(lane.name, events, cursor, request, measured.held, line, idle)

    def _checks(self, measured: lag.Lag, now: float) -> Found:
        """The lag on a change of a minute or after a while; the other checks on a change."""
        events, cursor = [], self.cursor.of_tick(self._lane, now)
        passed, oldest = lag.passes(self._lane, measured), measured.page.lag.seconds or 0.0
        held = _reasons(self._held_topics(measured))
        if (
            passed != cursor.lag_passed
            or held != cursor.held
            or now - cursor.lag_at > _LAG_SECONDS
            or abs(oldest - cursor.lag_seconds) > _LAG_CHANGE_SECONDS
        ):
            events.append(lag.result(self._lane, measured).evaluation(self._lane.check(naming.LAG)))
            cursor = replace(cursor, lag_passed=passed, lag_at=now, lag_seconds=oldest, held=held)
        late, cursor = self._late_topics(cursor, measured)
        events += lag_target.evaluations(self._lane, late)
        loaded = [topic for topic in self._not_loaded() if topic in self.with_asset]
        without = sorted(set(self._not_loaded()).difference(loaded))
        missing = sorted(self._missing(without, loaded))
        if missing != cursor.missing:
            result = source_topics.result(self.snapshot, without, loaded)
            events.append(result.evaluation(self._lane.check(naming.SOURCE_TOPICS)))
            cursor = replace(cursor, missing=missing)
        more, cursor = self._foreign(cursor, now)
        events += more
        return [dated(event, now) for event in events], cursor

    def _missing(self, without_asset: Sequence[str], loaded: Sequence[str]) -> Iterator[str]:
        """What `source_topics` reports when it changes: topics, each with what is wrong with it."""
        snapshot = self.snapshot
        not_shown = snapshot.held_for(Blocker.UNKNOWN, Blocker.REFUSED)
        for why, names in (
            ("deleted", snapshot.selected.deleted),
            (
                "not shown",
                [*snapshot.selected.unseen, *map(str, not_shown)],
            ),
            ("without asset", without_asset),
            ("of another lane", loaded),
        ):
            yield from (f"{name} {why}" for name in names)

    def _newly_deleted(self, cursor: Cursor) -> list[str]:
        """The topics with an asset that the source had at the last tick, and has no longer."""
        deleted = (topic for topic in self.snapshot.selected.deleted if topic in self.with_asset)
        return sorted(topic for topic in deleted if not cursor.is_deleted(topic))

    def _foreign(self, cursor: Cursor, now: float) -> Found:
        """Other deployments, when one comes or the last one goes, and their runs after a while."""
        known = cursor.foreign
        found = other_deployments.find(self.context.instance, self.snapshot, now, known or {})
        copying = other_deployments.copying(found)
        if copying:
            self.remarks.append(other_deployments.words(copying))
        is_new = known is None or bool(copying) != bool(other_deployments.copying(known))
        if not is_new and (found == known or now - cursor.foreign_at < _LAG_SECONDS):
            return [], replace(cursor, foreign=found)
        key = self._lane.check(naming.OTHER_DEPLOYMENTS)
        event = other_deployments.result(found).evaluation(key)
        return [event], replace(cursor, foreign=found, foreign_at=now)

    def _held_topics(self, measured: lag.Lag) -> dict[str, dict[TopicPartition, RelayError]]:
        errors: dict[str, dict[TopicPartition, RelayError]] = {}
        for tp, error in measured.held.items():
            if tp.topic in self.with_asset:
                errors.setdefault(tp.topic, {})[tp] = error
        return errors

    def _late_topics(self, cursor: Cursor, measured: lag.Lag) -> tuple[Mapping[str, str], Cursor]:
        """The topics to report: those that miss the lag target for a new reason, or meet it again.

        Dagster stores the events of a tick one by one, before it starts the run that the tick
        requests. So the rest of very many comes with the next ticks.

        Returns:
            topic -> why it misses the target; empty if it meets it, or if the source has deleted
            it. All topics at first; a new one when it comes.
        """
        now_ms = self.kafka.clock.now_ms()
        misses = lag_target.missed(self._lane, self.snapshot, measured.look.late, now_ms)
        topics_shown = self._topics_with_asset()
        reasons = {topic: misses[topic].reason for topic in topics_shown if topic in misses}
        new = self._not_reported(cursor, topics_shown)
        due = [
            topic
            for topic in topics_shown
            if topic in new or reasons.get(topic) != cursor.late.get(topic)
        ]
        due.sort(key=lambda topic: topic not in misses)
        said = {topic: str(misses.get(topic, "")) for topic in due[:_TOPICS_PER_TICK]}
        rest = set(due[_TOPICS_PER_TICK:])
        late = {topic: why for topic, why in reasons.items() if topic not in rest}
        late |= {topic: why for topic, why in cursor.late.items() if topic in rest}
        # nothing of those that are deleted waits any more
        said |= dict.fromkeys(self._newly_deleted(cursor), "")
        reported = len(topics_shown) - len(rest.intersection(new))
        return said, replace(cursor, late=late, topics=reported)

    def _not_reported(self, cursor: Cursor, topics: Sequence[str]) -> Collection[str]:
        """The topics of which Dagster has no lag target, or one that is not what the cursor has."""
        if len(topics) == cursor.topics:
            return ()
        return source_events.not_reported(
            self.context.instance, self._lane, topics, set(cursor.late)
        )

    def _topics_with_asset(self) -> list[str]:
        unknown = {tp.topic for tp in self.snapshot.held_for(Blocker.UNKNOWN)}
        every = unknown.union(self.snapshot.destinations)
        return sorted(topic for topic in every if topic in self.with_asset)

    def _not_loaded(self) -> list[str]:
        """The topics that are copied, and that have no asset, or not the lane of relay.yaml."""
        return sorted(
            topic
            for topic in self.snapshot.destinations
            if topic not in self.with_asset or self.share.is_guest(topic)
        )

    def _ask_for_reload(self) -> None:
        without = [topic for topic in self._not_loaded() if topic not in self.with_asset]
        if without:
            self.remarks.append(
                f"{plural(len(without), 'topic')} without an asset ({', '.join(without[:3])}),"
                " copied all the same: reload the code location to see them"
            )
        if self.share.guests:
            names = ", ".join(guest.name for guest in self.share.guests)
            self.remarks.append(
                f"{self._lane.name} copies what belongs to {names}: reload the code location, which"
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


def _reasons(errors: Mapping[str, Mapping[TopicPartition, RelayError]]) -> dict[str, str]:
    """Return for each topic what guards hold back, without what changes while it lasts."""
    return {
        topic: ", ".join(sorted(f"{tp.partition}: {type(held[tp]).__name__}" for tp in held))
        for topic, held in sorted(errors.items())
    }
