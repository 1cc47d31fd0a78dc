"""The commands `reset` and `restore`: they show what becomes of checkpoints, or do it, too."""

from __future__ import annotations

from collections.abc import Iterable

from relay_pipelines.errors import ConfigError, StalePlanError, TamperedError, page
from relay_pipelines.invocation import Invocation, the_mirror
from relay_pipelines.ledger.chain import REMEDY
from relay_pipelines.model import TopicPartition
from relay_pipelines.output import messages
from relay_pipelines.output.formatting import plural, stdout
from relay_pipelines.plan.blockers import Blocker
from relay_pipelines.recovery import reset, restore
from relay_pipelines.recovery.reset import ResetTo
from relay_pipelines.recovery.restore import Act
from relay_pipelines.snapshot import read_clusters


def where(*, to_earliest: bool, to_current: bool) -> ResetTo:
    """Return where the options say that the copy goes on.

    Raises:
        ConfigError: they say both, or nothing.
    """
    if to_earliest == to_current:
        raise ConfigError(
            "a reset goes either to the earliest record or to the current offset",
            remedy="give --to-earliest to copy again what the source still has, or --to-current to"
            " go on without the earlier copies",
        )
    return ResetTo.EARLIEST if to_earliest else ResetTo.CURRENT


def run_reset(
    invocation: Invocation, mirror_name: str | None, topic: str, to: ResetTo, *, execute: bool
) -> int:
    """Show what a reset does with every topic-partition of a topic; with `execute`, do it."""
    sides = the_mirror(invocation.settings(), mirror_name, "a reset is of")
    name = sides.name
    with invocation.reporting_errors(name):
        snapshot = read_clusters.take_snapshot(sides, topic)
        unknown = snapshot.held_for(Blocker.UNKNOWN, Blocker.REFUSED)
        for error in dict.fromkeys(unknown.values()):  # these stay as they are
            invocation.fail(error, name)
        resets = reset.plan_resets(snapshot, to)
        for each in resets:
            if each.error is not None:
                invocation.fail(each.error, name)
            else:
                _say(f"{name}: {each.topic_partition}: {each.what}")
        for held in reset.already_held(snapshot, resets).values():
            messages.warning(
                f"{name}: {held.topic_partition} already holds the offsets [{held.start},"
                f" {held.end}); if they are copies of the same records, those are there twice then"
            )
        if execute:
            done = reset.execute(snapshot, resets)
            moved = ((name, each.topic_partition, is_moved) for each, is_moved in done)
            _name_stale(invocation, moved, "reset", "reset the topic again")
        elif not all(each.stays for each in resets):
            _say(f"{name}: nothing is changed; add --execute to do it")
    return invocation.exit_code


def run_restore(invocation: Invocation, mirror_name: str | None, *, execute: bool) -> int:
    """Show what a restore does with every topic-partition; with `execute`, do it."""
    sides = the_mirror(invocation.settings(), mirror_name, "a restore is of")
    name = sides.name
    with invocation.reporting_errors(name):
        planned = restore.plan_restores(sides)
        stay = sum(each.act is Act.STAYS for each in planned)
        _say(f"{name}: {plural(stay, 'topic-partition')} of {len(planned)} need nothing")
        for each in planned:
            if each.act is Act.REFUSED:
                error = TamperedError(
                    f"{each.act}: {each.why}",
                    remedy=f"{REMEDY}; {page('Back up and restore')} says what to do then",
                    topic_partition=each.source,
                )
                invocation.fail(error, each.name)
            elif each.act is not Act.STAYS:
                _say(f"{each.name}: {each}")
        if execute:
            done = restore.execute(sides, planned)
            made = ((each.name, each.source, is_done) for each, is_done in done)
            _name_stale(invocation, made, "restored", "restore again")
        elif any(each.after is not None for each in planned):
            _say(f"{name}: nothing is changed; add --execute to do it")
    return invocation.exit_code


def _say(line: str) -> None:
    stdout().print(line, soft_wrap=True)


def _name_stale(
    invocation: Invocation, done: Iterable[tuple[str, TopicPartition, bool]], what: str, again: str
) -> None:
    """Do what was planned, and report what another run has changed since."""
    for name, tp, is_done in done:
        if not is_done:
            error = StalePlanError(
                f"another run has copied or {what} it at the same time: it stays as that left it",
                remedy=f"stop that run, then {again}",
                topic_partition=tp,
            )
            invocation.fail(error, name)
