"""dagster-pyspark's lazy session, set up as relay.yaml says and as the copy needs it."""

from typing import Any

from dagster_pyspark import LazyPySparkResource

from relay_pipelines.resources.kafka import KafkaResource
from relay_pipelines.spark.session import connect, end


class SparkResource(LazyPySparkResource):
    """Spark, started when a window has something to copy and not before."""

    spark_config: dict[str, Any] = {}  # noqa: RUF012 - pydantic copies defaults
    """Added to spark.conf of relay.yaml."""
    kafka: KafkaResource
    """For relay.yaml."""

    @property
    def spark_session(self) -> Any:
        """The session.

        Raises:
            RelayError: Spark cannot be reached or does not start.
        """
        if self._spark_session is None:
            spark = self.kafka.settings.spark
            self._spark_session = connect(
                spark.master, spark.remote, {**spark.conf, **self.spark_config}
            )
        return self._spark_session

    def teardown_after_execution(self, context: Any) -> None:  # noqa: ARG002 - Dagster's signature
        """End the session if one was started."""
        if self._spark_session is not None:
            end(self._spark_session)
            self._spark_session = None
