"""The requests that every copy needs of a broker, and what for."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from kafka.protocol.api_key import ApiKey

from relay_pipelines.errors import Side, UnsupportedError
from relay_pipelines.protocol import config_requests, fetch, metadata, offset_requests

if TYPE_CHECKING:
    from relay_pipelines.protocol.connection import Connection

REMEDY = "Kafka 2.4 or newer is needed, or a broker that serves requests as it does"
PRODUCE = 0, 8
"""Api key and version."""


class Request(NamedTuple):
    """A request, in versions of which a broker must serve one.

    Args:
        purpose: what a copy needs it for.
    """

    api_key: int
    oldest: int
    newest: int
    purpose: str

    def __str__(self) -> str:
        versions = f"{self.oldest}" + f" to {self.newest}" * (self.newest > self.oldest)
        return f"{name_of(self.api_key)} in version {versions} ({self.purpose})"


def _exactly(at: tuple[int, int], purpose: str) -> Request:
    api_key, version = at
    return Request(api_key, version, version, purpose)


_READING = (
    # the oldest version that can be asked not to create the topics it names
    Request(metadata.API_KEY, 4, metadata.VERSION, "which cluster it is, its brokers and topics"),
    _exactly((fetch.API_KEY, fetch.VERSION), "to read records"),
    _exactly(offset_requests.LIST_OFFSETS, "where logs begin and end"),
    _exactly(config_requests.DESCRIBE, "the configuration of topics"),
)
NEEDED = {
    Side.SOURCE: (
        *_READING,
        _exactly(offset_requests.EPOCH_ENDS, "whether a log was truncated after it was copied"),
    ),
    Side.DESTINATION: (
        *_READING,
        _exactly(PRODUCE, "to write records"),
        # the oldest version that finds the coordinator of a transactional id
        Request(ApiKey.FindCoordinator, 1, 2, "transactions"),
        Request(ApiKey.InitProducerId, 0, 4, "transactions"),
        Request(ApiKey.AddPartitionsToTxn, 0, 2, "transactions"),
        Request(ApiKey.EndTxn, 0, 1, "transactions"),
    ),
}
"""Side -> what every broker there must serve. What is not here can be done without."""


def name_of(api_key: int) -> str:
    """Return a request's name in Kafka's protocol guide."""
    try:
        return str(ApiKey(api_key).name)
    except ValueError:
        return f"request {api_key}"


def require_served(connection: Connection, side: Side) -> None:
    """Compare what a broker serves with what a copy needs there.

    Raises:
        UnsupportedError: it does not serve all of it; names every request that is missing.
    """
    missing = [
        str(request)
        for request in NEEDED.get(side, _READING)
        if not any(
            connection.supports(request.api_key, version)
            for version in range(request.oldest, request.newest + 1)
        )
    ]
    if missing:
        raise UnsupportedError(f"{connection} does not serve {', '.join(missing)}", remedy=REMEDY)
