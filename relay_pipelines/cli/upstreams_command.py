"""The command `upstreams`: the state of every upstream, and which upstream is read."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import partial

from relay_pipelines.errors import ConfigError, RelayError, SourceError
from relay_pipelines.invocation import Invocation, selected_mirrors
from relay_pipelines.ledger import reader
from relay_pipelines.ledger.state_table import CheckpointSnapshot, read_any_state
from relay_pipelines.output import json_output, messages, tables
from relay_pipelines.output.formatting import stdout
from relay_pipelines.prepare import owners
from relay_pipelines.protocol.clock import SystemClock
from relay_pipelines.settings import Mirror
from relay_pipelines.settings.validation_errors import nearest
from relay_pipelines.sides import Sides
from relay_pipelines.snapshot import upstream_selection


def show(invocation: Invocation, names: Sequence[str], *, as_json: bool) -> int:
    """Show the state of every upstream, and which one a run would read."""
    clock = SystemClock()
    documents = []
    for name, mirror in selected_mirrors(invocation.settings(), names).items():
        with invocation.reporting_errors(name):
            try:
                stored = reader.read_checkpoints(Sides(name, mirror, clock), patient=False)
            except RelayError as error:  # the upstreams can still be compared with each other
                invocation.fail(error, name)
                stored = CheckpointSnapshot()
            states = upstream_selection.probe(Sides(name, mirror, clock), stored)
            selection = upstream_selection.judge(mirror, states, stored)
            documents.append(json_output.upstreams(name, selection))
            if not as_json:
                tables.show(stdout(), tables.upstreams(documents[-1]))
            if selection.name is None:
                why = f"no upstream can be read: {selection.why}"
                invocation.fail(SourceError(why, remedy="the table says why, per upstream"), name)
    if as_json:
        messages.document({"mirrors": documents})
    return invocation.exit_code


def clear(invocation: Invocation, names: Sequence[str], upstreams: Sequence[str]) -> int:
    """Release upstreams from quarantine.

    Raises:
        ConfigError: no mirror has an upstream of that name.
    """
    mirrors = selected_mirrors(invocation.settings(), names)
    _refuse_unknown(mirrors.values(), upstreams)
    for name, mirror in mirrors.items():
        with invocation.reporting_errors(name):
            with Sides(name, mirror).destination() as client:
                stored = client.retry(partial(read_any_state, client))
                quarantined = stored.of(name).quarantined
                no_longer = {upstream: "" for upstream in upstreams if upstream in quarantined}
                owners.set_quarantine(client, no_longer)
            for upstream in (
                upstream.name for upstream in mirror.upstreams if upstream.name in upstreams
            ):
                done = (
                    f"cleared; it was in quarantine: {quarantined[upstream]}"
                    if upstream in quarantined
                    else "not in quarantine"
                )
                stdout().print(f"{name}: upstream {upstream}: {done}", soft_wrap=True)
    return invocation.exit_code


def _refuse_unknown(mirrors: Iterable[Mirror], upstreams: Sequence[str]) -> None:
    known = [upstream.name for mirror in mirrors for upstream in mirror.upstreams]
    for upstream in upstreams:
        if upstream not in known:
            raise ConfigError(
                f"no upstream is called {upstream!r}",
                remedy=nearest(upstream, set(known), "upstreams"),
            )
