"""Mirrors written in Go, from binaries that environment variables name.

kaf-relay (github.com/zerodha/kaf-relay) and Kafka Topic Mirror
(github.com/DharaSingh/kafka-topic-mirror) cannot be installed from a registry.
"""

from __future__ import annotations

import os
import shutil
from pathlib import Path
from typing import ClassVar

from benchmarks.contenders.arrivals import measure
from benchmarks.contenders.contract import Contender
from benchmarks.inputs import all_but
from benchmarks.values import Case, Cost

# the values of its sample configuration, without authentication, except two: with a larger
# `max_message_bytes` than the topic's it fails, and with 100 ms for a request it does not start if
# there are hundreds of topics
_KAF_RELAY = """\
[app]
log_level = "warn"
metrics_server_addr = "127.0.0.1:0"

[topics]
{topics}

[source_pool]
initial_offset = "start"
healthcheck_interval = "3s"
offset_lag_threshold = 1000
max_retries = -1
backoff_enable = true
backoff_min = "2s"
backoff_max = "10s"
request_timeout = "10s"

[[sources]]
name = "source"
servers = [{source}]
session_timeout = "6s"
max_wait_time = "10ms"
max_failovers = -1

[target]
name = "destination"
servers = [{destination}]
enable_idempotency = true
commit_ack_type = "cluster"
flush_frequency = "20ms"
session_timeout = "6s"
max_retries = -1
flush_batch_size = 1000
batch_size = 1000
buffer_size = 100000
max_message_bytes = {max_message_bytes}
compression = "{codec}"
backoff_enable = true
backoff_min = "2s"
backoff_max = "10s"
request_timeout = "10s"
"""


class OtherMirror(Contender):
    """A binary that runs until it is killed."""

    guarantee = "at least once"
    variable: ClassVar[str]
    """The environment variable with the path of the binary."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._binary = os.environ.get(self.variable, "")

    @property
    def missing(self) -> str:
        """Why it cannot run; empty if it can."""
        if not self._binary:
            return f"{self.variable} is not set"
        return "" if shutil.which(self._binary) else f"{self.variable} names no executable file"


class KafRelay(OtherMirror):
    """kaf-relay in its default mode, with one source."""

    name = "kaf-relay"
    variable = "RELAY_BENCH_KAF_RELAY"
    # version 1.4.0 writes everything to the first topic-partition
    keeps_partitions = False

    def copy(self, case: Case) -> Cost:
        """Run it until all records arrived."""
        config = self._folder / f"{case.attempt}.toml"
        config.write_text(
            _KAF_RELAY.format(
                topics="\n".join(f'"{source}" = "{to}"' for source, to in case.topics.items()),
                source=_quoted(case.source.bootstrap_servers),
                destination=_quoted(case.destination.bootstrap_servers),
                max_message_bytes=case.input.max_message_bytes,
                codec=case.codec,
            )
        )
        command = [self._binary, "--config", str(config)]
        return measure(command, case, config.with_suffix(".log"))


class TopicMirror(OtherMirror):
    """Kafka Topic Mirror, which copies one topic, and chooses partitions by the records' keys."""

    name = "Kafka Topic Mirror"
    variable = "RELAY_BENCH_TOPIC_MIRROR"
    # no setting raises its limit of 1 MB per record
    inputs = all_but("10mb", "many", "many-10k")
    keeps_partitions = False

    def copy(self, case: Case) -> Cost:
        """Run it until all records arrived."""
        ((source, destination),) = case.topics.items()
        variables = {
            "CLIENT_ID": case.attempt,
            "CONSUMER_GROUP": case.attempt,
            "INPUT_TOPIC": source,
            "INPUT_BROKERS": ",".join(case.source.bootstrap_servers),
            "NEWEST_OFFSET": "false",
            "OUTPUT_TOPIC": destination,
            "OUTPUT_BROKERS": ",".join(case.destination.bootstrap_servers),
            "PROM_SERVER_ADDR": "127.0.0.1:0",
        }
        return measure([self._binary], case, self._folder / f"{case.attempt}.log", variables)


def _quoted(servers: tuple[str, ...]) -> str:
    return ", ".join(f'"{server}"' for server in servers)
