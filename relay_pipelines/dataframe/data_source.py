"""The PySpark data source `relay`: offset ranges of a mirror's clusters, or its ledger.

After `register(spark)`: `spark.read.format("relay").option("mirror", ...).option("topic",
...).load()`, or `readStream`. There is one Spark partition per topic-partition; it yields Arrow
batches with only the columns of the schema.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from pyspark.sql.datasource import (
    DataSource,
    DataSourceReader,
    DataSourceStreamReader,
)

from relay_pipelines.copy.columns import (
    COLUMNS,
)
from relay_pipelines.errors import (
    ConfigError,
)
from relay_pipelines.ledger import ledger_columns
from relay_pipelines.settings.validation_errors import nearest
from relay_pipelines.spark import package_archive, task_python

if TYPE_CHECKING:
    from pyspark.sql.types import StructType
from relay_pipelines.dataframe.batch_reader import Reader, ranges_of
from relay_pipelines.dataframe.ledger_reader import ledger_reader
from relay_pipelines.dataframe.option_names import is_true, kind_of, our_names
from relay_pipelines.dataframe.stream_reader import StreamReader

NAME = "relay"


def register(session: Any) -> None:
    """Register the format `relay` with a Spark session, classic or Connect.

    Executors receive the package. Except with Connect, tasks then run `spark.pyspark.python`, else
    PYSPARK_PYTHON, else the Python of this program, by its path.
    """
    context = getattr(session, "sparkContext", None)  # Spark Connect has none
    if context is not None:
        task_python.use_ours(context)
        # Spark refuses a format that the active session has, be it another one, or one that ended
        context._jvm.SparkSession.setActiveSession(session._jsparkSession)  # noqa: SLF001
    package_archive.ship(session)  # a data source knows the files that there were before it
    session.dataSource.register(KafkaRangeDataSource)


class KafkaRangeDataSource(DataSource):  # type: ignore[misc]  # pyspark's types are not published
    """Offset ranges, or the ledger, as a DataFrame.

    Options:
        what: `records` (the default) or `ledger`: the ledger entries of the mirror, optionally of
            one topic or window.
        config: path of relay.yaml; ./relay.yaml by default.
        mirror: the mirror's name; optional if there is only one.
        topic: the name of the source topic.
        side: `source` (the default) or `destination`.
        node: of the source; the first one by default, and of a window the one that was read last.
        start, end: `earliest`, `latest`, a time (2026-01-31T12:00:00Z), an offset, or JSON of
            partition to offset, also within its topic; the whole topic by default. -2 is where a
            log begins, and -1 where it ends.
        window: the key of a Dagster window, instead of start and end: the chunks that the ledger
            has for it.
        chunks: instead of start and end, exactly these chunks of the side: JSON of partition to
            [[start, end], ...], in order. At the destination, without the records of others within
            a chunk, which begins with a record of its own.
        includeHeaders: `true` for the column `headers`; `false` by default, as in spark-sql-kafka.
        max_offsets: of a stream: how many offsets a micro-batch may read; all that is new by
            default.

    The names of spark-sql-kafka for topic, start, end and max_offsets are accepted, too: subscribe,
    startingOffsets, endingOffsets, maxOffsetsPerTrigger.
    """

    @classmethod
    def name(cls) -> str:
        """Return the name for `format`."""
        return NAME

    def schema(self) -> str:
        """Return the columns without a schema of the user's, which may have any of them."""
        return ", ".join(
            f"{name} {kind}"
            for name, kind in self._columns.items()
            if name != "headers" or is_true(self.options, "includeHeaders")
        )

    @property
    def _columns(self) -> Mapping[str, str]:
        return ledger_columns.COLUMNS if kind_of(self.options) == "ledger" else COLUMNS

    def reader(self, schema: StructType) -> DataSourceReader:
        """Return the reader of these columns.

        Raises:
            ConfigError: an option or a column is wrong.
        """
        self._check_columns(schema)
        options = our_names(self.options)
        if kind_of(options) == "ledger":
            return ledger_reader(options, schema.names)
        return Reader(ranges_of(options), schema.names)

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:  # noqa: N802 - PySpark's
        """Return the stream reader of these columns.

        Raises:
            ConfigError: an option or a column is wrong.
        """
        self._check_columns(schema)
        if kind_of(self.options) == "ledger":
            raise ConfigError(
                "a stream of the format relay has no ledger", remedy="read it with spark.read"
            )
        return StreamReader(our_names(self.options), schema.names)

    def _check_columns(self, schema: StructType) -> None:
        refuse_unknown_columns(schema.names, self._columns)
        for field in schema:
            kind, given = self._columns[field.name], field.dataType.simpleString()
            if given != kind.replace(" ", ""):
                raise ConfigError(
                    f"column {field.name} of the format relay is {kind}, and not {given}",
                    remedy="correct the schema, and cast the column afterwards",
                )


def refuse_unknown_columns(wanted: Sequence[str], known: Mapping[str, str]) -> None:
    """Refuse columns that there are not.

    Raises:
        ConfigError: it names the first one, and the nearest one that there is.
    """
    for name in wanted:
        if name not in known:
            raise ConfigError(
                f"the format relay has no column {name!r}", remedy=nearest(name, known, "columns")
            )
