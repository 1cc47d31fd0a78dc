"""The commands and their options."""

from __future__ import annotations

from enum import StrEnum
from functools import partial
from pathlib import Path
from typing import Annotated, Any, Literal

import typer
from typer.core import TyperGroup

from relay_pipelines.audit.request import AuditRequest
from relay_pipelines.cli.request_options import asks_for, steps_of
from relay_pipelines.compare.request import CompareRequest
from relay_pipelines.expectations.request import ExpectationsRequest
from relay_pipelines.invocation import Invocation
from relay_pipelines.move.request import MoveRequest, MoveStep
from relay_pipelines.offsets.request import OffsetsAction, OffsetsRequest
from relay_pipelines.replay.request import ReplayRequest
from relay_pipelines.schemas.request import SchemasRequest


class _Commands(TyperGroup):
    """Passes Ctrl-C on to the entry point; typer would exit without a message."""

    def invoke(self, ctx: typer.Context) -> Any:  # type: ignore[override,unused-ignore]
        try:
            return super().invoke(ctx)
        except KeyboardInterrupt:
            raise typer.Abort from None


app = typer.Typer(
    name="relay",
    cls=_Commands,
    help="Copy Kafka topics from one cluster to another in batch, exactly once and verbatim.",
    epilog="Exit codes: 0 done, 1 failed, 2 bad usage or configuration, 3 data-loss guard,"
    " 4 a check found a difference, 130 interrupted.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
    context_settings={"help_option_names": ["--help", "-h"]},
)

MirrorNames = Annotated[
    list[str] | None,
    typer.Option(
        "--mirror", "-m", metavar="M", help="Only this mirror; may be repeated. All by default."
    ),
]
MirrorName = Annotated[
    str | None,
    typer.Option("--mirror", "-m", metavar="M", help="Of this mirror, if there are several."),
]
Execute = Annotated[bool, typer.Option("--execute", help="Do it; without this it is only shown.")]
Topic = Annotated[
    str | None, typer.Option("--topic", "-t", metavar="T", help="Only this source topic.")
]
Output = Annotated[
    Path | None,
    typer.Option("--output", "-o", metavar="FILE", help="Write to this file, not to stdout."),
]
Keep = Annotated[
    bool, typer.Option("--keep", help="Keep the folder with relay.yaml, logs and data.")
]
Json = Annotated[bool, typer.Option("--json", help="Print JSON instead of tables.")]


@app.callback()
def options(
    context: typer.Context,
    config: Annotated[
        Path,
        typer.Option(
            "--config", "-c", envvar="RELAY_CONFIG", metavar="FILE", help="The configuration file."
        ),
    ] = Path("relay.yaml"),
    *,
    debug: Annotated[
        bool, typer.Option("--debug", help="Show tracebacks and the output of Spark.")
    ] = False,
) -> None:
    """Handle the global options, which may stand anywhere."""
    context.obj = Invocation(config, debug)


@app.command()
def check(
    context: typer.Context,
    mirror: MirrorNames = None,
    *,
    probe: Annotated[
        bool,
        typer.Option(
            "--probe",
            help="Also try the destination's transactions, in a topic that is deleted then.",
        ),
    ] = False,
) -> int:
    """Check the configuration, connectivity and permissions. Writes nothing without --probe."""
    from relay_pipelines.cli import inspect_commands

    return inspect_commands.check(context.obj, mirror or [], probe=probe)


@app.command()
def upstreams(
    context: typer.Context,
    mirror: MirrorNames = None,
    clear: Annotated[
        list[str] | None,
        typer.Option(
            "--clear",
            metavar="UPSTREAM",
            help="Release this upstream from quarantine; may be repeated.",
        ),
    ] = None,
    *,
    as_json: Json = False,
) -> int:
    """Show health and lag of the upstreams, and which is read."""
    from relay_pipelines.cli import upstreams_command as command

    if clear:
        return command.clear(context.obj, mirror or [], clear)
    return command.show(context.obj, mirror or [], as_json=as_json)


@app.command()
def plan(
    context: typer.Context,
    mirror: MirrorNames = None,
    topic: Topic = None,
    *,
    why: Annotated[
        bool,
        typer.Option("--why", help="Show for every source topic why it is copied or not."),
    ] = False,
    as_json: Json = False,
) -> int:
    """Show what a run would copy. Writes nothing."""
    from relay_pipelines.cli import inspect_commands

    return inspect_commands.plan(context.obj, mirror or [], topic, why=why, as_json=as_json)


@app.command()
def run(
    context: typer.Context,
    mirror: MirrorNames = None,
    topic: Topic = None,
    *,
    stop_at_end: Annotated[  # noqa: ARG001 - the only mode
        bool,
        typer.Option(
            "--stop-at-end",
            help="Stop at the current end of the source. The default and the only mode.",
        ),
    ] = True,
    every: Annotated[
        str | None,
        typer.Option(
            "--every",
            metavar="DURATION",
            help="Copy again and again, this long from start to start, until Ctrl-C: 1s, 10s, 5m.",
        ),
    ] = None,
    as_json: Annotated[
        bool, typer.Option("--json", help="Print a line of JSON per mirror instead of tables.")
    ] = False,
) -> int:
    """Copy all new records, one mirror after the other."""
    if every is not None:
        from relay_pipelines.cli import rounds_command

        return rounds_command.run(context.obj, mirror or [], topic, every, as_json=as_json)
    from relay_pipelines.cli import run_command

    return run_command.run(context.obj, mirror or [], topic, as_json=as_json)


@app.command()
def status(
    context: typer.Context,
    mirror: MirrorNames = None,
    *,
    everything: Annotated[
        bool,
        typer.Option("--all", "-a", help="Also show every topic-partition, and the replays."),
    ] = False,
    watch: Annotated[
        bool,
        typer.Option("--watch", "-w", help="Show lag, rate and time left, until Ctrl-C."),
    ] = False,
    every: Annotated[
        str,
        typer.Option("--every", metavar="DURATION", help="How often to look, with --watch."),
    ] = "2s",
    as_json: Json = False,
) -> int:
    """Show whether each mirror is copied, what is held back and why, and what to do."""
    if watch:
        from relay_pipelines.cli import watch_command

        return watch_command.run(context.obj, mirror or [], every, as_json=as_json)
    from relay_pipelines.cli import inspect_commands

    return inspect_commands.status(
        context.obj, mirror or [], everything=everything, as_json=as_json
    )


@app.command()
def exporter(
    context: typer.Context,
    mirror: MirrorNames = None,
    host: Annotated[
        str, typer.Option("--host", help="The address to listen on; 0.0.0.0 for all.")
    ] = "127.0.0.1",
    port: Annotated[
        int, typer.Option("--port", "-p", min=1, max=65_535, help="The port to listen on.")
    ] = 9465,
    every: Annotated[
        str, typer.Option("--every", metavar="DURATION", help="How often to look.")
    ] = "15s",
    partitions: Annotated[
        int,
        typer.Option(
            "--partitions",
            min=0,
            metavar="N",
            help="A mirror with more topic-partitions gets series per topic; 0 for always.",
        ),
    ] = 1_000,
) -> int:
    """Serve metrics of mirrors, wherever they run, to Prometheus."""
    from relay_pipelines.cli import exporter_command as command

    return command.run(context.obj, mirror or [], (host, port), every, partitions)


@app.command()
def ledger(
    context: typer.Context,
    mirror: MirrorNames = None,
    topic: Topic = None,
    last: Annotated[
        int | None,
        typer.Option(
            "--last",
            "-n",
            min=1,
            metavar="N",
            help="Only the last N entries of each mirror; 20 by default.",
        ),
    ] = None,
    output: Output = None,
    *,
    as_json: Json = False,
) -> int:
    """Show the committed chunks, oldest first."""
    from relay_pipelines.cli import ledger_commands as commands

    return commands.ledger(context.obj, mirror or [], topic, last, output, as_json=as_json)


@app.command()
def attest(
    context: typer.Context,
    mirror: MirrorNames = None,
    topic: Topic = None,
    output: Output = None,
) -> int:
    """Verify the ledger, and write a statement of what was copied. Changes nothing."""
    from relay_pipelines.cli import ledger_commands as commands

    return commands.attest(context.obj, mirror or [], topic, output)


@app.command()
@asks_for(AuditRequest)
def audit(
    context: typer.Context,
    request: AuditRequest,
    mirror: MirrorNames = None,
    replay: Annotated[
        str | None,
        typer.Option("--replay", metavar="ID", help="Audit this replay instead of its mirror."),
    ] = None,
    against: Annotated[
        Path | None,
        typer.Option(
            "--against", metavar="FILE", help="Compare the destination with this statement instead."
        ),
    ] = None,
    html: Annotated[
        Path | None,
        typer.Option("--html", metavar="FILE", help="Also write the report to this HTML page."),
    ] = None,
    textfile: Annotated[
        Path | None,
        typer.Option("--textfile", metavar="FILE", help="Also write the results as metrics."),
    ] = None,
    *,
    as_json: Json = False,
) -> int:
    """Verify that the destination is what the source was. Writes nothing to the clusters."""
    from relay_pipelines.audit import command

    names = mirror or []
    if against is not None:
        command.refuse_a_part(request, html)
        return command.run_against(
            context.obj, names, against, strict=request.strict, as_json=as_json
        )
    replayed = None
    if replay is not None:
        from relay_pipelines.replay.replay import mirror_of_replay

        replayed = partial(mirror_of_replay, replay)
    return command.run(
        context.obj, names, request, replayed, html=html, textfile=textfile, as_json=as_json
    )


@app.command()
@asks_for(CompareRequest)
def compare(
    context: typer.Context,
    request: CompareRequest,
    mirror: MirrorName = None,
    html: Annotated[
        Path | None,
        typer.Option("--html", metavar="FILE", help="Also write the report to this HTML page."),
    ] = None,
    *,
    as_json: Json = False,
) -> int:
    """Compare any two clusters, whoever has copied between them. Writes nothing to them."""
    from relay_pipelines.compare import command

    return command.run(context.obj, mirror, request, html=html, as_json=as_json)


@app.command()
@asks_for(ReplayRequest, lambda context: {"folder": context.obj.config.absolute().parent})
def replay(
    context: typer.Context,
    request: ReplayRequest,
    mirror: MirrorName = None,
    *,
    execute: Execute = False,
    as_json: Json = False,
) -> int:
    """Copy a range of a topic again, into another topic, exactly once."""
    from relay_pipelines.replay import command

    return command.run(context.obj, mirror, request, execute=execute, as_json=as_json)


@app.command()
@asks_for(OffsetsRequest)
def offsets(
    context: typer.Context,
    action: OffsetsAction,
    request: OffsetsRequest,
    mirror: MirrorName = None,
    *,
    execute: Annotated[
        bool, typer.Option("--execute", help="Let apply do it; without this it is only shown.")
    ] = False,
    backwards: Annotated[
        bool, typer.Option("--backwards", help="Let apply move groups back, too.")
    ] = False,
    as_json: Json = False,
) -> int:
    """Translate the positions of consumers to the other side; apply or verify that."""
    from relay_pipelines.offsets import command

    how = {"execute": execute, "backwards": backwards, "as_json": as_json}
    return command.run(context.obj, mirror, request, action, **how)


@app.command()
@asks_for(SchemasRequest)
def schemas(
    context: typer.Context,
    action: Literal["verify"],  # noqa: ARG001 - there is no other
    request: SchemasRequest,
    mirror: MirrorName = None,
    textfile: Annotated[
        Path | None,
        typer.Option("--textfile", metavar="FILE", help="Also write what was found as metrics."),
    ] = None,
    *,
    as_json: Json = False,
) -> int:
    """Compare the schemas of copied records at both registries."""
    from relay_pipelines.schemas import command

    return command.run(context.obj, mirror, request, textfile, as_json=as_json)


@app.command(cls=steps_of(MoveRequest, {*MoveStep}))
@asks_for(MoveRequest)
def move(
    context: typer.Context,
    step: MoveStep,
    request: MoveRequest,
    mirror: MirrorName = None,
    *,
    execute: Execute = False,
    as_json: Json = False,
) -> int:
    """Move producers and consumers to the copy, step by step, or take that back."""
    from relay_pipelines.move import command

    return command.run(context.obj, mirror, request, step, execute=execute, as_json=as_json)


@app.command()
def reset(
    context: typer.Context,
    topic: Annotated[
        str, typer.Option("--topic", "-t", metavar="T", help="The source topic; required.")
    ],
    mirror: MirrorName = None,
    *,
    to_earliest: Annotated[
        bool,
        typer.Option("--to-earliest", help="Copy again everything that the source still has."),
    ] = False,
    to_current: Annotated[
        bool,
        typer.Option("--to-current", help="Go on at the offset reached, without earlier copies."),
    ] = False,
    execute: Execute = False,
) -> int:
    """Decide how to go on with a topic whose copies are elsewhere, or gone. Copies nothing."""
    from relay_pipelines.recovery import command

    where = command.where(to_earliest=to_earliest, to_current=to_current)
    return command.run_reset(context.obj, mirror, topic, where, execute=execute)


@app.command()
def restore(
    context: typer.Context,
    mirror: MirrorName = None,
    *,
    execute: Execute = False,
) -> int:
    """Make lost checkpoints again from the ledger, or a lost ledger. Copies nothing."""
    from relay_pipelines.recovery import command

    return command.run_restore(context.obj, mirror, execute=execute)


class ExpectationsAction(StrEnum):
    """What to do with the expectations of relay.yaml."""

    RUN = "run"
    DOCS = "docs"


@app.command()
@asks_for(ExpectationsRequest)
def expectations(
    context: typer.Context,
    action: ExpectationsAction,
    request: ExpectationsRequest,
    mirror: MirrorNames = None,
    output: Annotated[
        Path | None,
        typer.Option("--output", "-o", metavar="FOLDER", help="Where docs writes HTML pages."),
    ] = None,
    *,
    as_json: Json = False,
) -> int:
    """Validate copied records, or write Data Docs. Copies nothing."""
    from relay_pipelines.expectations import command

    if action is ExpectationsAction.DOCS:
        return command.docs(context.obj, mirror or [], request, output)
    return command.run(context.obj, mirror or [], request, as_json=as_json)


@app.command()
def acls(
    context: typer.Context,
    mirror: MirrorNames = None,
    *,
    execute: Annotated[
        bool,
        typer.Option("--execute", help="Create the missing ACLs. Existing ones are never changed."),
    ] = False,
    as_json: Json = False,
) -> int:
    """Show or create missing ACLs of the copied topics."""
    from relay_pipelines.cli import acls_command as command

    return command.run(context.obj, mirror or [], execute=execute, as_json=as_json)


@app.command()
def init(
    folder: Annotated[
        Path, typer.Argument(metavar="[FOLDER]", help="Where; the current folder by default.")
    ] = Path(),
) -> int:
    """Write a commented relay.yaml, and Dagster's files, into a folder. Overwrites nothing."""
    from relay_pipelines.cli import init_command as command

    return command.run(folder)


@app.command()
def convert(
    file: Annotated[Path, typer.Argument(metavar="FILE", help="Of connect-mirror-maker.sh.")],
    output: Output = None,
) -> int:
    """Write the properties of a MirrorMaker 2 as relay.yaml."""
    from relay_pipelines.cli import convert_command as command

    return command.run(file, output)


@app.command()
def demo(
    *,
    keep: Keep = False,
    cluster: Annotated[
        bool,
        typer.Option("--cluster", help="Copy on a Spark cluster, and kill one of its workers."),
    ] = False,
    move: Annotated[
        bool,
        typer.Option("--move", help="Move a producer and a consumer over, and back."),
    ] = False,
) -> int:
    """Show a mirror between local clusters, with failures."""
    from relay_pipelines.demo import main, moving
    from relay_pipelines.errors import ConfigError

    if move and cluster:
        raise ConfigError("--move and --cluster are two demos", remedy="give one of them")
    if move:
        return moving.main(keep=keep)
    return int(main(keep=keep, cluster=cluster))


@app.command()
def ui(
    port: Annotated[
        int,
        typer.Option(
            "--port", "-p", min=1, max=65_535, help="The port of Dagster's UI on 127.0.0.1."
        ),
    ] = 3000,
    *,
    keep: Keep = False,
) -> int:
    """Show a mirror between local clusters in Dagster's UI."""
    from relay_pipelines.demo.ui import main

    return int(main(port, keep=keep))
