"""How a tick of a sensor ends that has no result: each in one line, which says what to do."""

import dagster as dg


class TickError(dg.DagsterError):
    """Why a tick fails.

    Any other exception is the last of a list in Dagster's UI, below what Dagster itself says.
    """


def no_longer_in_file(mirror: str) -> dg.SkipReason:
    """Return what a tick says of a mirror that only the loaded definitions have."""
    return dg.SkipReason(f"{mirror} is no longer in relay.yaml; reload the code location")
