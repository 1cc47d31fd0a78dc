"""How far a lane is behind its source, by the age of the oldest record not yet copied."""

from collections.abc import Sequence
from dataclasses import dataclass

import dagster as dg

from relay_pipelines.console.formatting import open_transactions, plural, seconds
from relay_pipelines.errors import RelayError
from relay_pipelines.lanes import naming
from relay_pipelines.lanes.lane import Lane
from relay_pipelines.plan.positions import data_loss, lag_records, open_since
from relay_pipelines.resources import KafkaResource, kafka_key, kafka_of
from relay_pipelines.snapshot import lag
from relay_pipelines.snapshot.cluster_snapshot import ClusterSnapshot


@dataclass(frozen=True, slots=True)
class Lag:
    """How far a lane is behind.

    Args:
        records: source offsets not yet copied, without those that wait for open transactions.
        oldest_seconds: age of the oldest record found among them; 0 if there are none.
        open_records: source offsets that wait for open transactions.
        open_seconds: age of the oldest of these transactions; 0 if there is none.
        opened: the open transactions in words; empty if there is none.
        held_back: what a data-loss guard holds back, losses that this snapshot accepted, and what
            cannot be read.
    """

    records: int
    oldest_seconds: float
    open_records: int
    open_seconds: float
    opened: str
    held_back: Sequence[RelayError]

    def __str__(self) -> str:
        age = seconds(self.oldest_seconds)
        waiting = f"{plural(self.records, 'record')} waiting, the oldest for {age}"
        return "; ".join(
            filter(None, [waiting if self.records else "nothing is waiting", self.opened])
        )


def measure(kafka: KafkaResource, snapshot: ClusterSnapshot) -> Lag:
    """Measure the lag; reads the first waiting record of the most lagging topic-partitions."""
    waiting = lag_records(snapshot.positions)
    oldest_ms = lag.oldest_uncopied_ms(
        snapshot, kafka.mirror(snapshot.mirror).copy_options, kafka.clock
    )
    now_ms = kafka.clock.now_ms()
    return Lag(
        records=sum(waiting.values()),
        oldest_seconds=0.0 if oldest_ms is None else max(0.0, (now_ms - oldest_ms) / 1000),
        open_records=sum(len(position.open_transaction) for position in snapshot.positions),
        open_seconds=open_since(snapshot.positions, now_ms) or 0.0,
        opened=open_transactions(snapshot.positions, now_ms),
        held_back=[
            *snapshot.accepted,
            *(loss for position in snapshot.positions if (loss := data_loss(position))),
            *snapshot.held_back,
        ],
    )


def passes(lane: Lane, lag: Lag) -> bool:
    """Whether the lane meets its target and no guard holds anything back."""
    return (
        max(lag.oldest_seconds, lag.open_seconds) * 1000 <= lane.window.lag_target
        and not lag.held_back
    )


def evaluation(lane: Lane, lag: Lag) -> dg.AssetCheckEvaluation:
    """The evaluation that the planner reports."""
    return dg.AssetCheckEvaluation(
        asset_key=lane.windows_asset,
        check_name=naming.LAG,
        passed=passes(lane, lag),
        description=_words(lag),
        metadata=_metadata(lane, lag),
    )


def build(lane: Lane) -> dg.AssetChecksDefinition:
    """The check that people run from the UI."""

    @dg.asset_check(
        asset=lane.windows_asset,
        name=naming.LAG,
        description="The oldest record not yet copied, also one in an open transaction, is younger"
        f" than {seconds(lane.window.lag_target / 1000)}.",
        required_resource_keys={kafka_key(lane.prefix)},
    )
    def lag_check(context: dg.AssetCheckExecutionContext) -> dg.AssetCheckResult:
        kafka = kafka_of(context, lane.prefix)
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
        "held back (topic-partitions)": len(lag.held_back),
    }
