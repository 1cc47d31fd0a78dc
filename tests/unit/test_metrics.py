"""The metrics: what a run counts, and how it is served."""

import socket
import urllib.error
import urllib.request
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from relay_pipelines.errors import ConfigError, DataLossError, RelayError
from relay_pipelines.local_kafka.ports import free_ports
from relay_pipelines.metrics import METRICS, PREFIX, MetricsObserver, published
from relay_pipelines.metrics.run_metrics import Endpoint
from relay_pipelines.model import LedgerEntry, OffsetRange, Outcome, Status, TopicPartition
from relay_pipelines.plan.positions import Position
from relay_pipelines.run.result import RunResult, TopicTotals
from relay_pipelines.run.run_plan import RunPlan
from relay_pipelines.settings import Metrics
from tests.support.run_plans import plan_of
from tests.support.sleeping_clock import SleepingClock

HERE, THERE = TopicPartition("orders", 0), TopicPartition("copy.orders", 0)


@pytest.fixture
def observer() -> MetricsObserver:
    return MetricsObserver(SleepingClock(5.0))


def planned(end_offset: int = 100, upstream: str = "kafka-a", mirror: str = "m") -> RunPlan:
    positions = (Position(HERE, 0, end_offset), Position(TopicPartition("orders", 1), 0, 7, 7))
    return plan_of(mirror, upstream, {"orders": "copy.orders"}, positions)


def entry(start: int, end: int, records: int, **more: int) -> LedgerEntry:
    at, to = OffsetRange(HERE, start, end), OffsetRange(THERE, start, end)
    counts = (records, 10 * records, 1, 2, more)
    return LedgerEntry("m", at, to, *counts, "", 7, "kafka-a", "", "r", 1_500 + start)


def value(observer: MetricsObserver, name: str, **labels: str) -> float | None:
    return observer.registry.get_sample_value(PREFIX + name, labels)


def test_ledger_entries_update_records_bytes_skips_and_lag(observer: MetricsObserver) -> None:
    observer.begin(planned())
    assert value(observer, "lag_records", mirror="m", topic="orders", partition="0") == 100
    assert value(observer, "lag_records", mirror="m", topic="orders", partition="1") == 0
    observer.committed([entry(0, 40, 38, control=2), entry(40, 60, 20)])
    here = {"topic": "orders"}
    from_here = {"source_topic": "orders", "source_partition": "0"}
    there = {"target_topic": "copy.orders", "target_partition": "0"}
    both = {"source": "orders", "destination": "copy.orders", "partition": "0"}
    for name, expected, labels in (
        ("messages_relayed_total", 58, from_here | there),
        ("msg_count", 58, both),
        ("consumed_messages_total", 58, here),
        ("produced_messages_total", 58, {"topic": "copy.orders"}),
        ("messages_reencoded_total", 4, here),
        ("bytes_relayed_total", 580, {"source_topic": "orders", "target_topic": "copy.orders"}),
        ("offsets_skipped_total", 2, {**here, "reason": "control"}),
        ("lag_records", 40, {"mirror": "m", **here, "partition": "0"}),
        ("last_commit_timestamp_seconds", 1.54, {"mirror": "m"}),
    ):
        assert value(observer, name, **labels) == expected, name


def test_what_a_guard_holds_back_waits_as_well(observer: MetricsObserver) -> None:
    """The exporter and `status` say the same of it."""
    held = Position(HERE, 500, 1500, next_offset=100)
    observer.begin(replace(plan_of("m", "kafka-a", {"orders": "copy"}, (held,)), planned=[]))
    assert value(observer, "lag_records", mirror="m", topic="orders", partition="0") == 1400


def test_what_a_mirror_no_longer_has_or_reads_has_no_gauges(observer: MetricsObserver) -> None:
    """Of a topic or an upstream; mirrors of one add up, and a second run replaces the first."""
    observer.begin(planned(50))
    observer.begin(planned(upstream="kafka-a"))
    observer.begin(planned(mirror="other"))
    assert value(observer, "source_highwatermark", node_id="kafka-a") == 2 * 107
    position = Position(TopicPartition("payments", 0), 0, 9)
    observer.begin(plan_of("m", "kafka-c", {"payments": "copy.payments"}, (position,)))
    of = {"mirror": "m", "topic": "orders", "partition": "0"}
    for name in ("lag_records", "open_transaction_records", "open_transaction_seconds"):
        assert value(observer, name, **of) is None
        assert value(observer, name, **of | {"mirror": "other"}) is not None
    assert value(observer, "source_highwatermark", node_id="kafka-a") == 107, "of the other mirror"
    assert value(observer, "source_highwatermark", node_id="kafka-c") == 9
    observer.begin(planned(mirror="other", upstream="kafka-c"))
    assert value(observer, "source_highwatermark", node_id="kafka-a") is None


def test_a_successful_run_sets_durations_and_its_time(observer: MetricsObserver) -> None:
    """One with nothing to copy succeeds; a duration of zero would distort the histogram."""
    observer.begin(planned())
    observer.end(RunResult("m", "r", {}, seconds=0.1))
    assert value(observer, "last_success_timestamp_seconds", mirror="m") == 5.0
    assert value(observer, "window_duration_seconds_count", mirror="m") is None
    done: dict[str, Any] = {"chunks": 4, "commit_seconds": 0.5, "upstream": "kafka-a"}
    done["throttled_seconds"] = {"destination": 1.5}
    outcome = Outcome(OffsetRange(HERE, 0, 100), THERE, Status.DONE, 100, **done)
    totals = {"orders": TopicTotals()}
    observer.end(RunResult("m", "r", totals, [outcome], seconds=20.0, copying_seconds=3.0))
    assert value(observer, "window_duration_seconds_sum", mirror="m") == 3.0
    assert value(observer, "commit_duration_seconds_count", mirror="m") == 4
    assert value(observer, "commit_duration_seconds_sum", mirror="m") == pytest.approx(0.5)
    throttled = value(observer, "throttled_seconds_total", mirror="m", side="destination")
    assert throttled == 1.5
    # an alert on its increase needs a value before the first one
    assert value(observer, "failures_total", mirror="m", error="FencedError") == 0


def test_failures_count_on_the_side_that_caused_them(observer: MetricsObserver) -> None:
    """A failure that either side may have caused only counts in the total."""
    observer.begin(planned())
    kinds = ("SourceError", "TopicDeletedError", "DestinationError", "PermissionDeniedError")
    failed: dict[str, Any] = {"upstream": "kafka-a", "exit_code": 1}
    outcomes = [
        Outcome(OffsetRange(HERE, 0, 9), THERE, Status.FAILED, 0, error_kind=kind, **failed)
        for kind in kinds
    ]
    observer.end(RunResult("m", "r", {}, outcomes, [DataLossError("gone")], seconds=1.0))
    for kind in (*kinds, "DataLossError"):
        assert value(observer, "failures_total", mirror="m", error=kind) == 1
    for kind in ("SourceError", "TopicDeletedError", "DataLossError"):
        assert value(observer, "source_errors_total", node_id="kafka-a", error=kind) == 1
    assert value(observer, "target_errors_total", error="DestinationError") == 1
    assert value(observer, "target_errors_total", error="PermissionDeniedError") is None
    assert value(observer, "last_success_timestamp_seconds", mirror="m") is None


def test_served_in_a_run_and_written_at_its_end(observer: MetricsObserver, tmp_path: Path) -> None:
    """Then there is the file, no temporary one; of its health, 503 says what is wrong."""
    address = "127.0.0.1:{}".format(*free_ports(1))
    textfile = tmp_path / "relay.prom"
    metrics = Metrics.model_validate({"address": address, "textfile": str(textfile)})
    with published(observer, metrics) as publication:
        publication.serve()
        observer.committed([entry(0, 5, 5)])
        with urllib.request.urlopen(f"http://{address}/metrics") as answer:
            assert b"kafka_relay_consumed_messages_total" in answer.read()
        assert not textfile.exists()
    assert 'kafka_relay_consumed_messages_total{topic="orders"} 5.0' in textfile.read_text()
    assert [path.name for path in tmp_path.iterdir()] == ["relay.prom"]
    with pytest.raises(OSError, match="refused"):
        urllib.request.urlopen(f"http://{address}/metrics")
    wrong = ["no longer looks at m"]
    endpoint = Endpoint(address, observer.registry, "", lambda: "".join(wrong))
    endpoint.open()
    try:
        with pytest.raises(urllib.error.HTTPError) as caught:
            urllib.request.urlopen(f"http://{address}/healthz")
        with caught.value as refusal:
            assert (refusal.code, refusal.read()) == (503, b"no longer looks at m\n")
        wrong.clear()
        with urllib.request.urlopen(f"http://{address}/healthz") as answer:
            assert answer.read() == b"ok\n"
    finally:
        endpoint.close()


def test_what_cannot_be_served_or_written(observer: MetricsObserver, tmp_path: Path) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        with (
            published(observer, Metrics(address=address)) as publication,
            pytest.raises(ConfigError) as caught,
        ):
            publication.serve()
    assert str(caught.value) == (
        f"metrics cannot be served at {address}: Address already in use;"
        " set metrics.address to a free port of this machine, or leave it out"
    )
    where = Metrics.model_validate({"textfile": str(tmp_path)})
    with (
        pytest.raises(RelayError, match=f"metrics cannot be written to {tmp_path}: Is a directory"),
        published(observer, where),
    ):
        pass


def test_every_metric_is_exposed_under_its_name(observer: MetricsObserver) -> None:
    """A scrape shows the names of the table."""
    exposed = {
        family.name + ("_total" if family.type == "counter" else ""): family.type
        for family in observer.registry.collect()
    }
    assert exposed == {PREFIX + each.name: each.kind for each in METRICS if "run" in each.by}
