"""A certificate authority of the cluster's own, and the certificates it signs, by the JDK's keytool."""

from __future__ import annotations

import secrets
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from relay_pipelines.embedded import java
from relay_pipelines.embedded.errors import EmbeddedError

_EXPORT = Path(__file__).with_name("ExportPem.java")
_AUTHORITY, _BROKER, _CLIENT = "ca", "broker", "client"
_EXTENSIONS = {_AUTHORITY: ["bc:c"], _BROKER: ["san=ip:127.0.0.1,dns:localhost"], _CLIENT: []}
_TIMEOUT_SECONDS = 60


@dataclass(frozen=True, slots=True)
class Certificates:
    """PEM files in one folder: an authority, and a certificate with its key for the brokers and for one client."""

    folder: Path

    @property
    def authority(self) -> Path:
        """The authority that signed the brokers' certificate."""
        return self.folder / f"{_AUTHORITY}.crt"

    @property
    def client_certificate(self) -> Path:
        """A certificate that the brokers trust, with its chain."""
        return self.folder / f"{_CLIENT}.crt"

    @property
    def client_key(self) -> Path:
        """The key of the client certificate, not encrypted."""
        return self.folder / f"{_CLIENT}.key"

    def properties(self) -> dict[str, str]:
        """What a TLS listener needs, without the listener's prefix; a client may show a certificate and need not."""
        return {
            "ssl.keystore.type": "PEM",
            "ssl.keystore.location": str(self.folder / f"{_BROKER}.pem"),
            "ssl.truststore.type": "PEM",
            "ssl.truststore.location": str(self.authority),
            "ssl.client.auth": "requested",
        }

    def make(self) -> None:
        """Make them, unless an earlier start has.

        Raises:
            EmbeddedError: the JDK's keytool failed.
        """
        broker = self.folder / f"{_BROKER}.pem"
        if broker.exists():
            return
        self.folder.mkdir(mode=0o700, exist_ok=True)
        store, password = self.folder / "keys.p12", secrets.token_hex(16)
        store.unlink(missing_ok=True)
        for alias, extensions in _EXTENSIONS.items():
            command = [
                java.tool("keytool"),
                "-genkeypair",
                "-keystore",
                str(store),
                "-storetype",
                "PKCS12",
                "-storepass",
                password,
            ]
            command += [
                "-alias",
                alias,
                "-dname",
                f"CN={alias}",
                "-keyalg",
                "EC",
                "-groupname",
                "secp256r1",
                "-validity",
                "365",
            ]
            command += [argument for extension in extensions for argument in ("-ext", extension)]
            _run(command if alias == _AUTHORITY else [*command, "-signer", _AUTHORITY])
        # keytool gives no private key away; Kafka and librdkafka want PEM
        _run([java.tool("java"), str(_EXPORT), str(store), password])
        # written last: its presence says that all are there
        broker.write_text(
            (self.folder / f"{_BROKER}.key").read_text()
            + (self.folder / f"{_BROKER}.crt").read_text()
        )


def _run(command: Sequence[str]) -> None:
    done = subprocess.run(  # noqa: S603 - our own JDK
        command,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=_TIMEOUT_SECONDS,
        check=False,
    )
    if done.returncode:
        said = (done.stdout.strip().splitlines() or ["nothing"])[0]
        raise EmbeddedError(
            f"cannot make certificates, {Path(command[0]).name} said: {said}",
            remedy="a whole JDK is needed, not a JRE",
        )
