"""The command line: parse, call, exit code. What people see is made in `relay_pipelines.console`.

    app        the commands and their options
    entry      the entry point: errors become one line and an exit code
    context    what every command starts from: relay.yaml and the mirrors asked for
    signals    Ctrl-C and SIGTERM while records are copied
    run        the command `run`
    look       the commands that only look: check, plan, status, ledger

Nothing here imports Spark, pandas or Dagster until a command copies records.
"""

from __future__ import annotations

from relay_pipelines.cli.entry import main

__all__ = ["main"]
