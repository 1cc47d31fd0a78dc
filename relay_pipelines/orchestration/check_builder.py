"""Builds checks: what one has found, as the event that runs and sensors report, and as an op.

Whoever evaluates a check, the result is the same event: Dagster takes it from an op as from a
sensor.
"""

import datetime as dt
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import dagster as dg

from relay_pipelines.errors import RelayError
from relay_pipelines.orchestration import naming
from relay_pipelines.orchestration.lane import Lane, ops
from relay_pipelines.resources import KafkaResource, kafka_key, kafka_of, spark_key
from relay_pipelines.settings import Mirror

Body = Callable[
    [dg.AssetCheckExecutionContext, KafkaResource, Sequence[dg.AssetCheckKey]],
    Iterator[dg.AssetCheckEvaluation],
]
"""Gets the checks that were selected; yields the evaluation of each."""


_REPORTED = (
    "asset_key",
    "check_name",
    "passed",
    "metadata",
    "severity",
    "description",
    "partition",
)


@dataclass(frozen=True, slots=True)
class CheckResult:
    """What a check has found.

    Args:
        severity: of a failure; a warning does not call for anybody.
    """

    passed: bool
    description: str
    metadata: Mapping[str, Any] = field(default_factory=dict)
    severity: dg.AssetCheckSeverity = dg.AssetCheckSeverity.ERROR

    def evaluation(
        self, key: dg.AssetCheckKey, partition: str | None = None, *, blocking: bool = False
    ) -> dg.AssetCheckEvaluation:
        """Return the event.

        Args:
            partition: of the asset, such as a window.
            blocking: whether the op that yields it fails if the check does.
        """
        return dg.AssetCheckEvaluation(
            asset_key=key.asset_key,
            check_name=key.name,
            passed=self.passed,
            description=self.description,
            metadata=self.metadata,
            severity=self.severity,
            partition=partition,
            blocking=blocking,
        )


def changed(event: dg.AssetCheckEvaluation, **changes: Any) -> dg.AssetCheckEvaluation:
    """Return an evaluation with other values, to report it again."""
    return dg.AssetCheckEvaluation(**{name: getattr(event, name) for name in _REPORTED} | changes)


def dated(event: dg.AssetCheckEvaluation, now: float) -> dg.AssetCheckEvaluation:
    """Add the time as the partition: without one, the next window makes the check "not evaluated".

    Dagster shows the last evaluation of a check unless its asset, or that partition of it, has been
    materialised since.
    """
    # to the millisecond: Dagster refuses a second evaluation of a partition without a run
    moment = dt.datetime.fromtimestamp(now, dt.UTC).isoformat(timespec="milliseconds")
    return changed(event, partition=moment)


def check_spec(
    key: dg.AssetCheckKey,
    description: str,
    *,
    blocking: bool = False,
    partitions: dg.PartitionsDefinition[Any] | None = None,
) -> dg.AssetCheckSpec:
    """Declare a check.

    Args:
        partitions: those of its asset, if a check has a result for each.
    """
    with warnings.catch_warnings():
        # one warning per topic and process would flood the log
        warnings.simplefilter("ignore", dg.PreviewWarning)
        return dg.AssetCheckSpec(
            key.name,
            asset=key.asset_key,
            description=description,
            blocking=blocking,
            partitions_def=partitions,
        )


def build_check(
    key: dg.AssetCheckKey,
    description: str,
    look: Callable[[dg.AssetCheckExecutionContext, KafkaResource], CheckResult],
    prefix: tuple[str, ...] = (),
) -> dg.AssetChecksDefinition:
    """Build one check with an op of its own.

    Args:
        look: evaluates it; it writes nothing.
        prefix: the key prefix of the definitions.
    """

    def body(
        context: dg.AssetCheckExecutionContext,
        kafka: KafkaResource,
        keys: Sequence[dg.AssetCheckKey],  # noqa: ARG001 - it is this one
    ) -> Iterator[dg.AssetCheckEvaluation]:
        yield look(context, kafka).evaluation(key)

    op = f"{key.asset_key.to_python_identifier()}_{key.name}"
    return build_checks(op, [check_spec(key, description)], body, prefix)


def build_topic_checks(
    name: str, description: str, lane: Lane, mirror: Mirror, body: Body, *, uses_spark: bool = False
) -> list[dg.AssetChecksDefinition]:
    """Build a check of each topic of a lane; many topics have one op."""

    def spec(topic: str) -> dg.AssetCheckSpec:
        return check_spec(naming.topic_check(lane.path, topic, name), description)

    return [
        build_checks(op, [*map(spec, topics)], body, lane.prefix, uses_spark=uses_spark)
        for op, topics in ops(name, lane, mirror)
    ]


def build_checks(
    op: str,
    specs: Sequence[dg.AssetCheckSpec],
    body: Body,
    prefix: tuple[str, ...] = (),
    *,
    uses_spark: bool = False,
) -> dg.AssetChecksDefinition:
    """Build the op with which people run checks from the UI; an expected error is one line.

    Args:
        prefix: the key prefix of the definitions.
    """

    @dg.multi_asset_check(
        name=op,
        specs=specs,
        can_subset=True,  # so that a check may have no result, and that evaluations are results
        required_resource_keys={kafka_key(prefix), *([spark_key(prefix)] if uses_spark else [])},
    )
    def run(context: dg.AssetCheckExecutionContext) -> Iterator[dg.AssetCheckEvaluation]:
        keys = sorted(context.selected_asset_check_keys)
        try:
            yield from body(context, kafka_of(context, prefix), keys)
        except RelayError as error:
            raise dg.Failure(str(error)) from None

    return run
