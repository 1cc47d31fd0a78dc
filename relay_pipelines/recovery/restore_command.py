"""The command `restore`: shows which checkpoints the ledger makes again, and does it if told to."""

from __future__ import annotations

from collections import Counter

from relay_pipelines.errors import StalePlanError, TamperedError, page
from relay_pipelines.invocation import Invocation, the_mirror
from relay_pipelines.ledger.chain import REMEDY
from relay_pipelines.output.formatting import plural, stdout
from relay_pipelines.protocol.clock import SystemClock
from relay_pipelines.recovery import restore
from relay_pipelines.recovery.restore import Act, Restore


def run(invocation: Invocation, mirror_name: str | None, *, execute: bool) -> int:
    """Show what a restore does with every topic-partition; with `execute`, do it."""
    clock = SystemClock()
    names = [mirror_name] if mirror_name else []
    name, mirror = the_mirror(invocation.settings(), names, "a restore is of")
    with invocation.reporting_errors(name):
        found = restore.plan_restores(name, mirror, clock)
        counts = Counter(restored.act for restored in found.planned)
        stdout().print(
            f"{name}: {plural(counts[Act.STAYS], 'topic-partition')} of {len(found.planned)} need"
            " nothing",
            soft_wrap=True,
        )
        for restored in found.planned:
            _show(invocation, restored)
        if not execute:
            if found.changes:
                stdout().print(f"{name}: nothing is changed; add --execute to do it")
            return invocation.exit_code
        for restored, is_done in restore.execute(name, mirror, found, clock):
            if not is_done:
                invocation.fail(_stale(restored), restored.name)
    return invocation.exit_code


def _show(invocation: Invocation, restore: Restore) -> None:
    if restore.act is Act.REFUSED:
        remedy = f"{REMEDY}; {page('Restore after a disaster')} says what to do then"
        error = TamperedError(
            f"{restore.act}: {restore.why}", remedy=remedy, topic_partition=restore.source
        )
        invocation.fail(error, restore.name)
    elif restore.act is not Act.STAYS:
        stdout().print(f"{restore.name}: {restore}", soft_wrap=True)


def _stale(restore: Restore) -> StalePlanError:
    return StalePlanError(
        "another run has copied or restored it at the same time: it stays as that left it",
        remedy="stop that run, then restore again",
        topic_partition=restore.source,
    )
