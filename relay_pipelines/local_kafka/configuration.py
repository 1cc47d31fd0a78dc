"""The server.properties of a broker.

Formats the data folders of brokers, which KRaft needs before the first start.

A broker's listeners, and what each needs in server.properties and in a client's settings.
"""

from __future__ import annotations

import base64
import re
import subprocess
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from pathlib import Path
from typing import Any

from relay_pipelines.local_kafka.local_process import tail
from relay_pipelines.local_kafka.ports import LocalKafkaError
from relay_pipelines.model import Security

CONTROLLER = "CONTROLLER"

LOG4J2 = """\
status = warn
appender.console.type = Console
appender.console.name = console
appender.console.layout.type = PatternLayout
appender.console.layout.pattern = [%d] %p %m (%c)%n
logger.config.name = org.apache.kafka.common.config.AbstractConfig
logger.config.level = WARN
rootLogger.level = INFO
rootLogger.appenderRef.console.ref = console
"""
"""The console is the broker's log file, which also has the output of the JVM itself."""


def cluster_properties(brokers: int) -> dict[str, str]:
    """Return what differs from Kafka's defaults: small, quick to start, no automatic topics."""
    replicas = str(min(3, brokers))
    in_sync = str(2 if brokers >= 3 else 1)  # noqa: PLR2004 - two of three may acknowledge
    return {
        "process.roles": "broker,controller",
        "controller.listener.names": CONTROLLER,
        "inter.broker.listener.name": Listener.PLAINTEXT,
        "auto.create.topics.enable": "false",
        "default.replication.factor": replicas,
        "min.insync.replicas": in_sync,
        "offsets.topic.num.partitions": "4",
        "offsets.topic.replication.factor": replicas,
        "transaction.state.log.num.partitions": "4",
        "transaction.state.log.replication.factor": replicas,
        "transaction.state.log.min.isr": in_sync,
        "share.coordinator.state.topic.num.partitions": "4",
        "share.coordinator.state.topic.replication.factor": replicas,
        "share.coordinator.state.topic.min.isr": in_sync,
        "group.initial.rebalance.delay.ms": "0",
        # a copy keeps its records' timestamps: a week's retention would take old ones at once
        "log.retention.ms": "-1",
        # each broker has a rack of its own
        "replica.selector.class": "org.apache.kafka.common.replica.RackAwareReplicaSelector",
        # a killed broker cannot register again before this time has passed; 9 s by default
        "broker.session.timeout.ms": "3000",
        # a third of an idle broker's CPU goes into them at 500 ms
        "broker.heartbeat.interval.ms": "1000",
        # two records a second, for followers that these clusters do not have
        "metadata.max.idle.interval.ms": "0",
        # allocated at the start; 128 MiB by default
        "log.cleaner.dedupe.buffer.size": str(16 << 20),
    }


def authorizer_properties() -> dict[str, str]:
    """Return what makes ACLs necessary, except for PLAINTEXT clients and between brokers."""
    return {
        "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
        "super.users": "User:ANONYMOUS",
    }


def broker_properties(
    node_id: int, ports: Mapping[str, int], voters: Sequence[tuple[int, int]], data: Path
) -> dict[str, str]:
    """Return what differs from broker to broker.

    Args:
        ports: by listener name, CONTROLLER included.
        voters: node id and CONTROLLER port of every broker of the cluster.
        data: folder of this broker's topic-partitions.
    """
    addresses = {name: f"{name}://127.0.0.1:{port}" for name, port in ports.items()}
    protocols = {name: Listener.PLAINTEXT if name == CONTROLLER else name for name in ports}
    return {
        "node.id": str(node_id),
        "broker.rack": f"rack-{node_id}",
        "controller.quorum.voters": ",".join(f"{voter}@127.0.0.1:{port}" for voter, port in voters),
        "listeners": ",".join(addresses.values()),
        "advertised.listeners": ",".join(
            address for name, address in addresses.items() if name != CONTROLLER
        ),
        "listener.security.protocol.map": ",".join(
            f"{name}:{protocol}" for name, protocol in protocols.items()
        ),
        "log.dirs": str(data),
    }


def render(properties: Mapping[str, object]) -> str:
    """Return the text of a Java properties file."""
    return "".join(f"{key}={_text(value)}\n" for key, value in properties.items())


def _text(value: object) -> str:
    # booleans are lower case, and a backslash starts an escape sequence
    text = str(value).lower() if isinstance(value, bool) else str(value)
    return text.replace("\\", "\\\\").replace("\n", "\\n")


_TIMEOUT_SECONDS = 120


def cluster_id(file: Path) -> str:
    """Return the id in `file`, made at the first call, so that restarts keep the cluster."""
    if not file.exists():
        file.write_text(_random_id())
    return file.read_text()


def _random_id() -> str:
    # Kafka's Uuid is 16 bytes in URL-safe base64; with a leading dash it would look like an option
    return next(
        text
        for _ in iter(int, 1)
        if (text := base64.urlsafe_b64encode(uuid.uuid4().bytes)[:22].decode())[0] != "-"
    )


_IDS = "meta.properties"
_formatted: dict[tuple[object, ...], dict[Path, bytes]] = {}
"""The other files of a formatted folder, by what they depend on."""


def format_folders(
    java: Sequence[str],
    homes: Sequence[Path],
    cluster_id: str,
    scram: Sequence[str],
    properties: Mapping[str, Any],
) -> None:
    """Format the data folders that are not formatted yet.

    Kafka's tool is a JVM of a second, and what it writes differs from broker to broker in ids
    alone. So it runs once in this process for all brokers that are configured alike.

    Args:
        java: the command that runs a main class of Kafka.
        homes: the brokers' folders, each with its server.properties; they are numbered from 1.
        scram: arguments that create the SCRAM users.
        properties: what the brokers' configurations have in common.
    """
    alike = (java[-1], *scram, *sorted(properties.items()))
    for node_id, home in enumerate(homes, 1):
        data = Path(properties.get("log.dirs", home / "data"))
        if (data / _IDS).exists():
            continue
        if alike not in _formatted:
            _format(java, home, cluster_id, scram)
            # since Kafka 4.4 one of them is in a folder
            files = (file for file in data.rglob("*") if file.is_file() and file.name != _IDS)
            _formatted[alike] = {file.relative_to(data): file.read_bytes() for file in files}
            continue
        data.mkdir(exist_ok=True)
        for name, content in _formatted[alike].items():
            (data / name).parent.mkdir(exist_ok=True)
            (data / name).write_bytes(content)
        ids = {"cluster.id": cluster_id, "node.id": node_id, "directory.id": _random_id()}
        # last: a folder that has this file is formatted
        (data / _IDS).write_text(render({"version": 1} | ids))


def _format(java: Sequence[str], home: Path, cluster_id: str, scram: Sequence[str]) -> None:
    # better compilation does not pay off in a second
    options = ["-XX:TieredStopAtLevel=1", "kafka.tools.StorageTool", "format", "--ignore-formatted"]
    log_file = home / "format.log"
    with log_file.open("wb") as log:
        done = subprocess.run(  # noqa: S603 - our own JDK
            [
                *(*java, *options, "--cluster-id", cluster_id, *scram),
                *("--config", str(home / "server.properties")),
            ],
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            timeout=_TIMEOUT_SECONDS,
            check=False,
        )
    if done.returncode:
        raise LocalKafkaError(
            f"cannot format a broker's data: {tail(log_file, 0)}",
            remedy=f"its log is {log_file}",
        )


SCRAM = ("SCRAM-SHA-256", "SCRAM-SHA-512")
MECHANISMS = ("PLAIN", *SCRAM)
_PLAIN_WORD = re.compile(r"[\w.~+-]+", re.ASCII)
_SECURITY = "org.apache.kafka.common.security"


class Listener(StrEnum):
    """A listener by its security protocol; the SASL ones accept all of `MECHANISMS`."""

    PLAINTEXT = "PLAINTEXT"
    SASL_PLAINTEXT = "SASL_PLAINTEXT"
    SSL = "SSL"
    SASL_SSL = "SASL_SSL"

    @property
    def sasl(self) -> bool:
        """Whether clients need a user name and a password."""
        return self.startswith("SASL")

    @property
    def tls(self) -> bool:
        """Whether the connection is encrypted."""
        return self.endswith("SSL")


@dataclass(frozen=True, slots=True)
class Certificates:
    """PEM files that a TLS listener and its clients need.

    Args:
        authority: signed the other certificates.
        broker: the brokers' private key (PKCS #8), then their certificate.
        client_certificate: one that the brokers trust.
        client_key: its private key, not encrypted.
    """

    authority: Path
    broker: Path
    client_certificate: Path
    client_key: Path


def check_listeners(
    listeners: Sequence[Listener], users: Mapping[str, str], certificates: Certificates | None
) -> None:
    """Check that every listener has the users and certificates that it needs.

    Raises:
        LocalKafkaError: users or certificates are missing, or a name or password needs quoting.
    """
    if certificates is None and any(listener.tls for listener in listeners):
        raise LocalKafkaError("a TLS listener needs certificates", remedy="pass certificates=")
    if not users and any(listener.sasl for listener in listeners):
        raise LocalKafkaError(
            "a SASL listener needs users", remedy="name them: users={'name': 'password'}"
        )
    for user, word in users.items():
        if not (_PLAIN_WORD.fullmatch(user) and _PLAIN_WORD.fullmatch(word)):
            raise LocalKafkaError(
                f"the name or password of user {user!r} needs quoting",
                remedy="use letters, digits and ._~+-",
            )


def listener_properties(
    listener: Listener, users: Mapping[str, str], certificates: Certificates | None
) -> dict[str, str]:
    """Return the broker properties of one listener."""
    prefix = f"listener.name.{listener.lower()}."
    properties: dict[str, str] = {}
    if listener.sasl:
        properties |= {
            f"{prefix}sasl.enabled.mechanisms": ",".join(MECHANISMS),
            f"{prefix}plain.sasl.jaas.config": _plain(users),
        }
        for mechanism in SCRAM:
            properties[f"{prefix}{mechanism.lower()}.sasl.jaas.config"] = (
                f"{_SECURITY}.scram.ScramLoginModule required;"
            )
    if listener.tls and certificates:
        properties |= {
            f"{prefix}ssl.keystore.type": "PEM",
            f"{prefix}ssl.keystore.location": str(certificates.broker),
            f"{prefix}ssl.truststore.type": "PEM",
            f"{prefix}ssl.truststore.location": str(certificates.authority),
            # a client may present a certificate, and need not
            f"{prefix}ssl.client.auth": "requested",
        }
    return properties


def scram_arguments(users: Mapping[str, str]) -> list[str]:
    """Return the arguments of `StorageTool format` that create the SCRAM users."""
    credentials = [
        f"{mechanism}=[name={user},password={word}]"
        for user, word in users.items()
        for mechanism in SCRAM
    ]
    return [argument for credential in credentials for argument in ("--add-scram", credential)]


def client_security(
    listener: Listener,
    users: Mapping[str, str],
    certificates: Certificates | None,
    mechanism: str,
    username: str | None,
    *,
    client_certificate: bool,
) -> Security:
    """Return the settings that a client needs for a listener."""
    security = Security(protocol=str(listener))
    if listener.sasl:
        user = username or next(iter(users))
        security = replace(security, mechanism=mechanism, username=user, password=users[user])
    if listener.tls and certificates:
        security = replace(security, ca_location=str(certificates.authority))
        if client_certificate:
            security = replace(
                security,
                certificate_location=str(certificates.client_certificate),
                key_location=str(certificates.client_key),
            )
    return security


def _plain(users: Mapping[str, str]) -> str:
    known = " ".join(f'user_{user}="{word}"' for user, word in users.items())
    return f"{_SECURITY}.plain.PlainLoginModule required {known};"
