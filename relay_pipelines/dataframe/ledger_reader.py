"""Reads the ledger as a DataFrame: `read` in tasks, everything else on the driver."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

from pyspark.sql.datasource import DataSourceReader, InputPartition

from relay_pipelines.dataframe.option_names import LEDGER_OPTIONS, refuse_unknown
from relay_pipelines.dataframe.record_range import Range
from relay_pipelines.dataframe.topic_options import mirror_of, topic_names
from relay_pipelines.errors import DestinationError
from relay_pipelines.ledger import checkpoint, ledger_columns, ledger_topic
from relay_pipelines.ledger.reader import read_records
from relay_pipelines.model import OffsetRange
from relay_pipelines.protocol.client import EARLIEST, LATEST, READ_COMMITTED, ClusterClient

if TYPE_CHECKING:
    import pyarrow as pa


class LedgerReader(DataSourceReader):  # type: ignore[misc]
    """Reads ledger entries, those of replays included.

    There is one Spark partition per topic-partition of the ledger.
    """

    def __init__(
        self,
        mirror: str,
        options: Mapping[str, str],
        ranges: Sequence[Range],
        names: Sequence[str],
    ) -> None:
        self._prefixes = checkpoint.key_prefixes(mirror, with_replays=True)
        self._topics = topic_names(options["topic"]) if "topic" in options else None
        self._window = options.get("window")
        self._ranges = ranges
        self._names = names

    def partitions(self) -> Sequence[InputPartition]:
        """Return the topic-partitions of the ledger that have records."""
        return self._ranges

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Read one of them."""
        if not isinstance(partition, Range):
            return
        with ClusterClient(partition.cluster, DestinationError, purpose="frame") as client:
            for ledger_records in read_records(client, partition.offset_range, self._prefixes):
                records = [
                    record
                    for record in ledger_records
                    if (self._topics is None or record.entry.tp.topic in self._topics)
                    and self._window in {None, record.entry.window}
                ]
                if records:
                    yield ledger_columns.arrow_batch(records, self._names)


def ledger_reader(options: Mapping[str, str], names: Sequence[str]) -> DataSourceReader:
    """Return the reader that options ask for.

    Raises:
        ConfigError: an option is wrong.
        RelayError: the destination does not answer, or refuses.
    """
    refuse_unknown(options, LEDGER_OPTIONS, "with what=ledger, the format relay")
    sides, homes = mirror_of(options), checkpoint.homes(ledger_topic.TOPIC)
    cluster = sides.mirror.destination_cluster
    ranges = []
    with ClusterClient(cluster, DestinationError, purpose="frame") as client:
        if client.has_topic(ledger_topic.TOPIC):
            starts = client.list_offsets(homes, EARLIEST, READ_COMMITTED)
            ends = client.list_offsets(homes, LATEST, READ_COMMITTED)
            offset_ranges = [OffsetRange(home, starts[home], ends[home]) for home in homes]
            ranges = [Range(client.cluster, offsets) for offsets in offset_ranges if len(offsets)]
    return LedgerReader(sides.name, options, ranges, names)
