"""Where metrics can be read: an HTTP endpoint, and a file for the node exporter."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import prometheus_client as prometheus
from prometheus_client import CollectorRegistry

from relay_pipelines import settings
from relay_pipelines.errors import ConfigError, RelayError
from relay_pipelines.metrics.run_metrics import MetricsObserver

HEALTH = "/healthz"


class Endpoint:
    """Serves metrics at an address, and at /healthz whether they can be relied on.

    Args:
        address: host:port.
        remedy: what to do if the address cannot be used.
        failing: says what is wrong; empty if nothing is.
    """

    def __init__(
        self,
        address: str,
        registry: CollectorRegistry,
        remedy: str,
        failing: Callable[[], str] = lambda: "",
    ) -> None:
        self._address = address
        self._registry = registry
        self._remedy = remedy
        self._failing = failing
        self._server: Any = None

    def open(self) -> None:
        """Serve from now on; does nothing if it is served already.

        Raises:
            ConfigError: the address is in use, or does not belong to this machine.
        """
        if self._server is not None:
            return
        host, _, port = self._address.rpartition(":")
        try:
            server, _ = prometheus.start_http_server(int(port), host.strip("[]"), self._registry)
        except OSError as error:
            raise ConfigError(
                f"metrics cannot be served at {self._address}: {error.strerror or error}",
                remedy=self._remedy,
            ) from error
        server.set_app(self._with_health(server.get_app()))
        self._server = server

    def close(self) -> None:
        """Serve no longer."""
        if self._server is not None:
            self._server.shutdown()
            self._server.server_close()
            self._server = None

    def _with_health(self, metrics: Any) -> Any:
        def app(environ: Any, start_response: Any) -> Any:
            if environ["PATH_INFO"] != HEALTH:
                return metrics(environ, start_response)
            why = self._failing()
            status = "503 Service Unavailable" if why else "200 OK"
            start_response(status, [("Content-Type", "text/plain; charset=utf-8")])
            return [f"{why or 'ok'}\n".encode()]

        return app


class Publication:
    """Publishes the metrics of runs as the settings say."""

    def __init__(self, observer: MetricsObserver, configured: settings.Metrics) -> None:
        self.observer = observer
        self._textfile = configured.textfile
        self._endpoint = None
        if configured.address is not None:
            remedy = "set metrics.address to a free port of this machine, or leave it out"
            self._endpoint = Endpoint(configured.address, observer.registry, remedy)

    def serve(self) -> None:
        """Serve from now on, if there is to be an endpoint.

        Raises:
            ConfigError: the address is in use, or does not belong to this machine.
        """
        if self._endpoint is not None:
            self._endpoint.open()

    def write(self) -> None:
        """Write the file, if there is to be one.

        Raises:
            RelayError: it cannot be written.
        """
        if self._textfile is not None:
            write_textfile(
                self._textfile, self.observer.registry, "set metrics.textfile to a writable file"
            )

    def end(self) -> None:
        """Serve no longer, and write the file."""
        if self._endpoint is not None:
            self._endpoint.close()
        self.write()


def write_textfile(path: Path | str, registry: CollectorRegistry, remedy: str) -> None:
    """Write metrics to a file for the node exporter's textfile collector.

    Raises:
        RelayError: it cannot be written.
    """
    try:
        prometheus.write_to_textfile(str(path), registry)
    except OSError as error:
        raise RelayError(
            f"metrics cannot be written to {path}: {error.strerror or error}", remedy=remedy
        ) from error


@contextmanager
def published(observer: MetricsObserver, configured: settings.Metrics) -> Iterator[Publication]:
    """Publish metrics in this context, once `serve` was called, and write them at its end.

    Raises:
        RelayError: the file cannot be written.
    """
    publication = Publication(observer, configured)
    try:
        yield publication
    finally:
        publication.end()
