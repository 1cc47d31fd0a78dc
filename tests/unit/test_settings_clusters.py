"""relay.yaml: addresses and security of clusters, whose secrets never show."""

import traceback
from typing import Any

import pytest

from relay_pipelines import model
from relay_pipelines.errors import ConfigError
from relay_pipelines.settings import load
from tests.support.config_files import PROVIDER, SASL, SECRET, TOKEN, changed


@pytest.mark.parametrize(
    "written", [["a:1", "b:2"], "a:1,b:2", "a:1, b:2", ["a:1,b:2"], "${SERVERS}", ["${SERVERS}"]]
)
def test_bootstrap_servers_are_a_list_or_a_string_with_commas(load_mirror, written):
    mirror = load_mirror({"@upstream/bootstrap_servers": written}, {"SERVERS": "a:1,b:2"})
    assert mirror.upstreams[0].bootstrap_servers == ("a:1", "b:2")


@pytest.mark.parametrize("server", ["kafka-a.example:9092", "10.0.0.1:1", "[::1]:65535"])
def test_hosts_are_names_or_ip_addresses(write_config, server):
    path = write_config(
        changed({"@upstream/bootstrap_servers": [server], "metrics/address": server})
    )
    assert load(path).metrics.address == server


def test_relative_paths_start_at_the_folder_of_the_file(write_config, tmp_path, monkeypatch):
    """A process that starts in another folder must read the same certificates."""
    for name in ("ca.pem", "client.pem", "client.key"):
        (tmp_path / name).touch()
    monkeypatch.chdir("/")
    files = {"ca_location": "ca.pem", "certificate_location": "./client.pem"}
    files["key_location"] = str(tmp_path / "client.key")
    more: dict[str, Any] = {"protocol": "SSL", "verify_hostname": False}
    security = files | more | {"key_password": "${KEY}"}
    path = write_config(changed({"@upstream/security": security, "metrics/textfile": "relay.prom"}))
    settings = load(path, {"KEY": SECRET})
    found: dict[str, Any] = {key: str(tmp_path / name) for key, name in files.items()}
    expected = model.Security(**found, **more, key_password=SECRET)
    assert settings.mirror("orders").upstreams[0].security == expected
    assert settings.metrics.textfile == str(tmp_path / "relay.prom")


@pytest.mark.parametrize("mechanism", ["PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512"])
def test_sasl_with_a_password(load_mirror, mechanism):
    security = SASL | {"mechanism": mechanism, "password": "${PASSWORD}"}
    mirror = load_mirror({"@/destination/security": security}, {"PASSWORD": SECRET})
    assert mirror.destination_cluster.security == model.Security(
        protocol="SASL_SSL", mechanism=mechanism, username="relay", password=SECRET
    )


def test_sasl_with_tokens(load_mirror, tmp_path):
    """Of an endpoint, and of a provider with extensions."""
    security: dict[str, Any] = TOKEN | {"client_secret": "${CLIENT_SECRET}", "scope": "kafka other"}
    mirror = load_mirror({"@upstream/security": security}, {"CLIENT_SECRET": SECRET})
    assert mirror.upstreams[0].security == model.Security(
        protocol="SASL_SSL",
        mechanism="OAUTHBEARER",
        token_endpoint="https://login.example.com/token",
        client_id="relay",
        client_secret=SECRET,
        scope="kafka other",
    )
    security = PROVIDER | {
        "token_provider_config": {"region": "eu-west-1", "secret": "${CLIENT_SECRET}"},
        "sasl_extensions": {"logicalCluster": "lkc-1", "identityPoolId": "pool-1"},
    }
    mirror = load_mirror({"@upstream/security": security}, {"CLIENT_SECRET": SECRET})
    config = f'{{"region": "eu-west-1", "secret": "{SECRET}"}}'
    assert mirror.upstreams[0].security == model.Security(
        protocol="SASL_SSL",
        mechanism="OAUTHBEARER",
        token_provider=model.ClassSpec("tokens:signed", config, str(tmp_path)),
        sasl_extensions=(("identityPoolId", "pool-1"), ("logicalCluster", "lkc-1")),
    )
    assert SECRET not in repr(mirror) + repr(mirror.upstreams[0])


WRONG_WITH_A_SECRET = [
    {"@upstream/security": SASL | {"password": [SECRET]}},
    {"@upstream/security": SASL | {"password": {"value": SECRET}}},
    {"@upstream/security": SASL | {"password": SECRET, "mechanism": None}},
    {"@upstream/security": SASL | {"password": None, "pasword": SECRET}},
    {"@upstream/security": {"password": SECRET}},
    {"@upstream/security": {"key_password": SECRET}},
    {"@upstream/security": TOKEN | {"client_secret": [SECRET]}},
    {"@upstream/security": TOKEN | {"client_secret": SECRET, "client_id": None}},
    {"@upstream/security": TOKEN | {"token_endpoint": f"https://relay:{SECRET}@example.com/token"}},
    {"@upstream/security": PROVIDER | {"token_provider_config": SECRET}},
    {"@upstream/security": PROVIDER | {"token_provider_config": {"secret": SECRET}, "scope": "x"}},
    {"@upstream/security": SECRET},
    {"@upstream/security": [SECRET]},
    {"@upstream/security": SASL | {"mechanism": "${SECRET}"}},
    {"@upstream/security": {"protocol": "SSL", "ca_location": "${SECRET}"}},
    {"@upstream/bootstrap_servers": "${SECRET}"},
    {"@upstream/name": "${SECRET} "},
    {"@/topics/rename": {"a": "${SECRET}", "b": "${SECRET}"}},
    {"@/topics/rename": "${SECRET}"},
    {"spark/conf": {"spark.hadoop.fs.s3a.secret.key": [SECRET]}},
    {"spark/conf": {"spark.hadoop.fs.s3a.secret.key": SECRET, "spark.speculation": True}},
]


@pytest.mark.parametrize("changes", WRONG_WITH_A_SECRET)
def test_a_secret_never_shows_in_an_error(write_config, changes):
    """Neither the message nor the traceback, with its chained errors, contains it."""
    good = SASL | {"password": SECRET}
    path = write_config(changed({"@/destination/security": good} | changes))
    with pytest.raises(ConfigError) as caught:
        load(path, {"SECRET": SECRET})
    assert SECRET not in "".join(traceback.format_exception(caught.value))
    assert SECRET not in repr(caught.value)
    assert (caught.value.__cause__, caught.value.__context__) == (None, None)


def test_a_secret_never_shows_in_repr(write_config):
    """Logs and debuggers show settings."""
    conf = {"spark.hadoop.fs.s3a.secret.key": SECRET}
    key = {"key_password": SECRET, "certificate_location": "relay.yaml"}
    sasl = SASL | {"password": "${SECRET}"} | key
    for security in (sasl, TOKEN | {"client_secret": "${SECRET}"}):
        text = changed({"@upstream/security": security, "spark/conf": conf})
        settings = load(write_config(text), {"SECRET": SECRET})
        mirror = settings.mirror("orders")
        found = mirror.upstreams[0].security
        assert SECRET in {found.password, found.client_secret}
        for shown in (settings, settings.spark, mirror, mirror.upstreams, mirror.source):
            assert SECRET not in repr(shown)
            assert SECRET not in str(shown)
