"""One broker process."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path

from relay_pipelines.local_kafka.local_process import LocalProcess

_STARTED = re.compile(rb"Kafka Server started|\[KafkaServer id=\d+\] started")
"""A broker's own words, since and before Kafka 4.0."""


class Broker(LocalProcess):
    """One broker process.

    Args:
        node_id: from 1.
        port: of the PLAINTEXT listener on 127.0.0.1.
        command, log, start_timeout_seconds: as those of `LocalProcess`.
    """

    def __init__(
        self,
        node_id: int,
        port: int,
        command: Sequence[str],
        log: Path,
        start_timeout_seconds: float,
    ) -> None:
        super().__init__(f"broker {node_id}", port, command, log, _STARTED, start_timeout_seconds)
        self.node_id = node_id
