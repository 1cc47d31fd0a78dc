"""A run whose upstream node is killed in the middle, really; its tasks go on from the other one."""

from __future__ import annotations

from dataclasses import dataclass

from relay_pipelines.console.formatting import count, seconds
from relay_pipelines.demo.command import Command
from relay_pipelines.demo.middle import wait_for_middle
from relay_pipelines.demo.progress import Ledger
from relay_pipelines.demo.scene import Scene
from relay_pipelines.demo.telling import Reporter
from relay_pipelines.demo.upstream import end_offsets
from relay_pipelines.protocol.clock import Clock


@dataclass(frozen=True, slots=True)
class Death:
    """The end of a node.

    Args:
        at_ms: just before the signal was sent.
        run_id: of the run that was reading it.
    """

    node: str
    at_ms: int
    run_id: str


def run_and_kill_node(
    arguments: list[str], log: str, scene: Scene, ledger: Ledger, teller: Reporter, clock: Clock
) -> Death | None:
    """Run the command to its end, and kill the node it reads once a few chunks are committed.

    Returns:
        Which node is dead now; None if the run did not need another one, and then all nodes serve.

    Raises:
        RelayError: the command failed.
    """
    end = sum(end_offsets(scene.nodes[0]).values())
    known = ledger.poll()
    command = Command(scene.folder, arguments, log, teller.quoted_width)
    death = None
    try:
        teller.say(f"$ {command.shown}", style="cyan")
        with teller.busy("Spark starts; the first chunks are awaited") as say:
            if wait_for_middle(command, ledger, end, say):
                death = Death(ledger.entries[-1].node, clock.now_ms(), ledger.entries[-1].run_id)
                scene.kill(death.node)
                teller.say(
                    f"kill -9 of {death.node}, the node it reads: {len(ledger.entries) - known} chunks committed,"
                    f" {count(ledger.offsets)} of {count(end)} offsets",
                    style="red",
                )
                say(f"{death.node} is dead, the copy goes on")
            command.check()
    finally:
        command.end()
    teller.quote(command.output)
    ledger.poll()
    if death and not _taken_over(death, ledger, teller):
        scene.start_again(death.node)
        return None
    return death


def _taken_over(death: Death, ledger: Ledger, teller: Reporter) -> bool:
    """Say when the node died and when another one took over, by the times in the ledger; False if none did."""
    commits = sorted(
        (one.committed_at_ms, one.node) for one in ledger.entries if one.run_id == death.run_id
    )
    others = [(at_ms, node) for at_ms, node in commits if node != death.node]
    if not others:
        return False
    (taken_ms, node), (began_ms, _) = others[0], commits[0]
    lived, gap = seconds((death.at_ms - began_ms) / 1000), seconds((taken_ms - death.at_ms) / 1000)
    teller.say(
        f"{death.node} was killed {lived} after the first commit of this run; {gap} later came the first one from {node}"
    )
    return True
