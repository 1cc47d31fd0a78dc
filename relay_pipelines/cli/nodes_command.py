"""The command `nodes`: the state of every source node, and which node is read."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from relay_pipelines.errors import ConfigError, RelayError, SourceError
from relay_pipelines.invocation import Invocation, selected_mirrors
from relay_pipelines.ledger import reader
from relay_pipelines.ledger.state_table import CheckpointSnapshot
from relay_pipelines.output import json_output, messages, tables
from relay_pipelines.output.formatting import stdout
from relay_pipelines.prepare import owners
from relay_pipelines.protocol.clock import SystemClock
from relay_pipelines.settings import Mirror
from relay_pipelines.settings.validation_errors import nearest
from relay_pipelines.sides import Sides
from relay_pipelines.snapshot import node_selection


def show(invocation: Invocation, names: Sequence[str], *, as_json: bool) -> int:
    """Show the state of every node, and which one a run would read."""
    clock = SystemClock()
    found = []
    for name, mirror in selected_mirrors(invocation.settings(), names).items():
        with invocation.reporting_errors(name):
            try:
                stored = reader.read_checkpoints(Sides(name, mirror, clock), patient=False)
            except RelayError as error:  # the nodes can still be compared with each other
                invocation.fail(error, name)
                stored = CheckpointSnapshot()
            states = node_selection.probe(Sides(name, mirror, clock), stored)
            choice = node_selection.choose_node(mirror, states, stored)
            found.append(json_output.nodes(name, states, choice))
            if not as_json:
                tables.show(stdout(), tables.nodes(found[-1]))
            if choice.name is None:
                why = f"no node can be read: {choice.why}"
                invocation.fail(SourceError(why, remedy="the table says why, per node"), name)
    if as_json:
        messages.document({"mirrors": found})
    return invocation.exit_code


def clear(invocation: Invocation, names: Sequence[str], nodes: Sequence[str]) -> int:
    """Release nodes from quarantine.

    Raises:
        ConfigError: no mirror has a node of that name.
    """
    mirrors = selected_mirrors(invocation.settings(), names)
    _refuse_unknown(mirrors.values(), nodes)
    for name, mirror in mirrors.items():
        with invocation.reporting_errors(name):
            sides = Sides(name, mirror)
            quarantined = reader.read_checkpoints(sides).quarantined
            no_longer = {node: "" for node in nodes if node in quarantined}
            with sides.destination() as client:
                owners.set_quarantine(client, no_longer)
            for node in (node.name for node in mirror.nodes if node.name in nodes):
                done = (
                    f"cleared; it was in quarantine: {quarantined[node]}"
                    if node in quarantined
                    else "not in quarantine"
                )
                stdout().print(f"{name}: node {node}: {done}", soft_wrap=True)
    return invocation.exit_code


def _refuse_unknown(mirrors: Iterable[Mirror], nodes: Sequence[str]) -> None:
    known = [node.name for mirror in mirrors for node in mirror.nodes]
    for node in nodes:
        if node not in known:
            raise ConfigError(
                f"no node is called {node!r}", remedy=nearest(node, set(known), "nodes")
            )
