"""How a Spark Connect server is reached: gRPC takes a proxy from the environment. On the driver."""

from __future__ import annotations

import os
import uuid
from typing import Any
from urllib.parse import urlsplit
from urllib.request import proxy_bypass_environment  # type: ignore[attr-defined]  # typeshed

from relay_pipelines.errors import RelayError
from relay_pipelines.spark import answering

_LOOPBACK = {"127.0.0.1", "localhost", "::1"}
_ANSWER_SECONDS = 10.0
# in gRPC's order; it reads no other spelling
_PROXIES = ("grpc_proxy", "https_proxy", "http_proxy")
_EXCEPTIONS = ("no_grpc_proxy", "no_proxy")


def builder(remote: str) -> Any:
    """Return what opens channels to a server; to one on this machine, never through a proxy."""
    from pyspark.sql.connect.client import DefaultChannelBuilder

    direct = [("grpc.enable_http_proxy", 0)] if _host(remote) in _LOOPBACK else []
    return DefaultChannelBuilder(remote, direct)


def version(remote: str) -> str:
    """Ask a server for its version, in a session that lasts as long as the call.

    Raises:
        RelayError: it does not answer.
    """
    answering.check(remote)

    import grpc
    from pyspark.sql.connect.proto import base_pb2, base_pb2_grpc

    session: dict[str, Any] = {
        "session_id": str(uuid.uuid4()),
        "user_context": {"user_id": "relay"},
    }
    version = base_pb2.AnalyzePlanRequest.SparkVersion()
    asked = base_pb2.AnalyzePlanRequest(**session, spark_version=version)
    opener = builder(remote)
    options: dict[str, Any] = {"timeout": _ANSWER_SECONDS, "metadata": opener.metadata()}
    with opener.toChannel() as channel:
        server = base_pb2_grpc.SparkConnectServiceStub(channel)
        try:
            answer = server.AnalyzePlan(asked, **options)
            server.ReleaseSession(base_pb2.ReleaseSessionRequest(**session), **options)
        except grpc.RpcError as error:
            said = error.details() or ""
            raise RelayError(
                f"no Spark Connect server answers at {answering.without_parameters(remote)}:"
                f" {error.code().name}: {next(iter(said.splitlines()), '')}",
                remedy="correct spark.remote, or see the server's log",
            ) from error
    return str(answer.spark_version.version)


def remedy_of_proxy(remote: str) -> str:
    """Return what to do if the server is asked through a proxy; empty if it is not."""
    host = _host(remote)
    proxy = next((name for name in _PROXIES if os.environ.get(name)), "")
    without = next((os.environ[name] for name in _EXCEPTIONS if os.environ.get(name)), "")
    if not host or host in _LOOPBACK or not proxy:
        return ""
    if proxy_bypass_environment(host, {"no": without}):
        return ""
    return (
        f"{proxy} is set, so that the server is asked through a proxy: add {host} to no_proxy, or"
        " let the proxy pass HTTP/2"
    )


def _host(remote: str) -> str:
    return urlsplit(remote.partition("/;")[0]).hostname or "" if remote else ""
