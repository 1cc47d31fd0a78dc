"""An address at which one cluster answers, and later another one, as after a restore elsewhere."""

import socket
import threading
from contextlib import suppress
from dataclasses import replace
from typing import Self

from relay_pipelines.model import Cluster


class Address:
    """Forwards connections to a broker of a cluster; the brokers advertise their own addresses."""

    def __init__(self, cluster: Cluster) -> None:
        self._server = socket.create_server(("127.0.0.1", 0))
        self._open: list[socket.socket] = []
        self._cluster = cluster
        self.cluster = replace(
            cluster, bootstrap_servers=(f"127.0.0.1:{self._server.getsockname()[1]}",)
        )

    def __enter__(self) -> Self:
        threading.Thread(target=self._serve, daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        self._server.close()
        self._end()

    def lead_to(self, cluster: Cluster) -> None:
        """Forward to another cluster from now on; connections to the one before end."""
        self._cluster = cluster
        self._end()

    def _end(self) -> None:
        for each in self._open:
            with suppress(OSError):
                each.shutdown(socket.SHUT_RDWR)
            each.close()
        self._open.clear()

    def _serve(self) -> None:
        with suppress(OSError):
            while True:
                here, _ = self._server.accept()
                host, _, port = self._cluster.bootstrap_servers[0].rpartition(":")
                there = socket.create_connection((host, int(port)))
                self._open += here, there
                for pair in ((here, there), (there, here)):
                    threading.Thread(target=_forward, args=pair, daemon=True).start()


def _forward(here: socket.socket, there: socket.socket) -> None:
    with suppress(OSError):
        while data := here.recv(1 << 16):
            there.sendall(data)
        there.shutdown(socket.SHUT_WR)
