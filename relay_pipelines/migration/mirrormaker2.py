"""The properties of a dedicated MirrorMaker 2 (KIP-382, KIP-710) as relay.yaml."""

from __future__ import annotations

import re
import warnings
from pathlib import Path
from typing import Any

from relay_pipelines.errors import ConfigError, page
from relay_pipelines.migration.document import Document, Keys, mirror_name, parse, security

# topics of Connect and of MirrorMaker, which it never copies; as relay never copies __.*
_INTERNAL = r".*[\-\.]internal"
# MirrorMaker's default topics.exclude
_EXCLUDED = rf"{_INTERNAL}, .*\.replica"
_FLOW = re.compile(r"(?P<source>[^>]+?)->(?P<target>[^.]+)\.(?P<key>.+)")
_IDENTITY = "IdentityReplicationPolicy"
_OFFSETS = (
    f"write which groups are to be kept up to date under groups; see {page('Move consumers')}"
)
_CONNECT = "there is no Kafka Connect, so it keeps nothing"
_ALWAYS = "every run reads the topics of the source again"
_CLIENT = "it is for Kafka's Java clients, which are not used"
_REASONS = (
    (r"emit\.checkpoints\..*|sync\.group\.offsets\..*|groups(\..*)?|group\.filter\..*", _OFFSETS),
    (r"checkpoints\.topic\..*|offset-syncs\.topic\..*|offset\.lag\.max", _OFFSETS),
    (r"emit\.offset-syncs.*|emit\.offset\.syncs.*", _OFFSETS),
    (r"(offset|status|config)\.storage\..*|.*\.storage\.topic", _CONNECT),
    (r"(key|value|header)\.converter.*|plugin\.path|listeners|rest\..*|dedicated\..*", _CONNECT),
    (r"emit\.heartbeats\..*|heartbeats\..*", "there are no heartbeats; relay status shows the lag"),
    (r"refresh\.(topics|groups)\..*", _ALWAYS),
    (r"sync\.topic\.acls\..*", "run relay acls --execute, which never removes any"),
    (r"sync\.topic\.configs\.interval\..*", _ALWAYS),
    (
        r"config\.properties\..*|config\.property\..*|use\.defaults\.from",
        "topics.config_keys lists what follows the source",
    ),
    (r"exactly\.once\..*|transaction\..*", "every copy is exactly once"),
    (r"transforms(\..*)?|predicates(\..*)?", "write a Python class, and name it as transform"),
    (r"topic\.filter\.class|replication\.policy\.class", "relay cannot load Java classes"),
    (r".*isolation\.level", "only committed records are copied, once"),
    (r"(.*\.)?(consumer|producer|admin)\..*", _CLIENT),
    (r"(ssl|sasl|security)\..*", "relay's security settings have no counterpart"),
    (r"(topic\.creation|offset\.flush|task|tasks|errors)\..*", _CONNECT),
)
_UNKNOWN = "relay knows nothing that corresponds to it"


def convert(text: str, folder: Path) -> str:
    """Return a relay.yaml with a mirror per enabled flow.

    Args:
        folder: of the file; relative paths start there.

    Raises:
        ConfigError: no flow is enabled, or a cluster has no bootstrap servers.
    """
    keys, document = Keys(dict(parse(text))), Document()
    clusters = [name.strip() for name in keys.take("clusters", "").split(",") if name.strip()]
    flows = _flows(keys, clusters)
    if not flows:
        raise ConfigError(
            "no flow is enabled",
            remedy="name a file of connect-mirror-maker.sh, with `A->B.enabled = true`",
        )
    mirrors: dict[str, Any] = {}
    for source, target in flows:
        back = (target, source) in flows
        name = mirror_name(f"{source}-{target}")
        name = f"{name}_{len(mirrors) + 1}" if name in mirrors else name
        mirrors[name] = _mirror(Flow(keys, source, target), document, folder, back=back)
    document.tree["mirrors"] = mirrors
    for key in list(keys.rest()):
        keys.note(key, _reason(key, clusters))
    return document.render("MirrorMaker 2", keys.notes)


class Flow:
    """The keys of one flow: those of `A->B.`, then those without a prefix."""

    def __init__(self, keys: Keys, source: str, target: str) -> None:
        self.keys, self.source, self.target = keys, source, target

    def take(self, key: str, default: str | None = None) -> str | None:
        """Return the value of a key for this flow."""
        own = self.keys.take(f"{self.source}->{self.target}.{key}")
        shared = self.keys.take(key)
        return str(own if own is not None else shared if shared is not None else default or "")

    def number(self, key: str) -> int:
        """Return the value of a key; 0 if it has none, or none that is a number."""
        text = self.take(key) or "0"
        try:
            return int(text)
        except ValueError:
            self.note(key, f"{text!r} is no whole number")
            return 0

    def note(self, key: str, why: str) -> None:
        """Say why a key of this flow is not translated."""
        for name in (f"{self.source}->{self.target}.{key}", key):
            self.keys.note(name, why)


def _flows(keys: Keys, clusters: list[str]) -> list[tuple[str, str]]:
    """Return the enabled flows; note the keys of the others."""
    named = {
        (match["source"], match["target"]) for key in keys.given if (match := _FLOW.fullmatch(key))
    }
    flows = []
    for source, target in sorted(named):
        enabled = keys.take(f"{source}->{target}.enabled", keys.given.get("enabled", "false"))
        if str(enabled).lower() == "true" and {source, target} <= set(clusters):
            flows.append((source, target))
            continue
        for key in keys.given:
            if key.startswith(f"{source}->{target}."):
                keys.note(key, "the flow is not enabled")
    return flows


def _mirror(flow: Flow, document: Document, folder: Path, *, back: bool) -> dict[str, Any]:
    upstream = {"name": flow.source, **_cluster(flow.keys, flow.source, document, folder)}
    destination = _cluster(flow.keys, flow.target, document, folder)
    factor = flow.number("replication.factor")
    if factor > 0:
        destination["replication_factor"] = factor
    mirror = {
        "source": {"upstreams": [upstream]},
        "destination": destination,
        "topics": _topics(flow, back=back),
    }
    for prefix in (f"{flow.source}.consumer.", "source.consumer.", "consumer."):
        if flow.keys.given.get(f"{prefix}auto.offset.reset") in {"earliest", "latest"}:
            mirror["start"] = flow.keys.take(f"{prefix}auto.offset.reset")
    if tasks := flow.number("tasks.max"):
        mirror["copy"] = {"parallelism": tasks}
    return mirror


def _cluster(keys: Keys, name: str, document: Document, folder: Path) -> dict[str, Any]:
    servers = keys.take(f"{name}.bootstrap.servers")
    if not servers:
        raise ConfigError(
            f"{name}.bootstrap.servers is missing", remedy="set it; relay needs the brokers"
        )
    cluster: dict[str, Any] = {
        "bootstrap_servers": [server.strip() for server in servers.split(",") if server.strip()]
    }
    if secured := security(keys, name, document, folder):
        cluster["security"] = secured
    return cluster


def _topics(flow: Flow, *, back: bool) -> dict[str, Any]:
    allow = _patterns(flow, "topics", flow.take("topics", ".*"))
    if not allow:
        raise ConfigError(
            f"{flow.source}->{flow.target}.topics: no regular expression that Python accepts",
            remedy="name the topics; disable the flow if it is to copy none",
        )
    excluded = flow.take("topics.exclude", flow.take("topics.blacklist", _EXCLUDED))
    deny = _patterns(flow, "topics.exclude", excluded)
    deny += [] if _INTERNAL in deny else [_INTERNAL]
    policy, separator = (
        flow.take("replication.policy.class"),
        flow.take("replication.policy.separator", "."),
    )
    topics: dict[str, Any] = {"allow": allow}
    if policy and policy.endswith(_IDENTITY):
        if back:
            flow.note(
                "replication.policy.class",
                "both directions keep the names: relay refuses to copy records back",
            )
    else:
        if policy and not policy.endswith(".DefaultReplicationPolicy"):
            flow.note(
                "replication.policy.class",
                "relay cannot load Java classes; the names are those of DefaultReplicationPolicy",
            )
        topics["rename"] = f"{flow.source}{separator}{{topic}}"
        # MirrorMaker copies nothing to where it comes from, be it by way of a third cluster
        before = re.escape(str(separator))
        deny.append(f"(.*{before})?{re.escape(flow.target)}{before}.*")
    topics["deny"] = deny
    # MirrorMaker's default is true
    if flow.take("sync.topic.configs.enabled", "true") == "true":
        topics["sync_configs"] = True
    return topics


def _patterns(flow: Flow, key: str, value: str | None) -> list[str]:
    """Return the regular expressions of a list; note those that only Java accepts."""
    kept = []
    for pattern in (part.strip() for part in (value or "").split(",")):
        try:
            with warnings.catch_warnings():
                # [a-z&&[^b]] and the like: Python takes them for other characters than Java does
                warnings.simplefilter("error", FutureWarning)
                re.compile(pattern)
        except (re.error, FutureWarning) as error:
            flow.note(key, f"Python refuses the regular expression {pattern!r}: {error}")
            continue
        if pattern and pattern != "__.*":
            kept.append(pattern)
    return kept


def _reason(key: str, clusters: list[str]) -> str:
    """Return why a key is not translated, whether it is for all, a cluster or a flow."""
    flow = _FLOW.fullmatch(key)
    alias = next((name for name in clusters if key.startswith(f"{name}.")), "")
    bare = flow["key"] if flow else key.removeprefix(f"{alias}.") if alias else key
    return next((why for pattern, why in _REASONS if re.fullmatch(pattern, bare)), _UNKNOWN)
