"""Whether a topic meets `window.lag_target`: no record waits for longer.

Dagster's freshness policies look at materialisations, and would fail topics without new records.
"""

from collections import defaultdict
from collections.abc import Collection, Iterator, Sequence

import dagster as dg

from relay_pipelines.model import TopicPartition
from relay_pipelines.orchestration import naming
from relay_pipelines.orchestration.check_builder import CheckResult, build_topic_checks
from relay_pipelines.orchestration.lane import Lane
from relay_pipelines.output.formatting import open_transactions, plural, seconds
from relay_pipelines.resources import KafkaResource
from relay_pipelines.settings import Mirror
from relay_pipelines.snapshot.cluster_snapshot import ClusterSnapshot
from relay_pipelines.snapshot.lag import late


class Miss(list[tuple[str, str]]):
    """Why a topic misses the target: reasons that last while it does, each with a line."""

    @property
    def reason(self) -> str:
        """All reasons, to compare with those of another look."""
        return ", ".join(sorted({reason for reason, _ in self}))

    def __str__(self) -> str:
        return "; ".join(line for _, line in self)


def missed(
    lane: Lane, snapshot: ClusterSnapshot, late: Collection[TopicPartition], now_ms: int
) -> dict[str, Miss]:
    """Return the topics that miss the target, and why.

    Args:
        late: the topic-partitions with an uncopied record that waits for longer than the target.
        now_ms: milliseconds since the Unix epoch.
    """
    before_ms = now_ms - lane.window.lag_target
    misses: defaultdict[str, Miss] = defaultdict(Miss)
    for position in snapshot.positions:
        tp = position.topic_partition
        if tp in late and tp not in snapshot.held:
            line = (
                f"{tp}: {plural(position.lag, 'record')} waiting, the oldest for more than"
                f" {seconds(lane.window.lag_target / 1000)}"
            )
            misses[tp.topic].append(("late", line))
        if position.open_since_ms is not None and position.open_since_ms < before_ms:
            misses[tp.topic].append(("open transaction", open_transactions([position], now_ms)))
    for tp, error in snapshot.held.items():
        misses[tp.topic].append((type(error).__name__, str(error)))
    return dict(misses)


def evaluation(lane: Lane, topic: str, why: str) -> dg.AssetCheckEvaluation:
    """What the check says of a topic.

    Args:
        why: it misses the target; empty if it meets it.
    """
    return CheckResult(
        not why,
        why or "no record waits for longer",
        {"target (seconds)": lane.window.lag_target / 1000},
    ).evaluation(naming.topic_check(lane.path, topic, naming.LAG_TARGET))


def build(lane: Lane, mirror: Mirror) -> list[dg.AssetChecksDefinition]:
    """The checks that people run from the UI."""

    def body(
        _context: dg.AssetCheckExecutionContext,
        kafka: KafkaResource,
        keys: Sequence[dg.AssetCheckKey],
    ) -> Iterator[dg.AssetCheckEvaluation]:
        topics = [key.asset_key.path[-1] for key in keys]
        snapshot = kafka.snapshot(lane.mirror, topics.__contains__)
        now_ms = kafka.clock.now_ms()
        misses = missed(lane, snapshot, late(snapshot, now_ms), now_ms)
        for topic in topics:
            yield evaluation(lane, topic, str(misses.get(topic, "")))

    description = (
        "No record, also none in an open transaction, waits for longer than"
        f" {seconds(lane.window.lag_target / 1000)}."
    )
    return build_topic_checks(naming.LAG_TARGET, description, lane, mirror, body)
