"""Checks that a Spark master or server accepts connections. Runs on the driver.

Spark itself tries for one minute to reach a master, and for ten to reach a Spark Connect server.
"""

from __future__ import annotations

import socket
from urllib.parse import urlsplit

from relay_pipelines.errors import RelayError

_SECONDS = 10.0
PORTS = {"sc": 15_002, "spark": 7_077}


def check(address: str) -> None:
    """Connect to a `spark://` or `sc://` address, or to any of several masters; ignore others.

    Raises:
        RelayError: no server accepts a connection.
    """
    errors = []
    for host, port in _targets(address):
        try:
            socket.create_connection((host, port), timeout=_SECONDS).close()
        except OSError as error:
            errors.append(error)
        else:
            return
    if errors:
        why = errors[0].strerror or str(errors[0]) or type(errors[0]).__name__
        raise RelayError(
            f"no Spark answers at {without_parameters(address)}: {why}",
            remedy="start it, or correct spark.master or spark.remote",
        )


def without_parameters(address: str) -> str:
    """Return the address alone: a token may follow that of a Spark Connect server."""
    return address.partition("/;")[0].rstrip("/") if address.startswith("sc:") else address


def _targets(address: str) -> list[tuple[str, int]]:
    scheme, _, rest = address.partition("://")
    if scheme not in PORTS:
        return []
    parts = [urlsplit(f"//{host}") for host in rest.partition("/")[0].split(",")]
    return [(part.hostname or "", part.port or PORTS[scheme]) for part in parts]
