"""The result of audits as metrics: nobody else knows whether the records are the same."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from prometheus_client import CollectorRegistry

from relay_pipelines.metrics.catalog import collector, metric
from relay_pipelines.metrics.serving import write_textfile

if TYPE_CHECKING:
    from relay_pipelines.verify.audit import Audit

_CHECK = "audit"


def write(path: Path, audits: Mapping[str, Audit | None]) -> None:
    """Write which topics an audit has found to differ, or could not read.

    Args:
        audits: by mirror; None if the audit could not be done. One that could compare nothing has
            failed, too.

    Raises:
        RelayError: the file cannot be written.
    """
    registry = CollectorRegistry()
    failed = collector(metric("check_failed"), registry)
    for mirror, audit in audits.items():
        if audit is None or audit.not_verified:
            failed.labels(mirror, "", _CHECK).set(1)
            continue
        topics = {at.topic: False for at in audit.partitions}
        for at, found in audit.partitions.items():
            topics[at.topic] |= bool(found.problems or found.errors)
        for topic, differs in topics.items():
            failed.labels(mirror, topic, _CHECK).set(differs)
    write_textfile(path, registry, "name a writable file with --textfile")
