"""How far a lane is behind its source: judged by the age of the oldest record that is not copied yet."""

from collections.abc import Sequence
from dataclasses import dataclass

import dagster as dg

from relay_pipelines.console.formatting import count, open_since, open_transactions, plural, seconds
from relay_pipelines.errors import RelayError
from relay_pipelines.lanes import naming
from relay_pipelines.lanes.lane import Lane
from relay_pipelines.plan.positions import data_loss, lag_records
from relay_pipelines.resources import KafkaResource
from relay_pipelines.snapshot import lag
from relay_pipelines.snapshot.cluster_snapshot import ClusterSnapshot


@dataclass(frozen=True, slots=True)
class Lag:
    """How far a lane is behind.

    Args:
        records: source offsets not copied, without those that wait for open transactions.
        oldest_seconds: age of the oldest record among them, as far as was looked; 0 if there are
        none.
        open_records: source offsets that wait for open transactions.
        open_seconds: age of the oldest of these transactions; 0 if there is none.
        opened: the same in words; empty if there is none.
        held_back: topic-partitions that a guard holds back, or whose loss was accepted just now.
    """

    records: int
    oldest_seconds: float
    open_records: int
    open_seconds: float
    opened: str
    held_back: Sequence[RelayError]

    def __str__(self) -> str:
        waiting = f"{plural(self.records, 'record')} waiting, the oldest for {seconds(self.oldest_seconds)}"
        return "; ".join(
            filter(None, [waiting if self.records else "nothing is waiting", self.opened])
        )


def measure(kafka: KafkaResource, snapshot: ClusterSnapshot) -> Lag:
    """Measure by a survey; looks at the first waiting record of the topic-partitions that are furthest behind."""
    waiting = lag_records(snapshot.positions)
    oldest_ms = lag.oldest_uncopied_ms(
        snapshot, kafka.mirror(snapshot.mirror).copy_options, kafka.clock
    )
    now_ms = kafka.clock.now_ms()
    return Lag(
        records=sum(waiting.values()),
        oldest_seconds=0.0 if oldest_ms is None else max(0.0, (now_ms - oldest_ms) / 1000),
        open_records=sum(len(one.open_transaction) for one in snapshot.positions),
        open_seconds=open_since(snapshot.positions, now_ms) or 0.0,
        opened=open_transactions(snapshot.positions, now_ms),
        held_back=[
            *snapshot.accepted,
            *(loss for one in snapshot.positions if (loss := data_loss(one))),
        ],
    )


def passes(lane: Lane, lag: Lag) -> bool:
    """Whether the target is kept and no guard holds anything back."""
    return (
        max(lag.oldest_seconds, lag.open_seconds) * 1000 <= lane.window.lag_target
        and not lag.held_back
    )


def evaluation(lane: Lane, lag: Lag) -> dg.AssetCheckEvaluation:
    """What the planner reports on its ticks."""
    return dg.AssetCheckEvaluation(
        asset_key=naming.windows(lane.mirror, lane.name),
        check_name=naming.LAG,
        passed=passes(lane, lag),
        description=_words(lag),
        metadata=_metadata(lane, lag),
    )


def build(lane: Lane) -> dg.AssetChecksDefinition:
    """The check as people run it themselves."""

    @dg.asset_check(
        asset=naming.windows(lane.mirror, lane.name),
        name=naming.LAG,
        description="The oldest record that is not copied yet, be it for an open transaction, is younger than"
        f" {seconds(lane.window.lag_target / 1000)}.",
    )
    def lag_check(kafka: KafkaResource) -> dg.AssetCheckResult:
        snapshot = kafka.snapshot(lane.mirror, lane.belongs, configs=False)
        found = measure(kafka, snapshot)
        return dg.AssetCheckResult(
            passed=passes(lane, found), description=_words(found), metadata=_metadata(lane, found)
        )

    return lag_check


def _words(lag: Lag) -> str:
    return "; ".join([str(lag), *(str(loss) for loss in lag.held_back)])


def _metadata(lane: Lane, lag: Lag) -> dict[str, float | int | str]:
    return {
        "lag (records)": lag.records,
        "lag (seconds)": round(lag.oldest_seconds, 1),
        "open transaction (records)": lag.open_records,
        "open transaction (seconds)": round(lag.open_seconds, 1),
        "target (seconds)": lane.window.lag_target / 1000,
        "topic-partitions held back": len(lag.held_back),
        "waiting": count(lag.records),
    }
