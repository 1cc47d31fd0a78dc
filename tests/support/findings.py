"""What an audit compares, and the lines of what it has found, without the topic-partition."""

from typing import Protocol

from relay_pipelines.audit import spark_job
from relay_pipelines.audit.audit import Audit, PartitionAudit
from relay_pipelines.finding import Finding, Severity, texts


class Found(Protocol):
    """An audit."""

    @property
    def findings(self) -> list[Finding]: ...


def compared(audit: Audit) -> Audit:
    """Do in this process what tasks do, and return the audit."""
    audit.add(spark_job.do_group(audit.job, audit.work))
    return audit


def differences(found: Found) -> list[str]:
    """Return what differs."""
    return _lines(found, Severity.DIFFERENCE)


def unreadable(found: Found) -> list[str]:
    """Return what could not be read."""
    return _lines(found, Severity.ERROR)


def notes(found: Found) -> list[str]:
    """Return what a strict audit does not pass."""
    return _lines(found, Severity.WARNING)


def _lines(found: Found, severity: Severity) -> list[str]:
    of = f"{found.topic_partition}: " if isinstance(found, PartitionAudit) else ""
    return [line.removeprefix(of) for line in texts(found.findings, severity)]
