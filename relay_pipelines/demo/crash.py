"""A run that is killed in the middle, really, with its Spark and its workers."""

from __future__ import annotations

from relay_pipelines.console.formatting import count, plural
from relay_pipelines.demo.command import Command
from relay_pipelines.demo.middle import wait_for_middle
from relay_pipelines.demo.progress import Ledger, left_open
from relay_pipelines.demo.scene import Scene
from relay_pipelines.demo.telling import Reporter
from relay_pipelines.demo.upstream import end_offsets


def run_and_kill(
    arguments: list[str], log: str, scene: Scene, ledger: Ledger, teller: Reporter
) -> bool:
    """Start the command and kill it once a few chunks are committed; whether that was in the middle of its work."""
    end = sum(end_offsets(scene.nodes[0]).values())
    known = ledger.poll()
    command = Command(scene.folder, arguments, log, teller.quoted_width)
    try:
        teller.say(f"$ {command.shown}", style="cyan")
        with teller.busy("Spark starts; the first chunks are awaited") as say:
            in_the_middle = wait_for_middle(command, ledger, end, say)
        if not in_the_middle:
            command.check()
            return False
    finally:
        command.end()
    ledger.poll()
    open_transactions, unread = left_open(scene.destination)
    if not open_transactions and ledger.offsets >= end:
        return False
    teller.say(
        f"kill -9 of relay, its Spark and its workers: {ledger.poll() - known} chunks committed,"
        f" {count(ledger.offsets)} of {count(end)} offsets",
        style="red",
    )
    if open_transactions:
        teller.say(
            f"left behind: {plural(open_transactions, 'open transaction')} with {plural(unread, 'record')} that nobody may read"
        )
    return True
