"""What `relay schemas verify` has found, as metrics."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from relay_pipelines.audit.metrics import Seen, rewrite
from relay_pipelines.schemas.verdict import State, TopicVerdict

_CHECK = "schemas"
NAMES = ("check_failed", "schemas_verdict", "schema_ids")


def write(
    path: Path, mirror: str, verdicts: Sequence[TopicVerdict], *, is_part: bool = False
) -> None:
    """Write the verdict on each topic; what the file says of others stays.

    So does what it says of a topic whose ledger entries are all gone, as nobody can look again.

    Args:
        is_part: whether less than whole topics were looked at.

    Raises:
        RelayError: the file cannot be read or written.
    """
    seen = {
        verdict.topic: Seen(
            bool(verdict.exit_code),
            is_part,
            verdict.state,
            {
                "same": len(verdict.same),
                "differing": len(verdict.differing),
                "unknown": len(verdict.unknown),
            },
        )
        for verdict in verdicts
        if not verdict.entries_gone or verdict.state is not State.NOTHING
    }
    rewrite(path, NAMES, mirror, _CHECK, seen)
