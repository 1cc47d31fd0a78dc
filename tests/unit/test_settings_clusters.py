"""relay.yaml: nodes, addresses, security."""

from __future__ import annotations

import datetime as dt

import pytest

from relay_pipelines import model
from relay_pipelines.settings import load
from tests.support.config_files import KERBEROS, PROVIDER, SASL, SECRET, TOKEN, cases, changed

REFUSED = [
    (
        "two nodes of one name",
        {
            "@/source/nodes": [
                {"name": "n", "bootstrap_servers": ["a:1"]},
                {"name": "n", "bootstrap_servers": ["b:1"]},
            ]
        },
        "@.source.nodes[1].name",
    ),
    (
        "failover settings of a single node",
        {"@/source/health": {"lag_threshold": 5}},
        "@.source.health.lag_threshold",
    ),
    (
        "a negative threshold",
        {"@/source/health": {"lag_threshold": -1}},
        "@.source.health.lag_threshold",
    ),
    ("a node without a name", {"@node/name": ""}, "@node.name"),
    (
        "a server without a port",
        {"@node/bootstrap_servers": ["kafka-a"]},
        "@node.bootstrap_servers[0]",
    ),
    (
        "a server with a scheme",
        {"@node/bootstrap_servers": ["tcp://kafka-a:1"]},
        "@node.bootstrap_servers[0]",
    ),
    ("a trailing comma", {"@node/bootstrap_servers": "a:1,"}, "@node.bootstrap_servers[1]"),
    ("an unknown protocol", {"@node/security": {"protocol": "TLS"}}, "@node.security.protocol"),
    (
        "an unsupported mechanism",
        {"@node/security": SASL | {"mechanism": "NTLM"}},
        "@node.security.mechanism",
    ),
    (
        "GSSAPI with a password",
        {"@node/security": KERBEROS | {"password": "p"}},
        "@node.security.password",
    ),
    (
        "a keytab without a principal",
        {"@node/security": KERBEROS | {"keytab": "relay.yaml"}},
        "@node.security.principal",
    ),
    (
        "a keytab that is not there",
        {"@node/security": KERBEROS | {"principal": "relay@A", "keytab": "none"}},
        "@node.security.keytab",
    ),
    (
        "a ticket cache beside a keytab",
        {
            "@node/security": KERBEROS
            | {"principal": "relay@A", "keytab": "relay.yaml", "ticket_cache": "relay.yaml"}
        },
        "@node.security.ticket_cache",
    ),
    (
        "PLAIN with a principal",
        {"@node/security": SASL | {"principal": "relay@A"}},
        "@node.security.principal",
    ),
    (
        "SASL without a mechanism",
        {"@node/security": SASL | {"mechanism": None}},
        "@node.security.mechanism",
    ),
    (
        "SASL without a user",
        {"@node/security": SASL | {"username": None}},
        "@node.security.username",
    ),
    (
        "SASL without a password",
        {"@node/security": SASL | {"password": None}},
        "@node.security.password",
    ),
    (
        "OAUTHBEARER without a client secret",
        {"@node/security": TOKEN | {"client_secret": None}},
        "@node.security.client_secret",
    ),
    (
        "OAUTHBEARER without a token endpoint",
        {"@node/security": TOKEN | {"token_endpoint": None}},
        "@node.security.token_endpoint",
    ),
    (
        "OAUTHBEARER with a password",
        {"@node/security": TOKEN | {"password": "p"}},
        "@node.security.password",
    ),
    (
        "a token provider beside a token endpoint",
        {"@node/security": PROVIDER | {"token_endpoint": "https://login.example.com/token"}},
        "@node.security.token_endpoint",
    ),
    (
        "a token provider that is no name",
        {"@node/security": PROVIDER | {"token_provider": "tokens: signed"}},
        "@node.security.token_provider",
    ),
    (
        "a configuration without a token provider",
        {"@node/security": TOKEN | {"token_provider_config": {"region": "eu"}}},
        "@node.security.token_provider_config",
    ),
    (
        "a configuration that tasks cannot get",
        {"@node/security": PROVIDER | {"token_provider_config": {"since": dt.date(2026, 1, 1)}}},
        "@node.security.token_provider_config",
    ),
    (
        "PLAIN with a token provider",
        {"@node/security": SASL | {"token_provider": "tokens:signed"}},
        "@node.security.token_provider",
    ),
    (
        "an extension that replaces the token",
        {"@node/security": PROVIDER | {"sasl_extensions": {"auth": "x"}}},
        "@node.security.sasl_extensions.auth",
    ),
    (
        "an extension with a line end",
        {"@node/security": PROVIDER | {"sasl_extensions": {"pool": "a\n"}}},
        "@node.security.sasl_extensions.pool",
    ),
    ("PLAIN with a scope", {"@node/security": SASL | {"scope": "kafka"}}, "@node.security.scope"),
    (
        "a client id without SASL",
        {"@node/security": {"protocol": "SSL", "client_id": "relay"}},
        "@node.security.client_id",
    ),
    (
        "a token endpoint without a scheme",
        {"@node/security": TOKEN | {"token_endpoint": "login.example.com/token"}},
        "@node.security.token_endpoint",
    ),
    (
        "a token endpoint with a password in it",
        {
            "@node/security": TOKEN
            | {"token_endpoint": "https://relay:hunter2@login.example.com/token"}
        },
        "@node.security.token_endpoint",
    ),
    (
        "a mechanism that the protocol ignores",
        {"@node/security": {"mechanism": "PLAIN"}},
        "@node.security.mechanism",
    ),
    (
        "a password without SASL",
        {"@node/security": {"protocol": "SSL", "password": "x"}},
        "@node.security.password",
    ),
    (
        "TLS settings without TLS",
        {"@node/security": {"verify_hostname": True}},
        "@node.security.verify_hostname",
    ),
    (
        "a key without a certificate",
        {"@node/security": {"protocol": "SSL", "key_password": "x"}},
        "@node.security.key_password",
    ),
    (
        "a certificate file that does not exist",
        {"@node/security": {"protocol": "SSL", "ca_location": "no.pem"}},
        "@node.security.ca_location",
    ),
    (
        "a number as password",
        {"@node/security": SASL | {"password": 12345}},
        "@node.security.password",
    ),
]


@pytest.mark.parametrize(("changes", "place"), cases(REFUSED))
def test_is_refused_in_one_line(assert_refused, changes, place):
    assert_refused(changes, place)


@pytest.mark.parametrize(
    "written",
    [["a:1", "b:2"], "a:1,b:2", "a:1, b:2", ["a:1,b:2"], "${SERVERS}", ["${SERVERS}"]],
)
def test_bootstrap_servers_are_a_list_or_a_string_with_commas(load_mirror, written):
    mirror = load_mirror({"@node/bootstrap_servers": written}, {"SERVERS": "a:1,b:2"})
    assert mirror.nodes[0].bootstrap_servers == ("a:1", "b:2")


@pytest.mark.parametrize("server", ["kafka-a.example:9092", "10.0.0.1:1", "[::1]:65535"])
def test_hosts_are_names_or_ip_addresses(write_config, server):
    path = write_config(changed({"@node/bootstrap_servers": [server], "metrics/address": server}))
    assert load(path).metrics.address == server


def test_relative_paths_start_at_the_folder_of_the_file(write_config, tmp_path, monkeypatch):
    """A process that starts in another folder must read the same certificates."""
    for name in ("ca.pem", "client.pem", "client.key"):
        (tmp_path / name).touch()
    monkeypatch.chdir("/")
    security = {
        "protocol": "SSL",
        "ca_location": "ca.pem",
        "certificate_location": "./client.pem",
        "key_location": str(tmp_path / "client.key"),
        "key_password": "${KEY}",
        "verify_hostname": False,
    }
    path = write_config(changed({"@node/security": security, "metrics/textfile": "relay.prom"}))
    settings = load(path, {"KEY": SECRET})
    assert settings.mirror("orders").nodes[0].security == model.Security(
        protocol="SSL",
        ca_location=str(tmp_path / "ca.pem"),
        certificate_location=str(tmp_path / "client.pem"),
        key_location=str(tmp_path / "client.key"),
        key_password=SECRET,
        verify_hostname=False,
    )
    assert settings.metrics.textfile == str(tmp_path / "relay.prom")


@pytest.mark.parametrize("mechanism", ["PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512"])
def test_sasl_with_a_password(load_mirror, mechanism):
    security = SASL | {"mechanism": mechanism, "password": "${PASSWORD}"}
    mirror = load_mirror({"@/destination/security": security}, {"PASSWORD": SECRET})
    assert mirror.destination_cluster.security == model.Security(
        protocol="SASL_SSL", mechanism=mechanism, username="relay", password=SECRET
    )


def test_sasl_with_a_token(load_mirror):
    security = TOKEN | {"client_secret": "${CLIENT_SECRET}", "scope": "kafka other"}
    mirror = load_mirror({"@node/security": security}, {"CLIENT_SECRET": SECRET})
    assert mirror.nodes[0].security == model.Security(
        protocol="SASL_SSL",
        mechanism="OAUTHBEARER",
        token_endpoint="https://login.example.com/token",
        client_id="relay",
        client_secret=SECRET,
        scope="kafka other",
    )


def test_sasl_with_a_token_provider(load_mirror, tmp_path):
    security = PROVIDER | {
        "token_provider_config": {"region": "eu-west-1", "secret": "${CLIENT_SECRET}"},
        "sasl_extensions": {"logicalCluster": "lkc-1", "identityPoolId": "pool-1"},
    }
    mirror = load_mirror({"@node/security": security}, {"CLIENT_SECRET": SECRET})
    config = f'{{"region": "eu-west-1", "secret": "{SECRET}"}}'
    assert mirror.nodes[0].security == model.Security(
        protocol="SASL_SSL",
        mechanism="OAUTHBEARER",
        token_provider=model.ClassSpec("tokens:signed", config, str(tmp_path)),
        sasl_extensions=(("identityPoolId", "pool-1"), ("logicalCluster", "lkc-1")),
    )
    assert SECRET not in repr(mirror) + repr(mirror.nodes[0])
