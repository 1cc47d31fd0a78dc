"""Formats the data folders of brokers, which KRaft needs before the first start."""

from __future__ import annotations

import base64
import contextlib
import subprocess
import uuid
from collections.abc import Sequence
from pathlib import Path

from relay_pipelines.local_kafka.errors import LocalKafkaError
from relay_pipelines.local_kafka.log import tail

_TIMEOUT_SECONDS = 120


def cluster_id(file: Path) -> str:
    """Return the id in `file`, made at the first call, so that restarts keep the cluster."""
    if not file.exists():
        file.write_text(_random_id())
    return file.read_text()


def _random_id() -> str:
    # Kafka's Uuid is 16 bytes in URL-safe base64; with a leading dash it would look like an option
    return next(
        text
        for _ in iter(int, 1)
        if (text := base64.urlsafe_b64encode(uuid.uuid4().bytes)[:22].decode())[0] != "-"
    )


def format_folders(
    java: Sequence[str], homes: Sequence[Path], cluster_id: str, scram: Sequence[str]
) -> None:
    """Format the data folders that are not formatted yet, in parallel.

    Args:
        java: the command that runs a main class of Kafka.
        homes: the brokers' folders, each with its server.properties.
        scram: arguments that create the SCRAM users.
    """
    options = [
        # better compilation does not pay off in a second
        "-XX:TieredStopAtLevel=1",
        "kafka.tools.StorageTool",
        "format",
        "--ignore-formatted",
        "--cluster-id",
        cluster_id,
        *scram,
    ]
    with contextlib.ExitStack() as held:
        running = []
        for home in homes:
            log = held.enter_context((home / "format.log").open("wb"))
            command = [*java, *options, "--config", str(home / "server.properties")]
            running.append(
                held.enter_context(
                    subprocess.Popen(  # noqa: S603 - our own JDK
                        command, stdin=subprocess.DEVNULL, stdout=log, stderr=log
                    )
                )
            )
        codes = [process.wait(_TIMEOUT_SECONDS) for process in running]
    for home, code in zip(homes, codes, strict=True):
        if code:
            log_file = home / "format.log"
            raise LocalKafkaError(
                f"cannot format a broker's data: {tail(log_file, 0)}",
                remedy=f"its log is {log_file}",
            )
