"""The name, kind, labels and meaning of every metric."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import Any

import prometheus_client as prometheus
from prometheus_client import CollectorRegistry

PREFIX = "kafka_relay_"
_DURATIONS = (0.5, 1, 2, 5, 10, 30, 60, 120, 300, 600, 1800, 3600)


class By(StrEnum):
    """Who serves or writes a metric."""

    RUN = "run"
    EXPORTER = "exporter"
    BOTH = "run, exporter"
    AUDIT = "exporter, audit, schemas"
    ONLY_AUDIT = "audit"
    SCHEMAS = "schemas"


@dataclass(frozen=True, slots=True)
class Metric:
    """One metric; `name` has no prefix, `kind` is a type of Prometheus."""

    name: str
    kind: str
    labels: tuple[str, ...]
    meaning: str
    by: By = By.RUN


METRICS = (
    Metric(
        "messages_relayed_total",
        "counter",
        ("source_topic", "source_partition", "target_topic", "target_partition"),
        "Records committed at the destination.",
        By.BOTH,
    ),
    Metric(
        "msg_count",
        "gauge",  # a Counter's name would have to end in _total
        ("source", "destination", "partition"),
        "The same by topic names and source partition, as kaf-relay calls it; it only grows.",
        By.BOTH,
    ),
    Metric(
        "consumed_messages_total",
        "counter",
        ("topic",),
        "Records read from the source topic, in committed chunks.",
        By.BOTH,
    ),
    Metric(
        "produced_messages_total",
        "counter",
        ("topic",),
        "Records committed to the destination topic.",
        By.BOTH,
    ),
    Metric(
        "messages_reencoded_total",
        "counter",
        ("topic",),
        "Committed records that were decoded and encoded again.",
        By.BOTH,
    ),
    Metric(
        "offsets_skipped_total",
        "counter",
        ("topic", "reason"),
        "Source offsets without a record at the destination. Reasons:"
        " control (transaction markers), aborted, compaction_gap (compaction has removed the record"
        " at the source), filtered, quarantined, lost (an accepted loss).",
        By.BOTH,
    ),
    Metric(
        "bytes_relayed_total",
        "counter",
        ("source_topic", "target_topic"),
        "Bytes of the committed record batches.",
        By.BOTH,
    ),
    Metric(
        "source_highwatermark",
        "gauge",
        ("node_id",),
        "Sum of the high watermarks of all mirrored topic-partitions on the upstream that is read;"
        " a run looks when it starts.",
        By.BOTH,
    ),
    Metric(
        "lag_records",
        "gauge",
        ("mirror", "topic", "partition"),
        "Source offsets that are not copied yet; a run looks for the end when it starts.",
        By.BOTH,
    ),
    Metric(
        "open_transaction_records",
        "gauge",
        ("mirror", "topic", "partition"),
        "Source offsets between last stable offset and high watermark; a run looks when it starts.",
        By.BOTH,
    ),
    Metric(
        "open_transaction_seconds",
        "gauge",
        ("mirror", "topic", "partition"),
        "Age of the first record of the open transaction, 0 if none; a run looks when it starts.",
        By.BOTH,
    ),
    Metric(
        "hidden_records",
        "gauge",
        ("mirror", "topic", "partition"),
        "Offsets of a destination topic, or of checkpoints or ledger, that readers of committed"
        " records do not see: those from the last stable offset to the high watermark.",
        By.EXPORTER,
    ),
    Metric(
        "hidden_seconds",
        "gauge",
        ("mirror", "topic", "partition"),
        "For how long the transaction is open that hides them, 0 if none does; with partition,"
        " only of topic-partitions where one does.",
        By.EXPORTER,
    ),
    Metric(
        "source_errors_total",
        "counter",
        ("node_id", "error"),
        "Failures of ranges or runs caused by the source, by error class.",
    ),
    Metric(
        "source_candidate_switches_total",
        "counter",
        ("node_id",),
        "How often reading switched to this upstream, between runs or within a range.",
    ),
    Metric(
        "source_unhealthy_total",
        "counter",
        ("node_id",),
        "How often the upstream was unreadable at the start of a run.",
    ),
    Metric(
        "source_lag_threshold_exceeded_total",
        "counter",
        ("node_id",),
        "How often the upstream exceeded lag_threshold at the start of a run.",
    ),
    Metric(
        "source_quarantined",
        "gauge",
        ("node_id",),
        "1 while the upstream is in quarantine, because its records differ from those copied.",
        By.BOTH,
    ),
    Metric(
        "target_errors_total",
        "counter",
        ("error",),
        "Failures of ranges or runs caused by the destination, by error class.",
    ),
    Metric(
        "failures_total",
        "counter",
        ("mirror", "error"),
        "All failures of ranges or runs, by error class.",
    ),
    Metric(
        "window_duration_seconds",
        "histogram",
        ("mirror",),
        "Time to copy the windows of a run, without the start of Spark; only runs that copy count.",
    ),
    Metric(
        "commit_duration_seconds",
        "summary",
        ("mirror",),
        "Time to commit a chunk: checkpoint, ledger entry and end of the transaction."
        " Set when a run ends.",
    ),
    Metric(
        "throttled_seconds_total",
        "counter",
        ("mirror", "side"),
        "Time for which client quotas of the source or the destination made tasks wait, all tasks"
        " together. Set when a run ends.",
    ),
    Metric(
        "last_success_timestamp_seconds",
        "gauge",
        ("mirror",),
        "End of the last successful run of this process, in seconds since 1970;"
        " absent before the first.",
    ),
    Metric(
        "last_commit_timestamp_seconds",
        "gauge",
        ("mirror",),
        "Time of the last commit by any run, in seconds since 1970; absent before the first.",
        By.BOTH,
    ),
    Metric(
        "up",
        "gauge",
        ("mirror",),
        "1 if both clusters answered the last look, else 0: the mirror then has no other gauge"
        " but state and last_look_timestamp_seconds. If all upstreams are in quarantine, it also"
        " has those of its upstreams.",
        By.EXPORTER,
    ),
    Metric(
        "last_look_timestamp_seconds",
        "gauge",
        ("mirror",),
        "End of the last look, successful or not, in seconds since 1970.",
        By.EXPORTER,
    ),
    Metric(
        "lag_seconds",
        "gauge",
        ("mirror", "topic", "partition"),
        "For how long the oldest record that is not copied yet has waited; 0 if there is none,"
        " absent if the source does not tell it.",
        By.EXPORTER,
    ),
    Metric(
        "lag_target_seconds",
        "gauge",
        ("mirror", "topic"),
        "The topic's window.lag_target of relay.yaml.",
        By.EXPORTER,
    ),
    Metric(
        "source_end_offset",
        "gauge",
        ("mirror", "topic", "partition"),
        "Last stable offset at the source: readers of committed records stop there.",
        By.EXPORTER,
    ),
    Metric(
        "checkpoint_offset",
        "gauge",
        ("mirror", "topic", "partition"),
        "The next source offset to copy.",
        By.EXPORTER,
    ),
    Metric(
        "commit_timestamp_seconds",
        "gauge",
        ("mirror", "topic", "partition"),
        "Time of the last commit of the topic-partition, in seconds since 1970;"
        " absent before the first.",
        By.EXPORTER,
    ),
    Metric(
        "state",
        "gauge",
        ("mirror", "state"),
        "1 for the state of what is not held back, 0 for the others: as `relay status` says it.",
        By.EXPORTER,
    ),
    Metric(
        "held_back",
        "gauge",
        ("mirror", "topic", "partition", "error"),
        "1 while a data-loss guard holds the topic-partition back, or the source does not let it be"
        " read, by error class, and absent otherwise; without partition, the number of them, or 1"
        " for a hidden topic.",
        By.EXPORTER,
    ),
    Metric(
        "upstream_read",
        "gauge",
        ("mirror", "upstream"),
        "1 for the upstream that a run would read now, 0 for the others.",
        By.EXPORTER,
    ),
    Metric(
        "upstream_state",
        "gauge",
        ("mirror", "upstream", "state"),
        "1 for the upstream's state, 0 for the other ones: healthy, behind (more than"
        " lag_threshold), unavailable (no answer, or records are missing), quarantined.",
        By.EXPORTER,
    ),
    Metric(
        "upstream_behind_records",
        "gauge",
        ("mirror", "upstream"),
        "Records that other upstreams have and this one does not; absent while it is unavailable.",
        By.EXPORTER,
    ),
    Metric(
        "groups",
        "gauge",
        ("mirror", "state"),
        "Consumer groups that `groups` of relay.yaml selects and that have committed what is"
        " copied: followed, moved (another program has committed for the group at the destination),"
        " or fails (it cannot be followed).",
        By.EXPORTER,
    ),
    Metric(
        "group_lag_records",
        "gauge",
        ("mirror", "group"),
        "Copies that a followed group would read again at most, if it moved now.",
        By.EXPORTER,
    ),
    Metric(
        "group_lag_seconds",
        "gauge",
        ("mirror", "group"),
        "For how long at most a followed group is not up to date at the destination; 0 if it is.",
        By.EXPORTER,
    ),
    Metric(
        "check_failed",
        "gauge",
        ("mirror", "topic", "check"),
        "1 if the check fails, else 0. Checks: configs (a topic configuration differs)"
        " and source_topics (a topic is missing at the source), both without topic;"
        " audit and schemas (the topic's last audit, and its last `relay schemas verify`, with"
        " --textfile).",
        By.AUDIT,
    ),
    Metric(
        "schemas_verdict",
        "gauge",
        ("mirror", "topic", "verdict"),
        "1 for the verdict of the topic's last `relay schemas verify --textfile`, else 0: agrees,"
        " differs, not verified (not all ids could be compared), no ids found, nothing to verify.",
        By.SCHEMAS,
    ),
    Metric(
        "schema_ids",
        "gauge",
        ("mirror", "topic", "result"),
        "Ids that it has found in the topic's records: same and differing were compared at both"
        " registries; unknown could not be.",
        By.SCHEMAS,
    ),
    Metric(
        "audit_verdict",
        "gauge",
        ("mirror", "topic", "verdict"),
        "1 for the verdict of the topic's last audit with --textfile, else 0: agrees, differs, not"
        " verified (no record could be looked at), nothing to verify, failed (something could not"
        " be read).",
        By.ONLY_AUDIT,
    ),
    Metric(
        "audit_records",
        "gauge",
        ("mirror", "topic", "coverage"),
        "Records that the verdict rests on: by_content and by_count were compared; superseded are"
        " gone for a later one of their key; left_out is not in the sample, or not read at that"
        " level; not_verified could not be looked at; differing.",
        By.ONLY_AUDIT,
    ),
)

_BY_NAME = {metric.name: metric for metric in METRICS}


def metric(name: str) -> Metric:
    """Return the metric of that name."""
    return _BY_NAME[name]


def collector(metric: Metric, registry: CollectorRegistry) -> Any:
    """Return the collector of the client library, registered."""
    name = PREFIX + metric.name
    if metric.kind == "histogram":
        return prometheus.Histogram(
            name, metric.meaning, metric.labels, registry=registry, buckets=_DURATIONS
        )
    kinds = {
        "counter": prometheus.Counter,
        "gauge": prometheus.Gauge,
        "summary": prometheus.Summary,
    }
    return kinds[metric.kind](name, metric.meaning, metric.labels, registry=registry)
