"""The security settings of Kafka's Java clients as those of relay.yaml."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

from relay_pipelines.migration.document import Document, Keys

# quoted in one of two ways, as java.io.StreamTokenizer reads it, or not at all
_JAAS_OPTION = re.compile(
    r"""(\w+)\s*=\s*(?:"((?:[^"\\]|\\.)*)"|'((?:[^'\\]|\\.)*)'|([^\s;"']+))"""
)
_PASSWORD_MECHANISMS = ("PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512")
_NOT_PEM = "it is not PEM; export it with keytool and openssl, and set security.{ours}"
_MSK = (
    "write msk_tokens.py as docs/security.md shows, and install aws-msk-iam-sasl-signer-python;"
    " set the region"
)

Take = Callable[[str], Any]


def security(keys: Keys, cluster: str, document: Document, folder: Path) -> dict[str, Any]:
    """Return the security settings of a cluster; empty for PLAINTEXT.

    Its own keys win over those that all clusters share.
    """

    def take(key: str) -> Any:
        own, shared = keys.take(f"{cluster}.{key}"), keys.take(key)
        return own if own is not None else shared

    def note(key: str, why: str) -> None:
        keys.note(f"{cluster}.{key}" if f"{cluster}.{key}" in keys.found else key, why)

    protocol = take("security.protocol") or "PLAINTEXT"
    found: dict[str, Any] = {}
    if protocol.startswith("SASL_"):
        found |= _sasl(take, note, cluster, document)
    if protocol.endswith("SSL"):
        found |= _tls(take, note, cluster, document, folder)
    return {"protocol": protocol, **found} if protocol != "PLAINTEXT" else {}


def _sasl(
    take: Take, note: Callable[[str, str], None], cluster: str, document: Document
) -> dict[str, Any]:
    mechanism = take("sasl.mechanism") or "GSSAPI"
    jaas = {
        name: "".join(value)  # one of them is there
        for name, *value in _JAAS_OPTION.findall(take("sasl.jaas.config") or "")
    }
    take("sasl.client.callback.handler.class")
    take("sasl.login.callback.handler.class")
    if mechanism in _PASSWORD_MECHANISMS:
        username = jaas.get("username", "")
        if not username or "${" in username:  # from a provider of configuration, in Java
            username = document.secret(cluster, "user name")
        return {
            "mechanism": mechanism,
            "username": username,
            "password": document.secret(cluster, "password"),
        }
    if mechanism == "AWS_MSK_IAM":
        note("sasl.mechanism", _MSK)
        return {
            "mechanism": "OAUTHBEARER",
            "token_provider": "msk_tokens:signed",
            "token_provider_config": {"region": "eu-west-1"},
        }
    if mechanism == "OAUTHBEARER":
        return _oauth(take, note, jaas, cluster, document)
    note("sasl.mechanism", f"relay has no {mechanism}; this placeholder has to be replaced")
    return {
        "mechanism": "SCRAM-SHA-512",
        "username": "relay",
        "password": document.secret(cluster, "password"),
    }


def _oauth(
    take: Take,
    note: Callable[[str, str], None],
    jaas: dict[str, str],
    cluster: str,
    document: Document,
) -> dict[str, Any]:
    extensions = {
        name.removeprefix("extension_"): value
        for name, value in jaas.items()
        if name.startswith("extension_")
    }
    found: dict[str, Any] = {"mechanism": "OAUTHBEARER"}
    if endpoint := take("sasl.oauthbearer.token.endpoint.url"):
        found["token_endpoint"] = endpoint
        found["client_id"] = jaas.get("clientId", "relay")
        found["client_secret"] = document.secret(cluster, "client secret")
        if "scope" in jaas:
            found["scope"] = jaas["scope"]
    else:
        note("sasl.mechanism", "write a token provider in Python; docs/security.md shows one")
        found["token_provider"] = "tokens:token"  # noqa: S105 - a function's name
    return found | ({"sasl_extensions": extensions} if extensions else {})


def _tls(
    take: Take,
    note: Callable[[str, str], None],
    cluster: str,
    document: Document,
    folder: Path,
) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for store, ours in (("truststore", "ca_location"), ("keystore", "certificate_location")):
        location, kind = take(f"ssl.{store}.location"), take(f"ssl.{store}.type") or "JKS"
        take(f"ssl.{store}.password")  # of the store, which PEM does not have
        if not location:
            continue
        if kind.upper() == "PEM":
            found[ours] = str((folder / location).absolute())
        else:
            note(f"ssl.{store}.location", _NOT_PEM.format(ours=ours))
    if take("ssl.key.password") and "certificate_location" in found:
        found["key_password"] = document.secret(cluster, "key password")
    if take("ssl.endpoint.identification.algorithm") == "":
        found["verify_hostname"] = False
    return found
