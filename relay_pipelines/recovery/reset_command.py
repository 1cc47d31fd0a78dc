"""The command `reset`: shows what would become of a topic's checkpoints, and does it if told to."""

from __future__ import annotations

from relay_pipelines.errors import ConfigError, StalePlanError
from relay_pipelines.invocation import Invocation, the_mirror
from relay_pipelines.output import messages
from relay_pipelines.output.formatting import stdout
from relay_pipelines.protocol.clock import SystemClock
from relay_pipelines.recovery import reset
from relay_pipelines.recovery.reset import ResetTo
from relay_pipelines.sides import Sides
from relay_pipelines.snapshot import cluster_snapshot


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


def run(
    invocation: Invocation, mirror_name: str | None, topic: str, to: ResetTo, *, execute: bool
) -> int:
    """Show what a reset does with every topic-partition of a topic; with `execute`, do it."""
    clock = SystemClock()
    names = [mirror_name] if mirror_name else []
    name, mirror = the_mirror(invocation.settings(), names, "a reset is of")
    with invocation.reporting_errors(name):
        snapshot = cluster_snapshot.take_snapshot(Sides(name, mirror, clock), topic, configs=False)
        for unknown in snapshot.held_back:  # these stay as they are
            invocation.fail(unknown, name)
        resets = reset.plan_resets(snapshot, to)
        for each in resets:
            if each.error is not None:
                invocation.fail(each.error, name)
                continue
            stdout().print(f"{name}: {each.topic_partition}: {each.what}", soft_wrap=True)
        for held in reset.already_held(snapshot, resets).values():
            messages.warning(
                f"{name}: {held.topic_partition} already holds the offsets [{held.start},"
                f" {held.end}); if they are copies of the same records, those are there twice then"
            )
        if not execute and not all(each.stays for each in resets):
            stdout().print(f"{name}: nothing is changed; add --execute to do it", soft_wrap=True)
        for each, is_moved in reset.execute(snapshot, resets if execute else []):
            if is_moved:
                continue
            error = StalePlanError(
                "another run has copied or reset it at the same time: it stays as that left it",
                remedy="stop that run, then reset the topic again",
                topic_partition=each.topic_partition,
            )
            invocation.fail(error, name)
    return invocation.exit_code
