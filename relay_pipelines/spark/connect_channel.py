"""How a Spark Connect server is reached: gRPC takes a proxy from the environment. On the driver."""

from __future__ import annotations

import os
from typing import Any
from urllib.parse import urlsplit
from urllib.request import proxy_bypass_environment  # type: ignore[attr-defined]  # typeshed

LOOPBACK = {"127.0.0.1", "localhost", "::1"}
# in gRPC's order; it reads no other spelling
_PROXIES = ("grpc_proxy", "https_proxy", "http_proxy")
_EXCEPTIONS = ("no_grpc_proxy", "no_proxy")


def builder(remote: str) -> Any:
    """Return what opens channels to a server; to one on this machine, never through a proxy."""
    from pyspark.sql.connect.client import DefaultChannelBuilder

    direct = [("grpc.enable_http_proxy", 0)] if _host(remote) in LOOPBACK else []
    return DefaultChannelBuilder(remote, direct)


def remedy_of_proxy(remote: str) -> str:
    """Return what to do if the server is asked through a proxy; empty if it is not."""
    host = _host(remote)
    proxy = next((name for name in _PROXIES if os.environ.get(name)), "")
    without = next((os.environ[name] for name in _EXCEPTIONS if os.environ.get(name)), "")
    if not host or host in LOOPBACK or not proxy:
        return ""
    if proxy_bypass_environment(host, {"no": without}):
        return ""
    return (
        f"{proxy} is set, so that the server is asked through a proxy: add {host} to no_proxy, or"
        " let the proxy pass HTTP/2"
    )


def _host(remote: str) -> str:
    return urlsplit(remote.partition("/;")[0]).hostname or "" if remote else ""
