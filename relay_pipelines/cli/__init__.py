"""The command line: it parses options, calls the other rooms, and returns an exit code.

    app                   the commands and their options
    request_options       gives a command the options of a request
    entry                 the entry point: errors become one line and an exit code
    run_command           the command run
    rounds_command        run --every: rounds of all mirrors
    inspect_commands      the commands that only show: check, plan, status
    watch_command         status --watch
    ledger_commands       the commands ledger and attest
    exporter_command      the command exporter
    convert_command       the command convert
    upstreams_command     the command upstreams
    acls_command          the command acls
    init_command          the command init

`relay_pipelines.invocation` has what every command needs, `relay_pipelines.output` prints. The
commands of a feature are in its folder, such as `audit/command.py`. Spark, pandas and Dagster are
imported when a command needs them.
"""

from __future__ import annotations

from relay_pipelines.cli.entry import main

__all__ = ["main"]
