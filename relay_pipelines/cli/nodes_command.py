"""The command `nodes`: which node of a source is read, and why not the others."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from relay_pipelines.cli.context import Invocation, chosen
from relay_pipelines.console import json_output, messages, tables
from relay_pipelines.console.formatting import stdout
from relay_pipelines.errors import ConfigError, RelayError, SourceError
from relay_pipelines.prepare import node_quarantine
from relay_pipelines.protocol.clock import SystemClock
from relay_pipelines.settings import Mirror
from relay_pipelines.settings.validation_errors import nearest
from relay_pipelines.snapshot import cluster_snapshot, node_selection
from relay_pipelines.state.checkpoint import CheckpointSnapshot


def show(invocation: Invocation, names: Sequence[str], *, as_json: bool) -> int:
    """Show what every node answers, and which one would be read."""
    clock = SystemClock()
    found = []
    for name, mirror in chosen(invocation.settings(), names).items():
        with invocation.tolerating(name):
            try:
                stored = cluster_snapshot.read_checkpoints(name, mirror, clock, patient=False)
            except (
                RelayError
            ) as error:  # the nodes can be judged all the same, by what they say of each other
                invocation.fail(error, name)
                stored = CheckpointSnapshot()
            states = node_selection.probe(name, mirror, clock, stored.quarantined)
            made = node_selection.choose_node(mirror, states, stored)
            found.append(json_output.nodes(name, states, made))
            if not as_json:
                tables.show(stdout(), tables.nodes(name, states, made))
            if made.name is None:
                invocation.fail(
                    SourceError(f"no node can be read: {made.why}", remedy="see why, node by node"),
                    name,
                )
    if as_json:
        messages.document({"mirrors": found})
    return invocation.exit_code


def clear(invocation: Invocation, names: Sequence[str], nodes: Sequence[str]) -> int:
    """Let nodes be read again.

    Raises:
        ConfigError: no mirror has a node of that name.
    """
    clock = SystemClock()
    mirrors = chosen(invocation.settings(), names)
    _refuse_unknown(mirrors.values(), nodes)
    for name, mirror in mirrors.items():
        with invocation.tolerating(name):
            quarantined = cluster_snapshot.read_checkpoints(name, mirror, clock).quarantined
            node_quarantine.set_quarantine(
                name, mirror, {node: "" for node in nodes if node in quarantined}, clock
            )
            for node in (one.name for one in mirror.nodes if one.name in nodes):
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
