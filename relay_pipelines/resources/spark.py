"""The lazy Spark session of dagster-pyspark, with the settings of relay.yaml."""

from typing import Any

from dagster_pyspark import LazyPySparkResource

from relay_pipelines.resources.kafka import KafkaResource
from relay_pipelines.spark.session import connect, end, is_alive


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

    def teardown_after_execution(self, context: Any) -> None:  # noqa: ARG002 - Dagster's signature
        """Stop the session if it was started."""
        self._end()

    def _end(self) -> None:
        if self._spark_session is not None:
            end(self._spark_session)
            self._spark_session = None
