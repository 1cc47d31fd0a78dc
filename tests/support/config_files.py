"""Configuration files for tests: the shortest one, with changes, and how a bad one is refused."""

import re
from pathlib import Path
from typing import Any

import pytest
import yaml

from relay_pipelines.errors import ConfigError
from relay_pipelines.settings import load

EXAMPLE = Path(__file__).parents[2] / "relay.example.yaml"
SECRET = "hunter2-do-not-print"
MINIMAL = """
mirrors:
  orders:
    source:
      upstreams:
        - {name: kafka-a, bootstrap_servers: [kafka-a:9092]}
    destination: {bootstrap_servers: [kafka-b:9092]}
"""
SIDES = {
    "source": {"upstreams": [{"name": "one", "bootstrap_servers": "127.0.0.1:1"}]},
    "destination": {"bootstrap_servers": "127.0.0.1:1"},
}
"""What every mirror has, of clusters that nobody reaches."""

UPSTREAM_PATH = "mirrors.orders.source.upstreams[0]"
SASL = {"protocol": "SASL_SSL", "mechanism": "PLAIN", "username": "relay", "password": "p"}
TOKEN = {"protocol": "SASL_SSL", "mechanism": "OAUTHBEARER", "client_id": "relay"}
TOKEN |= {"token_endpoint": "https://login.example.com/token", "client_secret": "s"}
KERBEROS = {"protocol": "SASL_SSL", "mechanism": "GSSAPI"}
PROVIDER = {"protocol": "SASL_SSL", "mechanism": "OAUTHBEARER", "token_provider": "tokens:signed"}


def changed(changes: dict[str, Any]) -> str:
    """Return the minimal file with values at these paths: `@` its mirror, `@upstream` that."""
    tree = yaml.safe_load(MINIMAL)
    for path, value in changes.items():
        whole = path.replace("@upstream", "@/source/upstreams/0").replace("@", "mirrors/orders")
        *parents, last = [int(step) if step.isdigit() else step for step in whole.split("/")]
        target = tree
        for step in parents:
            target = target[step] if isinstance(step, int) else target.setdefault(step, {})
        target[last] = value
    return yaml.safe_dump(tree)


def refusal(path: Path, variables: dict[str, str] | None = None) -> str:
    """Return the message with which the file is refused, without the line number of a value."""
    return re.sub(rf"^{re.escape(str(path))}:\d+: ", f"{path}: ", located(path, variables))


def located(path: Path, variables: dict[str, str] | None = None) -> str:
    """Return the message with which the file is refused, as wrong usage."""
    with pytest.raises(ConfigError) as caught:
        load(path, variables or {})
    assert caught.value.exit_code == 2
    return str(caught.value)
