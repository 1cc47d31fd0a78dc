"""The lazy Spark session of dagster-pyspark, with the settings of relay.yaml."""

from collections.abc import Sequence
from functools import partial
from typing import Any

import dagster as dg
from dagster_pyspark import LazyPySparkResource

from relay_pipelines.errors import ConfigError
from relay_pipelines.resources.kafka import KafkaResource
from relay_pipelines.resources.plans import windows_of
from relay_pipelines.spark.session import connect, end, is_alive

_WINDOWS = "windows"
"""How the names of sets of windows end, see `naming.windows_name`."""


class SparkResource(LazyPySparkResource):
    """A Spark session that starts when a window has something to copy."""

    spark_config: dict[str, Any] = {}  # noqa: RUF012 - pydantic copies defaults
    """Settings added to spark.conf of relay.yaml."""
    kafka: KafkaResource
    """Gives access to relay.yaml."""

    @property
    def spark_session(self) -> Any:
        """The session: another one if Spark has died since the last call.

        Raises:
            RelayError: Spark cannot be reached or does not start.
        """
        spark = self.kafka.settings.spark
        if self._spark_session is not None and not is_alive(self._spark_session, spark.remote):
            self._end()
        if self._spark_session is None:
            self._spark_session = connect(
                spark.master, spark.remote, {**spark.conf, **self.spark_config}
            )
        return self._spark_session

    def records(
        self, context: dg.AssetExecutionContext, *, topic: str = "", columns: Sequence[str] = ()
    ) -> Any:
        """Return the records of the run's windows as a DataFrame, from the destination.

        With a window come those before it that have failed: no run is requested for what they
        have copied, and the window has completed it.

        Args:
            context: of an asset that has the partitions of a mirrored topic, see `partitions`; the
                run may be of one window or of many.
            topic: another topic of the mirror; that of the partitions by default.
            columns: those that are needed, which makes reading several times as fast; all by
                default. The column `window` says which window has the record.

        Raises:
            ConfigError: the asset has other partitions, or the ledger no longer has a window.
            RelayError: the destination or Spark does not answer.
        """
        from relay_pipelines.window_frame import windows_as_frame  # Arrow is slow to import

        *prefix, mirror, of_partitions = _followed(context)
        followed = dg.AssetKey([*prefix, mirror, topic or of_partitions])
        known = _known(context.instance, followed)
        keys = _with_failed(context.instance, followed, known, context.partition_keys)
        others = sorted({key for key in known if key < max(keys, default="")}.difference(keys))
        look = partial(windows_of, context.instance, followed)
        return windows_as_frame(
            self.spark_session,
            *(self.kafka.sides(mirror), followed.path[-1], look(keys), columns),
            others=partial(look, others),
        )

    def teardown_after_execution(self, context: Any) -> None:  # noqa: ARG002 - Dagster's signature
        """Stop the session if it was started."""
        self._end()

    def _end(self) -> None:
        if self._spark_session is not None:
            end(self._spark_session)
            self._spark_session = None


def _followed(context: dg.AssetExecutionContext) -> list[str]:
    """The key of the mirrored topic whose windows are the partitions of the asset."""
    name = getattr(context.assets_def.partitions_def, "name", None) or ""
    *path, kind = name.split("/")
    if kind != _WINDOWS or len(path) < 2:  # noqa: PLR2004 - the mirror and the topic
        raise ConfigError(
            f"asset {context.asset_key.to_user_string()} does not have the windows of a topic",
            remedy="give it partitions_def=relay_pipelines.partitions(mirror, topic)",
        )
    return path


def _known(instance: dg.DagsterInstance, followed: dg.AssetKey) -> Sequence[str]:
    """The windows of the topic."""
    return instance.get_dynamic_partitions("/".join([*followed.path, _WINDOWS]))


def _with_failed(
    instance: dg.DagsterInstance,
    followed: dg.AssetKey,
    known: Sequence[str],
    selected: Sequence[str],
) -> list[str]:
    """The windows, and those of the topic that were not completed since the one before them."""
    completed = instance.get_materialized_partitions(followed)
    windows, failed = list(selected), list[str]()
    for key in sorted(known):
        if key in selected:
            windows += failed
        failed = [] if key in completed else [*failed, key]
    return list(dict.fromkeys(windows))
