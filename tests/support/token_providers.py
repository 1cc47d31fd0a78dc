"""Token providers as users write them: right ones, and all kinds of wrong ones."""

import threading
import time
from collections import Counter

from tests.support.token_endpoint import CLIENT, unsecured

calls: Counter[str] = Counter()
failing: set[str] = set()
go_on = threading.Event()


def issued(name: str, seconds: float = 3600.0) -> tuple[str, float]:
    """Return a token of the client and when it expires, as confluent-kafka's oauth_cb does."""
    calls[name] += 1
    if name in failing:
        raise ConnectionError("the signer does not answer")
    return unsecured(CLIENT, seconds), time.time() + seconds


def plain(name: str) -> str:
    """Return a token alone, as kafka-python's token providers do."""
    return issued(name)[0]


def hanging(name: str) -> tuple[str, float]:
    """Return only when a test says so."""
    token = issued(name)
    go_on.wait(60)
    return token


def denied(name: str) -> str:
    """Refuse at once."""
    calls[name] += 1
    raise PermissionError("role relay may not sign\nsecond line")


def expired(name: str) -> tuple[str, float]:
    """Return what was valid a minute ago."""
    return issued(name, -60)


def milliseconds(name: str) -> tuple[str, float]:
    """Return what the AWS signer returns, without dividing it."""
    token, expires = issued(name)
    return token, expires * 1000


def nothing(name: str) -> None:
    """Forget to return the token."""
    calls[name] += 1


def foreign(name: str) -> str:
    """Return a token that no broker accepts."""
    calls[name] += 1
    return "a.b.c"
