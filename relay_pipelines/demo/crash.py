"""A run that is killed in the middle, really: what was too fast to be killed there is said so and tried again with more."""

from __future__ import annotations

import time

from relay_pipelines.console.words import count, plural
from relay_pipelines.demo.command import Command
from relay_pipelines.demo.progress import Ledger, left_open
from relay_pipelines.demo.scene import Scene
from relay_pipelines.demo.telling import Teller
from relay_pipelines.demo.upstream import Arrivals, end_offsets
from relay_pipelines.errors import RelayError

_ATTEMPTS = 3
_CHUNKS = 8
_SHARE = 5
_POLL_SECONDS = 0.005


def run_and_kill(scene: Scene, command: list[str], ledger: Ledger, arrivals: Arrivals, more: int, teller: Teller) -> bool:
    """Start the command and kill it once a few chunks are committed; whether that was in the middle of its work.

    Args:
        more: how many events to add before another attempt.
    """
    for attempt in range(1, _ATTEMPTS + 1):
        if _killed(scene, command, f"run-killed-{attempt}.log", ledger, teller):
            return True
        if attempt < _ATTEMPTS:
            teller.say(
                f"too fast: everything was copied before the kill. Once more, with {count(more)} events more:", style="yellow"
            )
            arrivals.add(more)
    teller.say("too fast for a kill in the middle on this machine; what follows shows no recovery", style="yellow")
    return False


def _killed(scene: Scene, arguments: list[str], log: str, ledger: Ledger, teller: Teller) -> bool:
    offsets = sum(end_offsets(scene.nodes[0]).values())
    known, before = ledger.poll(), ledger.offsets
    command = Command(scene.folder, arguments, log, teller.quoted_width)
    try:
        teller.say(f"$ {command.shown}", style="cyan")
        with teller.busy("Spark starts; the first chunks are awaited") as say:
            while command.running:
                chunks = ledger.poll() - known
                if chunks >= _CHUNKS and ledger.offsets - before >= (offsets - before) // _SHARE:
                    break
                if chunks:
                    say(f"{chunks} chunks committed")
                time.sleep(_POLL_SECONDS)
        if not command.running:
            check(command)
            return False
        command.end()
    finally:
        command.end()
    ledger.poll()
    open_transactions, unread = left_open(scene.destination)
    if not open_transactions and ledger.offsets >= offsets:
        return False
    teller.say(
        f"kill -9 of relay, its Spark and its workers: {ledger.poll() - known} chunks committed,"
        f" {count(ledger.offsets)} of {count(offsets)} offsets",
        style="red",
    )
    if open_transactions:
        teller.say(
            f"left behind: {plural(open_transactions, 'open transaction')} with {plural(unread, 'record')} that nobody may read"
        )
    return True


def check(command: Command) -> None:
    """Refuse to go on when the command failed.

    Raises:
        RelayError: with what it said last.
    """
    code = command.wait()
    if code:
        said = next((line for line in reversed(command.output) if line.startswith("error")), "it said nothing")
        raise RelayError(
            f"`{command.shown}` ended with exit code {code}: {said}", remedy=f"with --keep its output stays in {command.log.name}"
        )
