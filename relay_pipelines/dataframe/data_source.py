"""Registers the format `relay`, and makes its readers.

After `register(spark)`: `spark.read.format("relay").option("mirror", ...).option("topic",
...).load()`, or `readStream`. A Spark partition yields Arrow batches with only the columns of the
schema.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from pyspark.sql.datasource import DataSource, DataSourceReader, DataSourceStreamReader

from relay_pipelines.copy.columns import COLUMNS
from relay_pipelines.dataframe.batch_reader import Reader, ranges_of
from relay_pipelines.dataframe.ledger_reader import ledger_reader
from relay_pipelines.dataframe.option_names import is_true, kind_of, our_names
from relay_pipelines.dataframe.stream_reader import StreamReader
from relay_pipelines.errors import ConfigError
from relay_pipelines.ledger import ledger_columns
from relay_pipelines.settings.validation_errors import nearest
from relay_pipelines.spark import package_archive, task_python

if TYPE_CHECKING:
    from pyspark.sql.types import StructType

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
    """Topics, or the ledger, as a DataFrame.

    docs/dataframe.md has the options: those of spark-sql-kafka by their names, and some of our own.
    """

    @classmethod
    def name(cls) -> str:
        """Return the name for `format`."""
        return NAME

    def schema(self) -> str:
        """Return the columns without a schema of the user's, which may have any of them."""
        options = our_names(self.options)
        return ", ".join(
            f"{name} {kind}"
            for name, kind in _columns(options).items()
            if name != "headers" or is_true(options, "includeHeaders")
        )

    def reader(self, schema: StructType) -> DataSourceReader:
        """Return the reader of these columns.

        Raises:
            ConfigError: an option or a column is wrong.
        """
        options = our_names(self.options)
        _check_columns(schema, _columns(options))
        if kind_of(options) == "ledger":
            return ledger_reader(options, schema.names)
        return Reader(ranges_of(options), schema.names)

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:  # noqa: N802 - PySpark's
        """Return the stream reader of these columns.

        Raises:
            ConfigError: an option or a column is wrong.
        """
        options = our_names(self.options)
        _check_columns(schema, _columns(options))
        if kind_of(options) == "ledger":
            raise ConfigError(
                "a stream of the format relay has no ledger", remedy="read it with spark.read"
            )
        return StreamReader(options, schema.names)


def _columns(options: Mapping[str, str]) -> Mapping[str, str]:
    return ledger_columns.COLUMNS if kind_of(options) == "ledger" else COLUMNS


def _check_columns(schema: StructType, known: Mapping[str, str]) -> None:
    refuse_unknown_columns(schema.names, known)
    for field in schema:
        kind, given = known[field.name], field.dataType.simpleString()
        if given != kind.replace(" ", ""):
            raise ConfigError(
                f"column {field.name} of the format relay is {kind}, and not {given}",
                remedy="correct the schema, and cast the column afterwards",
            )


def refuse_unknown_columns(names: Sequence[str], known: Mapping[str, str]) -> None:
    """Refuse columns that there are not.

    Raises:
        ConfigError: it names the first one, and the nearest one that there is.
    """
    for name in names:
        if name not in known:
            raise ConfigError(
                f"the format relay has no column {name!r}", remedy=nearest(name, known, "columns")
            )
