"""Free ports on the loopback interface.

Errors of embedded brokers.
"""

from __future__ import annotations

import contextlib
import itertools
import random
import socket

from relay_pipelines.errors import RelayError

# Below the ephemeral range of every system: no outgoing connection takes the port of a broker that
# is down, and a client that keeps dialling the port does not connect to itself.
_RANGE = range(20_000, 32_000)
_TRIES = 1000


def free_ports(count: int) -> list[int]:
    """Return different ports that were free a moment ago."""
    candidates = random.SystemRandom().sample(_RANGE, _TRIES)
    with contextlib.ExitStack() as held:
        ports = list(itertools.islice((port for port in candidates if _bind(port, held)), count))
    if len(ports) < count:
        raise LocalKafkaError(
            f"found {len(ports)} free ports on 127.0.0.1 where {count} are needed",
            remedy="stop other servers",
        )
    return ports


def refuse_taken(port: int, remedy: str) -> None:
    """Refuse a port on which another process listens, before anything is started there.

    Raises:
        PortTakenError: the port is taken, or this user may not use it.
    """
    with socket.socket() as claim:
        # connections that a former server has closed do not count
        claim.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            claim.bind(("127.0.0.1", port))
        except OSError as error:
            raise PortTakenError(
                f"port {port} of 127.0.0.1 cannot be used: {error.strerror}", remedy=remedy
            ) from error


def _bind(port: int, held: contextlib.ExitStack) -> bool:
    taken = held.enter_context(socket.socket())
    try:
        taken.bind(("127.0.0.1", port))
    except OSError:
        return False
    return True


class LocalKafkaError(RelayError):
    """An embedded broker, its jars or its JDK failed."""


class PortTakenError(LocalKafkaError):
    """Another process took the port before the broker did; a start with other ports may work."""
