"""Copies what a mirror has left, and audits it, as `relay run` and `relay audit` do."""

from __future__ import annotations

import uuid
from collections.abc import Callable

from relay_pipelines.audit import audit as audits
from relay_pipelines.audit import spark_job
from relay_pipelines.audit.request import AuditRequest
from relay_pipelines.errors import DestinationError, TamperedError, together
from relay_pipelines.prepare.prepared_snapshot import prepare_snapshot
from relay_pipelines.run import run, run_plan
from relay_pipelines.run.session import Session
from relay_pipelines.sides import Sides
from relay_pipelines.snapshot.cluster_snapshot import ClusterSnapshot


def copy_all(
    take: Callable[[], ClusterSnapshot],
    session: Session,
    *,
    scope: str,
    again: str,
) -> None:
    """Copy up to the ends of a snapshot.

    Args:
        take: the snapshot of what is copied; what is held back in it stays.
        scope: of the run.
        again: the command to repeat.

    Raises:
        RelayError: not all could be copied.
    """
    planned = run_plan.plan(prepare_snapshot(take))
    with session.deferring():
        result = run.run(planned, session, (), stop=session.stopped, scope=scope)
    if result.interrupted:
        raise KeyboardInterrupt
    for error in together(result.errors):
        raise error
    for failure in result.failures:
        raise DestinationError(failure, remedy=f"repeat `{again}`")


def audit_all(sides: Sides, asked: AuditRequest, session: Session) -> None:
    """Audit copies, and stop if they do not agree.

    Raises:
        ConfigError: the ledger has nothing of what is to be audited.
        TamperedError: the copies are not what was read.
        RelayError: they could not be audited.
    """
    audit = audits.begin(sides, asked)
    for _ in spark_job.read(audit, session, f"relay-audit-{uuid.uuid4().hex[:12]}"):
        pass
    if audit.exit_code:
        first = next((finding for finding in audit.findings if finding.exit_code), None)
        raise TamperedError(
            f"the audit does not agree: {first or audit.verdict}",
            remedy="see `relay audit`; `relay move back` takes the move back",
        )
