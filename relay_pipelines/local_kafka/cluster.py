"""A cluster of real brokers on this machine."""

from __future__ import annotations

import re
import shutil
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Self

from relay_pipelines import java
from relay_pipelines.local_kafka import configuration, jars
from relay_pipelines.local_kafka.configuration import (
    MECHANISMS,
    Certificates,
    Listener,
    check_listeners,
    client_security,
    cluster_id,
    format_folders,
    listener_properties,
    scram_arguments,
)
from relay_pipelines.local_kafka.local_process import LocalProcess
from relay_pipelines.local_kafka.ports import PortTakenError, free_ports
from relay_pipelines.model import Cluster

# with only the first JIT compiler a start takes little more than half the CPU time, and these
# brokers live for minutes
JVM_OPTIONS = ("-Xms128m", "-Xmx512m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1")
_START_ATTEMPTS = 3
_CLOSE_SECONDS = 10.0
_STARTED = re.compile(rb"Kafka Server started|\[KafkaServer id=\d+\] started")
"""A broker's own words, since and before Kafka 4.0."""


class Broker(LocalProcess):
    """One broker process.

    Args:
        node_id: from 1.
        port: of the PLAINTEXT listener on 127.0.0.1.
        command, log, start_timeout_seconds: as those of `LocalProcess`.
    """

    def __init__(
        self,
        node_id: int,
        port: int,
        command: Sequence[str],
        log: Path,
        start_timeout_seconds: float,
    ) -> None:
        super().__init__(f"broker {node_id}", port, command, log, _STARTED, start_timeout_seconds)
        self.node_id = node_id


class LocalCluster:
    """Combined brokers and controllers in KRaft mode on 127.0.0.1; they end with this process.

    Every broker has a PLAINTEXT listener for traffic between the brokers.

    Args:
        name: appears in messages.
        brokers: how many; with three or more, topics have three replicas by default.
        listeners: for clients; `bootstrap_servers` and `cluster()` use the first one.
        folder: data, configuration and logs; data of an earlier start is used again. The default is
            a temporary folder, which the context removes unless an exception ends it.
        config: more properties for server.properties; they take precedence.
        users: name -> password, for the SASL listeners.
        certificates: for the TLS listeners.
        authorizer: whether named users need ACLs; PLAINTEXT clients may do everything.
        jvm_options: of each broker.
        start_timeout_seconds: how long the start of a broker may take.
    """

    def __init__(
        self,
        name: str = "kafka",
        *,
        brokers: int = 1,
        listeners: Sequence[Listener] = (Listener.PLAINTEXT,),
        folder: Path | None = None,
        config: Mapping[str, object] | None = None,
        users: Mapping[str, str] | None = None,
        certificates: Certificates | None = None,
        authorizer: bool = False,
        jvm_options: Sequence[str] = JVM_OPTIONS,
        start_timeout_seconds: float = 60.0,
    ) -> None:
        self.name = name
        self.listeners = tuple(listeners)
        self.users = dict(users or {})
        self.brokers: tuple[Broker, ...] = ()
        self.certificates = certificates
        self.cluster_id = ""
        check_listeners(self.listeners, self.users, certificates)
        self._temporary = folder is None
        self.folder = (folder or Path(tempfile.mkdtemp(prefix=f"relay-{name}-"))).absolute()
        self._count = brokers
        self._config = dict(config or {})
        self._authorizer = authorizer
        self._jvm_options = tuple(jvm_options)
        self._start_timeout_seconds = start_timeout_seconds
        self._ports: list[dict[str, int]] = []

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._temporary and error is None:
            self.discard()
        else:
            self.close()

    @property
    def bootstrap_servers(self) -> tuple[str, ...]:
        """`127.0.0.1:port` of every broker's first listener."""
        return self.address(self.listeners[0])

    def address(self, listener: Listener) -> tuple[str, ...]:
        """`127.0.0.1:port` of a listener on every broker."""
        return tuple(f"127.0.0.1:{ports[listener]}" for ports in self._ports)

    def cluster(
        self,
        listener: Listener | None = None,
        *,
        mechanism: str = MECHANISMS[-1],
        username: str | None = None,
        client_certificate: bool = False,
    ) -> Cluster:
        """The cluster as clients need it, with addresses and credentials.

        Args:
            listener: the first one by default.
            mechanism: of a SASL listener.
            username: one of `users`; the first one by default.
            client_certificate: whether to present a certificate to a TLS listener.
        """
        chosen = listener or self.listeners[0]
        security = client_security(
            chosen,
            self.users,
            self.certificates,
            mechanism,
            username,
            client_certificate=client_certificate,
        )
        return Cluster(self.name, self.address(chosen), security)

    def start(self) -> None:
        """Start all brokers and wait until they serve."""
        try:
            self._start()
        except BaseException:
            self._kill()
            raise

    def close(self) -> None:
        """Shut all brokers down cleanly; data and logs stay."""
        for broker in self.brokers:
            broker.request_stop()
        deadline = time.monotonic() + _CLOSE_SECONDS
        for broker in self.brokers:
            broker.stop(max(0.0, deadline - time.monotonic()))

    def discard(self) -> None:
        """Kill all brokers and remove data and logs."""
        self._kill()
        shutil.rmtree(self.folder)

    def _start(self) -> None:
        self.folder.mkdir(parents=True, exist_ok=True)
        self.cluster_id = cluster_id(self.folder / "cluster.id")
        (self.folder / "log4j2.properties").write_text(configuration.LOG4J2)
        for attempt in range(1, _START_ATTEMPTS + 1):
            self._configure()
            try:
                self._launch()
            except PortTakenError:
                self._kill()
                if attempt == _START_ATTEMPTS:
                    raise
            else:
                return

    def _configure(self) -> None:
        names = [
            *dict.fromkeys([Listener.PLAINTEXT, *self.listeners]),
            configuration.CONTROLLER,
        ]
        free = iter(free_ports(self._count * len(names)))
        self._ports = [{name: next(free) for name in names} for _ in range(self._count)]
        voters = [
            (node_id, ports[configuration.CONTROLLER])
            for node_id, ports in enumerate(self._ports, 1)
        ]
        for (node_id, _), ports, home in zip(voters, self._ports, self._homes(), strict=True):
            # server.properties holds the users' passwords
            home.mkdir(mode=0o700, exist_ok=True)
            own = configuration.broker_properties(node_id, ports, voters, home / "data")
            (home / "server.properties").write_text(
                configuration.render(self._shared() | own | self._config)
            )

    def _shared(self) -> dict[str, str]:
        properties = configuration.cluster_properties(self._count)
        if self._authorizer:
            properties |= configuration.authorizer_properties()
        for listener in self.listeners:
            properties |= listener_properties(listener, self.users, self.certificates)
        return properties

    def _launch(self) -> None:
        run = [
            java.find().executable,
            *self._jvm_options,
            *jars.BROKER_CLASSES.jvm_options(verbose=False),
            f"-Dlog4j2.configurationFile={self.folder / 'log4j2.properties'}",
        ]
        run += ["-cp", jars.broker_classpath()]
        alike = self._shared() | self._config
        format_folders(run, self._homes(), self.cluster_id, scram_arguments(self.users), alike)
        self.brokers = tuple(
            Broker(
                node_id,
                ports[Listener.PLAINTEXT],
                [*run, "kafka.Kafka", str(home / "server.properties")],
                home / "broker.log",
                self._start_timeout_seconds,
            )
            for node_id, (ports, home) in enumerate(zip(self._ports, self._homes(), strict=True), 1)
        )
        for broker in self.brokers:
            broker.launch()
        for broker in self.brokers:
            broker.wait_until_serving()
        jars.BROKER_CLASSES.make_in_background()  # the next cluster starts with it

    def _homes(self) -> list[Path]:
        return [self.folder / f"broker-{node_id}" for node_id in range(1, self._count + 1)]

    def _kill(self) -> None:
        for broker in self.brokers:
            broker.kill()
