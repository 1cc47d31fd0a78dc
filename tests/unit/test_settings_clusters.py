"""relay.yaml: nodes, addresses, security."""

from __future__ import annotations

import datetime as dt

import pytest

from relay_pipelines import model
from relay_pipelines.settings import load
from tests.support.config_files import PROVIDER, SASL, SECRET, TOKEN, cases, changed, refusal

ENDPOINT = (
    "expected an address such as https://host/path, got a string:"
    " http or https, without user and password"
)

REFUSED = [
    (
        "two nodes of one name",
        {
            "@/source/nodes": [
                {"name": "n", "bootstrap_servers": ["a:1"]},
                {"name": "n", "bootstrap_servers": ["b:1"]},
            ]
        },
        "@.source.nodes[1].name: another node has this name",
    ),
    (
        "failover settings of a single node",
        {"@/source/health": {"lag_threshold": 5}},
        "@.source.health.lag_threshold: has no effect: the source has only one node",
    ),
    (
        "a negative threshold",
        {"@/source/health": {"lag_threshold": -1}},
        "@.source.health.lag_threshold: expected at least 0, got -1",
    ),
    (
        "a node without a name",
        {"@node/name": ""},
        "@node.name: expected a name of letters, digits, '.', '_' and '-', got ''",
    ),
    (
        "a server without a port",
        {"@node/bootstrap_servers": ["kafka-a"]},
        "@node.bootstrap_servers[0]: expected host:port, got 'kafka-a'",
    ),
    (
        "a server with a scheme",
        {"@node/bootstrap_servers": ["tcp://kafka-a:1"]},
        "@node.bootstrap_servers[0]: expected host:port, got 'tcp://kafka-a:1'",
    ),
    (
        "a trailing comma",
        {"@node/bootstrap_servers": "a:1,"},
        "@node.bootstrap_servers[1]: expected host:port, got 'a:1,'",
    ),
    (
        "an unknown protocol",
        {"@node/security": {"protocol": "TLS"}},
        (
            "@node.security.protocol: expected 'PLAINTEXT', 'SSL', 'SASL_PLAINTEXT' or 'SASL_SSL',"
            " got 'TLS'"
        ),
    ),
    (
        "an unsupported mechanism",
        {"@node/security": SASL | {"mechanism": "GSSAPI"}},
        (
            "@node.security.mechanism: expected 'PLAIN', 'SCRAM-SHA-256', 'SCRAM-SHA-512' or"
            " 'OAUTHBEARER', got 'GSSAPI'"
        ),
    ),
    (
        "SASL without a mechanism",
        {"@node/security": SASL | {"mechanism": None}},
        "@node.security.mechanism: is missing; SASL_SSL needs it",
    ),
    (
        "SASL without a user",
        {"@node/security": SASL | {"username": None}},
        "@node.security.username: is missing; PLAIN needs it",
    ),
    (
        "SASL without a password",
        {"@node/security": SASL | {"password": None}},
        "@node.security.password: is missing; PLAIN needs it",
    ),
    (
        "OAUTHBEARER without a client secret",
        {"@node/security": TOKEN | {"client_secret": None}},
        "@node.security.client_secret: is missing; OAUTHBEARER needs it",
    ),
    (
        "OAUTHBEARER without a token endpoint",
        {"@node/security": TOKEN | {"token_endpoint": None}},
        "@node.security.token_endpoint: is missing; OAUTHBEARER needs it",
    ),
    (
        "OAUTHBEARER with a password",
        {"@node/security": TOKEN | {"password": "p"}},
        (
            "@node.security.password: OAUTHBEARER does not use it; remove it or choose another"
            " mechanism"
        ),
    ),
    (
        "a token provider beside a token endpoint",
        {"@node/security": PROVIDER | {"token_endpoint": "https://login.example.com/token"}},
        "@node.security.token_endpoint: has no effect: the tokens come from token_provider",
    ),
    (
        "a token provider that is no name",
        {"@node/security": PROVIDER | {"token_provider": "tokens: signed"}},
        (
            "@node.security.token_provider: expected module:function, or the name of an entry"
            " point, got 'tokens: signed'"
        ),
    ),
    (
        "a configuration without a token provider",
        {"@node/security": TOKEN | {"token_provider_config": {"region": "eu"}}},
        "@node.security.token_provider_config: needs token_provider",
    ),
    (
        "a configuration that tasks cannot get",
        {"@node/security": PROVIDER | {"token_provider_config": {"since": dt.date(2026, 1, 1)}}},
        (
            "@node.security.token_provider_config: cannot be written as JSON:"
            " Object of type date is not JSON serializable; put dates in quotes"
        ),
    ),
    (
        "PLAIN with a token provider",
        {"@node/security": SASL | {"token_provider": "tokens:signed"}},
        (
            "@node.security.token_provider: PLAIN does not use it; remove it or choose another"
            " mechanism"
        ),
    ),
    (
        "an extension that replaces the token",
        {"@node/security": PROVIDER | {"sasl_extensions": {"auth": "x"}}},
        "@node.security.sasl_extensions.auth: expected a name of letters, and not auth",
    ),
    (
        "an extension with a line end",
        {"@node/security": PROVIDER | {"sasl_extensions": {"pool": "a\n"}}},
        (
            "@node.security.sasl_extensions.pool: expected a string of printable ASCII characters,"
            " got 'a\\n'"
        ),
    ),
    (
        "PLAIN with a scope",
        {"@node/security": SASL | {"scope": "kafka"}},
        "@node.security.scope: PLAIN does not use it; remove it or choose another mechanism",
    ),
    (
        "a client id without SASL",
        {"@node/security": {"protocol": "SSL", "client_id": "relay"}},
        "@node.security.client_id: needs a SASL protocol, not SSL",
    ),
    (
        "a token endpoint without a scheme",
        {"@node/security": TOKEN | {"token_endpoint": "login.example.com/token"}},
        f"@node.security.token_endpoint: {ENDPOINT}",
    ),
    (
        "a token endpoint with a password in it",
        {
            "@node/security": TOKEN
            | {"token_endpoint": "https://relay:hunter2@login.example.com/token"}
        },
        f"@node.security.token_endpoint: {ENDPOINT}",
    ),
    (
        "a mechanism that the protocol ignores",
        {"@node/security": {"mechanism": "PLAIN"}},
        "@node.security.mechanism: needs a SASL protocol, not PLAINTEXT",
    ),
    (
        "a password without SASL",
        {"@node/security": {"protocol": "SSL", "password": "x"}},
        "@node.security.password: needs a SASL protocol, not SSL",
    ),
    (
        "TLS settings without TLS",
        {"@node/security": {"verify_hostname": True}},
        "@node.security.verify_hostname: needs the protocol SSL or SASL_SSL, not PLAINTEXT",
    ),
    (
        "a key without a certificate",
        {"@node/security": {"protocol": "SSL", "key_password": "x"}},
        "@node.security.key_password: needs certificate_location",
    ),
    (
        "a certificate file that does not exist",
        {"@node/security": {"protocol": "SSL", "ca_location": "no.pem"}},
        (
            "@node.security.ca_location: expected a file that exists, got 'no.pem':"
            " relative paths start at the folder of the configuration file"
        ),
    ),
    (
        "a number as password",
        {"@node/security": SASL | {"password": 12345}},
        "@node.security.password: expected a string, got a whole number; put it in quotes",
    ),
]


@pytest.mark.parametrize(("changes", "line"), cases(REFUSED))
def test_is_refused_in_one_line(write_config, changes, line):
    """The path of the key, what was expected, what was found."""
    path = write_config(changed(changes))
    assert refusal(path) == f"{path}: {line}"


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
