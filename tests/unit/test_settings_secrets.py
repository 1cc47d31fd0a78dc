"""relay.yaml: secrets never show."""

from __future__ import annotations

import traceback

import pytest

from relay_pipelines.errors import ConfigError
from relay_pipelines.settings import load
from tests.support.config_files import PROVIDER, SASL, SECRET, TOKEN, changed

WRONG_WITH_A_SECRET = [
    {"@node/security": SASL | {"password": [SECRET]}},
    {"@node/security": SASL | {"password": {"value": SECRET}}},
    {"@node/security": SASL | {"password": SECRET, "mechanism": None}},
    {"@node/security": SASL | {"password": None, "pasword": SECRET}},
    {"@node/security": {"password": SECRET}},
    {"@node/security": {"key_password": SECRET}},
    {"@node/security": TOKEN | {"client_secret": [SECRET]}},
    {"@node/security": TOKEN | {"client_secret": SECRET, "client_id": None}},
    {
        "@node/security": TOKEN
        | {"token_endpoint": f"https://relay:{SECRET}@login.example.com/token"}
    },
    {"@node/security": PROVIDER | {"token_provider_config": SECRET}},
    {"@node/security": PROVIDER | {"token_provider_config": {"secret": SECRET}, "scope": "x"}},
    {"@node/security": SECRET},
    {"@node/security": [SECRET]},
    {"@node/security": SASL | {"mechanism": "${SECRET}"}},
    {"@node/security": {"protocol": "SSL", "ca_location": "${SECRET}"}},
    {"@node/bootstrap_servers": "${SECRET}"},
    {"@node/name": "${SECRET} "},
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


def test_a_secret_never_shows_in_repr(write_config, load_mirror):
    """Logs and debuggers show settings."""
    conf = {"spark.hadoop.fs.s3a.secret.key": SECRET}
    security = SASL | {
        "password": "${SECRET}",
        "key_password": SECRET,
        "certificate_location": "relay.yaml",
    }
    settings = load(
        write_config(changed({"@node/security": security, "spark/conf": conf})), {"SECRET": SECRET}
    )
    mirror = settings.mirror("orders")
    assert mirror.nodes[0].security.password == SECRET
    with_token = TOKEN | {"client_secret": "${SECRET}"}
    token = load_mirror({"@node/security": with_token}, {"SECRET": SECRET})
    assert token.nodes[0].security.client_secret == SECRET
    for shown in (
        settings,
        mirror,
        mirror.nodes,
        mirror.source,
        settings.spark,
        token,
        token.nodes,
        token.source,
    ):
        assert SECRET not in repr(shown)
        assert SECRET not in str(shown)
