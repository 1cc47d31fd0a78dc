"""The command `acls`: which ACLs of the source's readers are missing at the destination."""

from __future__ import annotations

from collections.abc import Sequence

from relay_pipelines.invocation import Invocation, selected_mirrors
from relay_pipelines.output import json_output, messages, tables
from relay_pipelines.output.formatting import plural, stdout
from relay_pipelines.prepare import permissions
from relay_pipelines.prepare.permissions import AclReport
from relay_pipelines.protocol.clock import SystemClock
from relay_pipelines.sides import Sides


def run(invocation: Invocation, names: Sequence[str], *, execute: bool, as_json: bool) -> int:
    """Show which ACLs the destination does not have, and create them with `execute`."""
    clock = SystemClock()
    documents = []
    for name, mirror in selected_mirrors(invocation.settings(), names).items():
        with invocation.reporting_errors(name):
            report = permissions.report(Sides(name, mirror, clock))
            if not as_json:
                _show(name, report, json_output.acls(name, report, applied=False))
            if execute:
                permissions.apply(Sides(name, mirror, clock), report)
            documents.append(json_output.acls(name, report, applied=execute))
            if not as_json and report.decisions:
                what = plural(len(report.missing), "ACL")
                done = "created" if execute else "missing; --execute creates them"
                stdout().print(f"{name}: {what} {done}", soft_wrap=True)
    if as_json:
        messages.document({"mirrors": documents})
    return invocation.exit_code


def _show(name: str, report: AclReport, document: json_output.Document) -> None:
    if report.decisions:
        tables.show(stdout(), tables.acls(document))
    elif not report.unsecured:
        stdout().print(f"{name}: the source has no ACLs on the mirrored topics", soft_wrap=True)
    for cluster in report.unsecured:
        stdout().print(
            f"{name}: {cluster} has no authorizer: everybody may do everything there,"
            " and no ACLs are copied",
            soft_wrap=True,
        )
    for topic in report.first:
        messages.warning(
            f"{name}: {topic} has no ACLs at the destination yet: if its brokers have"
            " allow.everyone.if.no.acl.found=true, the first ACL revokes what all others may do,"
            " including the mirror's own user; grant that user Write first"
        )
