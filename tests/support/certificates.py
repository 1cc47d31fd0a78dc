"""PEM certificates for TLS listeners and for one client, signed by a new authority."""

import subprocess
from pathlib import Path
from typing import Any

import trustme
from cryptography.hazmat.primitives import serialization

from relay_pipelines.local_kafka import Certificates

_SUBJECT: dict[str, Any] = {"organization_name": "relay", "organization_unit_name": "tests"}
CLIENT_PRINCIPAL = "CN=client,OU=tests,O=relay"
"""The user name that a broker derives from the client certificate."""


def make_certificates(folder: Path) -> Certificates:
    """Make an authority, a certificate for brokers on 127.0.0.1 and a client certificate."""
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    made = Certificates(
        authority=folder / "ca.crt",
        broker=folder / "broker.pem",
        client_certificate=folder / "client.crt",
        client_key=folder / "client.key",
    )
    authority = trustme.CA(**_SUBJECT)
    authority.cert_pem.write_to_path(made.authority)
    broker = authority.issue_cert("127.0.0.1", "localhost", common_name="broker", **_SUBJECT)
    # Java refuses a certificate whose list of host names is empty
    client = authority.issue_cert("client", common_name="client", **_SUBJECT)
    made.broker.write_bytes(_key(broker) + _chain(broker, authority))
    made.client_certificate.write_bytes(_chain(client, authority))
    made.client_key.write_bytes(_key(client))
    return made


def _key(certificate: trustme.LeafCert) -> bytes:
    """The private key as PKCS #8, the only format that Kafka reads (KIP-651)."""
    key = serialization.load_pem_private_key(certificate.private_key_pem.bytes(), password=None)
    return key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )


def _chain(certificate: trustme.LeafCert, authority: trustme.CA) -> bytes:
    """The certificate, then the authority, as many companies' servers send them."""
    chain = [*certificate.cert_chain_pems, authority.cert_pem]
    return b"".join(pem.bytes() for pem in chain)


def encrypted(key: Path, target: Path, password: str) -> Path:
    """Write a private key once more, to be read with a password."""
    command = ["openssl", "pkcs8", "-topk8", "-in", str(key), "-out", str(target)]
    subprocess.run([*command, "-passout", f"pass:{password}"], check=True)
    return target
