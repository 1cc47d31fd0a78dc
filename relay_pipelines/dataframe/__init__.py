"""The PySpark data source `relay`: topics of a mirror's clusters, or its ledger.

data_source        registers the format, and makes its readers
option_names       the names of options, Spark's and ours, and what is wrong with others
topic_options      which topics of a mirror are read, and on which side
offset_options     where reading begins and ends: what options mean in each topic-partition
window_chunks      the chunks of a window or of a list, as ranges
record_range       a range of offsets as a Spark partition, and its records as Arrow batches
batch_reader       records as a DataFrame
stream_reader      topics in micro-batches
stream_offsets     where a micro-batch ends, and what must not be skipped
ledger_reader      the ledger as a DataFrame
"""

from __future__ import annotations

from relay_pipelines.dataframe.data_source import register

__all__ = ["register"]
