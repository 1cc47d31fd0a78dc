"""How far a lane is behind its source: for how long the oldest record waits for its copy."""

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import dagster as dg

from relay_pipelines.errors import RelayError, together
from relay_pipelines.model import TopicPartition
from relay_pipelines.orchestration import naming
from relay_pipelines.orchestration.check_builder import CheckResult, build_check
from relay_pipelines.orchestration.lane import Lane
from relay_pipelines.output import page_view
from relay_pipelines.output.formatting import open_transactions, plural, seconds
from relay_pipelines.page.look import Look, look_at
from relay_pipelines.page.page import Page, page_of, page_unreachable
from relay_pipelines.protocol.open_transactions import OpenTransaction
from relay_pipelines.resources import KafkaResource
from relay_pipelines.snapshot import hidden_copies
from relay_pipelines.snapshot.cluster_snapshot import ClusterSnapshot

_MOST_AGES = 100  # a planner asks at each tick


class Lag(NamedTuple):
    """How far a lane is behind: a look at it, and its page, as `relay status` has one."""

    look: Look
    page: Page

    @property
    def held(self) -> Mapping[TopicPartition, RelayError]:
        """What is not copied, and why."""
        return self.look.snapshot.held

    @property
    def hidden_seconds(self) -> float:
        """The age of the oldest transaction that hides copies from readers."""
        return max(map(self._age, self.look.hidden), default=0.0)

    def hidden(self, lane: Lane) -> list[RelayError]:
        """Return the transactions that have hidden copies since before the lag target."""
        look = self.look
        return [
            transaction.error(look.snapshot.destination, look.taken_ms)
            for transaction in look.hidden
            if self._age(transaction) * 1000 > lane.window.lag_target
        ]

    def _age(self, transaction: OpenTransaction) -> float:
        return transaction.seconds(self.look.taken_ms) or 0.0

    def __str__(self) -> str:
        records, oldest = self.page.lag.records, self.page.lag.seconds
        age = "of unknown age" if oldest is None else f"the oldest for {seconds(oldest)}"
        waiting = f"{plural(records, 'record')} waiting, {age}" if records else "nothing is waiting"
        opened = open_transactions(self.look.snapshot.positions, self.look.taken_ms)
        return "; ".join(filter(None, [waiting, opened]))


def measure(snapshot: ClusterSnapshot, hidden: Sequence[OpenTransaction]) -> Lag:
    """Measure the lag of a lane.

    Args:
        hidden: as in `look_at`.
    """
    look = look_at(snapshot, hidden, _MOST_AGES)
    return Lag(look, page_of(look))


def passes(lane: Lane, lag: Lag) -> bool:
    """Whether the lane meets its target and no guard holds anything back."""
    is_open_too_long = (lag.page.opened.seconds or 0.0) * 1000 > lane.window.lag_target
    return not (lag.look.late or is_open_too_long or lag.held or lag.hidden(lane))


def result(lane: Lane, lag: Lag) -> CheckResult:
    """What the check says of a lag."""
    return CheckResult(passes(lane, lag), _words(lane, lag), _metadata(lane, lag))


def unknown(lane: Lane, why: str, page: Page | None) -> CheckResult:
    """What the check says while a cluster does not answer.

    Args:
        page: None if the clusters answer, and something else has failed.
    """
    status = {} if page is None else _status(page)
    target = {"target (seconds)": lane.window.lag_target / 1000}
    return CheckResult(passed=False, description=why, metadata=status | target)


def build(lane: Lane) -> dg.AssetChecksDefinition:
    """The check that people run from the UI."""

    def look(_context: dg.AssetCheckExecutionContext, kafka: KafkaResource) -> CheckResult:
        try:
            snapshot = kafka.snapshot(lane.mirror, lane.belongs)
            return result(lane, measure(snapshot, hidden_copies.find(snapshot)))
        except RelayError as error:
            raise dg.Failure(
                str(error),
                metadata=_status(page_unreachable(lane.mirror, error, kafka.clock.now_ms())),
            ) from None

    return build_check(
        lane.check(naming.LAG),
        "The oldest record not yet copied, also one in an open transaction, and what hides copies"
        " from readers at the destination, are younger than"
        f" {seconds(lane.window.lag_target / 1000)}.",
        look,
        lane.prefix,
    )


def _status(page: Page) -> dict[str, dg.MetadataValue[Any]]:
    return {"status": dg.MetadataValue.md(page_view.markdown(page))}


def _words(lane: Lane, lag: Lag) -> str:
    return "; ".join(map(str, [lag, *together(lag.held.values()), *lag.hidden(lane)]))


def _metadata(lane: Lane, lag: Lag) -> dict[str, Any]:
    oldest, opened = lag.page.lag.seconds, lag.page.opened
    age = {} if oldest is None else {"lag (seconds)": round(oldest, 1)}
    return {
        **_status(lag.page),
        "lag (records)": lag.page.lag.records,
        **age,
        "late (topic-partitions)": len(lag.look.late),
        "open transaction (records)": opened.records,
        "open transaction (seconds)": round(opened.seconds or 0.0, 1),
        "hidden from readers (seconds)": round(lag.hidden_seconds, 1),
        "target (seconds)": lane.window.lag_target / 1000,
        "held back (topic-partitions)": len(lag.held),
    }
