"""kaf-relay's config.toml (github.com/zerodha/kaf-relay) as relay.yaml."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path
from typing import Any

from relay_pipelines.errors import ConfigError
from relay_pipelines.migration.document import Document, Keys, literal

_NO_GROUP = (
    "kept in checkpoints, not in a consumer group; to begin where the group has committed, set"
    " start: {group: ...}"
)
_BATCHES = "batches are copied as they are, and chunks are committed by copy.chunk"
_ALWAYS_ALL = "every chunk is a transaction, which is idempotent and acknowledged by all replicas"
# by the last part of the key, where one reason fits everywhere
_REASONS = {
    "log_level": "there are no levels; --debug shows tracebacks and the output of Spark",
    "enable_log": "there are no levels; --debug shows tracebacks and the output of Spark",
    "instance_id": _NO_GROUP,
    "group_id": _NO_GROUP,
    "session_timeout": "there is no consumer group, so there is no session",
    "max_wait_time": "how long a fetch waits is not configurable",
    "max_failovers": "a run changes nodes as long as one can be read, until give_up_after",
    "enable_idempotency": _ALWAYS_ALL,
    "commit_ack_type": _ALWAYS_ALL,
    "flush_frequency": _BATCHES,
    "flush_batch_size": _BATCHES,
    "batch_size": _BATCHES,
    "buffer_size": _BATCHES,
    "max_message_bytes": "the destination topic's max.message.bytes follows the source's",
    "compression": "records keep the compression of their source",
    "max_retries": "it counts attempts; set give_up_after, which is a duration",
}
_TARGET_REASONS = {
    "name": "the destination has no name of its own",
    "request_timeout": "copy.request_timeout is for both clusters, and 30s by default",
    "backoff_enable": "the backoff of source_pool is for both clusters",
    "backoff_min": "the backoff of source_pool is for both clusters",
    "backoff_max": "the backoff of source_pool is for both clusters",
    "max_retries": "give_up_after, from source_pool.max_retries, is for both clusters",
}
_UNKNOWN = "relay knows nothing that corresponds to it"


def convert(text: str, folder: Path) -> str:
    """Return a relay.yaml with one mirror.

    Args:
        folder: of the file; relative paths start there.

    Raises:
        ConfigError: it is not TOML, lacks what a mirror needs, or cannot be expressed.
    """
    try:
        tree = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise ConfigError(
            f"this is not TOML: {error}", remedy="name a kaf-relay config.toml"
        ) from None
    keys, document = Keys(_flat(tree)), Document()
    sources = tree.get("sources") or []
    if not sources or not tree.get("target") or not tree.get("topics"):
        raise ConfigError(
            "[[sources]], [target] or [topics] is missing",
            remedy="name a kaf-relay config.toml",
        )
    _refuse_other_shapes(tree)
    nodes = [_cluster(keys, f"sources[{n}]", document, folder) for n in range(len(sources))]
    destination = _cluster(keys, "target", document, folder)
    keys.note("target.name", _TARGET_REASONS["name"])
    mirror: dict[str, Any] = {"source": {"nodes": nodes}}
    if health := _health(keys, len(nodes)):
        mirror["source"]["health"] = health
    mirror["destination"] = {key: destination[key] for key in destination if key != "name"}
    mirror["topics"] = _topics(keys, tree["topics"])
    mirror |= _copying(keys)
    if address := keys.take("app.metrics_server_addr"):
        host, _, port = str(address).rpartition(":")
        # Go listens on all interfaces if no host is given
        document.tree["metrics"] = {"address": f"{host or '0.0.0.0'}:{port}"}  # noqa: S104
    document.tree["mirrors"] = {"kaf-relay": mirror}
    _note_rest(keys)
    if len(nodes) > 1:
        keys.notes["sources"] = (
            "all of them are nodes, as with --mode failover; with --mode single, keep the first"
        )
    return document.render("kaf-relay", keys.notes)


def _refuse_other_shapes(tree: dict[str, Any]) -> None:
    """Refuse what is TOML, but not what kaf-relay reads."""
    topics = tree["topics"]
    shapes = {
        "sources, which are tables [[sources]]": _are_tables(tree["sources"]),
        "target, which is a table [target]": isinstance(tree["target"], dict),
        'topics, which is a table [topics] with a line "source" = "target" per topic': (
            isinstance(topics, dict) or _are_tables(topics)
        ),
    }
    for what, fits in shapes.items():
        if not fits:
            raise ConfigError(f"kaf-relay does not read these {what}", remedy="correct it")


def _are_tables(value: Any) -> bool:
    return isinstance(value, list) and all(isinstance(each, dict) for each in value)


def _flat(tree: Any, path: str = "") -> dict[str, Any]:
    """Return values by dotted key: `sources[0].name`."""
    if path == "topics":
        return {}
    if isinstance(tree, dict):
        parts = [(f"{path}.{key}" if path else key, value) for key, value in tree.items()]
    elif isinstance(tree, list) and tree and isinstance(tree[0], dict):
        parts = [(f"{path}[{n}]", value) for n, value in enumerate(tree)]
    else:
        return {path: tree}
    return {key: value for part, below in parts for key, value in _flat(below, part).items()}


def _cluster(keys: Keys, at: str, document: Document, folder: Path) -> dict[str, Any]:
    number = re.search(r"\d+", at)
    name = str(keys.take(f"{at}.name", f"node{int(number[0]) + 1}" if number else "destination"))
    cluster: dict[str, Any] = {
        "name": name,
        "bootstrap_servers": keys.take(f"{at}.servers", []),
    }
    if security := _security(keys, at, name, document, folder):
        cluster["security"] = security
    return cluster


def _security(keys: Keys, at: str, name: str, document: Document, folder: Path) -> dict[str, Any]:
    tls, sasl = keys.take(f"{at}.enable_tls"), keys.take(f"{at}.enable_auth")
    security: dict[str, Any] = {}
    for key, ours in (
        ("ca_cert_path", "ca_location"),
        ("client_cert_path", "certificate_location"),
        ("client_key_path", "key_location"),
    ):
        path = keys.take(f"{at}.{key}")
        if path and tls:
            security[ours] = str((folder / path).absolute())
        elif path:
            keys.note(f"{at}.{key}", "it has no effect: enable_tls is off")
    given = {key: keys.take(f"{at}.{key}") for key in ("sasl_mechanism", "username", "password")}
    if sasl:
        security["mechanism"] = given["sasl_mechanism"]
        security["username"] = given["username"]
        security["password"] = document.secret(name, "password")
    else:
        for key in given:
            keys.note(f"{at}.{key}", "it has no effect: enable_auth is off")
    protocol = ("SASL_" if sasl else "") + ("SSL" if tls else "PLAINTEXT")
    return {"protocol": protocol, **security} if sasl or tls else {}


def _health(keys: Keys, nodes: int) -> dict[str, Any]:
    health: dict[str, Any] = {}
    for key, ours, needs_nodes in (
        ("healthcheck_interval", "interval", False),
        ("request_timeout", "request_timeout", False),
        ("offset_lag_threshold", "lag_threshold", True),
        ("randomize_initial", "randomize_initial", True),
    ):
        value = keys.take(f"source_pool.{key}")
        if value is None:
            continue
        if needs_nodes and nodes == 1:
            keys.note(f"source_pool.{key}", "it has no effect: there is only one source")
        else:
            health[ours] = value
    return health


def _topics(keys: Keys, written: Any) -> dict[str, Any]:
    """Return allow and rename; kaf-relay accepts a table, and its sample has a list of tables."""
    tables = written if isinstance(written, list) else [written]
    names = {source: str(target) for table in tables for source, target in table.items()}
    rename: dict[str, str] = {}
    used: dict[str, str] = {}
    for source, target in names.items():
        topic, colon, _ = target.partition(":")
        other = used.setdefault(topic, source)
        if other != source and not (colon and ":" in names[other]):
            keys.notes[f"topics.{source}"] = (
                f"not copied: {other} is copied to {topic}, too; pin both to a partition, as in"
                f" {topic}:0"
            )
            continue
        rename[source] = target
    topics: dict[str, Any] = {"allow": [literal(source) for source in rename]}
    if changed := {source: target for source, target in rename.items() if source != target}:
        topics["rename"] = changed
    return topics


def _copying(keys: Keys) -> dict[str, Any]:
    found: dict[str, Any] = {}
    initial = keys.take("source_pool.initial_offset")
    if initial in {"start", "end"}:
        found["start"] = {"start": "earliest", "end": "latest"}[initial]
    elif initial is not None:
        keys.note("source_pool.initial_offset", "expected start or end; set start")
    if keys.found.get("source_pool.max_retries") == -1:
        keys.take("source_pool.max_retries")
        found["give_up_after"] = -1
    if keys.take("source_pool.backoff_enable") is not False:
        backoff = {
            end: keys.take(f"source_pool.backoff_{end}")
            for end in ("min", "max")
            if f"source_pool.backoff_{end}" in keys.found
        }
        if backoff:
            found["copy"] = {"backoff": backoff}
    else:
        for end in ("min", "max"):
            keys.note(f"source_pool.backoff_{end}", "it has no effect: backoff_enable is off")
    return found


def _note_rest(keys: Keys) -> None:
    for key in list(keys.rest()):
        last = key.rpartition(".")[2]
        if key.startswith("filters."):
            keys.note(key, _filter_reason(keys, key.split(".")[1]))
        elif key.startswith("target.") and last in _TARGET_REASONS:
            keys.note(key, _TARGET_REASONS[last])
        else:
            keys.note(key, _REASONS.get(last, _UNKNOWN))


def _filter_reason(keys: Keys, name: str) -> str:
    if not keys.found.get(f"filters.{name}.enabled"):
        return "the filter is not enabled"
    return "it is a Go plugin: write a Python class with keep(record), and name it under filters"
