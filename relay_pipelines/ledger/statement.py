"""Statements: what a ledger said at some time, kept outside of Kafka.

A statement is JSON. It holds every entry in its canonical form, so that whoever has it can compute
the hashes, and compare the destination with it after the ledger has forgotten the entries.
"""

from __future__ import annotations

import dataclasses
import importlib.metadata
import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from relay_pipelines.errors import ConfigError, TamperedError, written_by_newer
from relay_pipelines.json_codec import from_fields
from relay_pipelines.ledger import ledger_topic
from relay_pipelines.ledger.attested import AttestedChain, attested_ledger
from relay_pipelines.ledger.chain import REMEDY
from relay_pipelines.ledger.ledger_topic import LedgerRecord
from relay_pipelines.model import Checkpoint, LedgerEntry, LedgerHead, TopicPartition
from relay_pipelines.protocol.clock import Clock
from relay_pipelines.settings import Mirror

_KIND, _VERSION = "statement of relay_pipelines", 1
_NEW_STATEMENT = "`relay attest --output FILE` writes one"


@dataclass(frozen=True, slots=True)
class Attested:
    """What a statement says about one source topic-partition.

    Args:
        records: the entries, oldest first; their offsets in the ledger are unknown.
        head: number and hash of the newest one.
    """

    source: TopicPartition
    records: tuple[LedgerRecord, ...]
    head: LedgerHead

    @property
    def entries(self) -> list[LedgerEntry]:
        """The entries, oldest first."""
        return [record.entry for record in self.records]


@dataclass(frozen=True, slots=True)
class Statement:
    """A statement as it was read.

    Args:
        cluster_id: of the destination.
        made_at: the time, as text.
    """

    mirror: str
    cluster_id: str
    made_at: str
    attested: tuple[Attested, ...]


def attest(
    name: str,
    mirror: Mirror,
    topic: str | None,
    made_at: str,
    clock: Clock,
) -> Iterator[bytes]:
    """Verify the ledger of a mirror, and yield a statement of it, part by part.

    Before the first part, everything is verified. Memory does not grow with the number of entries:
    they are in a file meanwhile.

    Args:
        topic: only this source topic.

    Raises:
        TamperedError: the ledger is not what was committed; its notes name each place.
        ConfigError: the ledger has no entries.
        RelayError: the destination does not answer, or refuses.
    """
    with attested_ledger(name, mirror, topic, clock) as ledger:
        if breaks := ledger.breaks:
            places = f"{len(breaks)} place{'s' if len(breaks) > 1 else ''}"
            error = TamperedError(
                f"the ledger of {name} is not what was committed: {places}", remedy=REMEDY
            )
            for broken in breaks:
                error.add_note(str(broken))
            raise error
        if not any(chain.count for chain in ledger.chains):
            of = "this mirror" if topic is None else f"topic {topic!r}"
            raise ConfigError(f"the ledger has no entries of {of}", remedy="see `relay ledger`")
        fields = {
            "kind": _KIND,
            "version": _VERSION,
            "relay_pipelines": importlib.metadata.version("relay_pipelines"),
            "mirror": name,
            "made_at": made_at,
            "destination_cluster_id": ledger.cluster_id,
            "source_cluster_ids": _source_cluster_ids(ledger.checkpoints.values()),
            "move": ledger.move,
        }
        yield from _text(fields, ledger.chains)


def _source_cluster_ids(checkpoints: Iterable[Checkpoint]) -> dict[str, str]:
    by_age = sorted(checkpoints, key=lambda checkpoint: checkpoint.committed_at_ms)
    return {
        node: known
        for source_checkpoint in by_age
        for node, known in source_checkpoint.cluster_ids.items()
    }


_ITEMS = "the items of a list, which are written one by one"
_INDENT = 2
_LEVEL_OF_CHAINS, _LEVEL_OF_ENTRIES = 2, 4


def _text(fields: Mapping[str, Any], chains: Iterable[AttestedChain]) -> Iterator[bytes]:
    """Yield the JSON of a statement."""
    before, after = _around_items({**fields, "topic_partitions": [_ITEMS]}, 0)
    yield before.encode()
    for number, chain in enumerate(chains):
        if number:
            yield _between(_LEVEL_OF_CHAINS)
        yield from _chain_text(chain)
    yield f"{after}\n".encode()


def _chain_text(chain: AttestedChain) -> Iterator[bytes]:
    fields = {
        "topic": chain.topic_partition.topic,
        "partition": chain.topic_partition.partition,
        "ranges": chain.copied.ranges,
        "records": chain.copied.records,
        "size_bytes": chain.copied.size_bytes,
        "skipped": chain.copied.skipped,
        "head": dataclasses.asdict(chain.head),
        "expired_entries": chain.expired,
        "entries": [_ITEMS] if chain.count else [],
    }
    before, *after = _around_items(fields, _LEVEL_OF_CHAINS)
    yield before.encode()
    between = b""
    for value in chain.values:
        yield between + json.dumps(value.decode()).encode()
        between = _between(_LEVEL_OF_ENTRIES)
    yield "".join(after).encode()


def _around_items(document: Mapping[str, Any], level: int) -> list[str]:
    """Return what stands before and after the items of a document that is this deep."""
    text = json.dumps(document, indent=_INDENT).replace("\n", f"\n{' ' * level * _INDENT}")
    return text.split(json.dumps(_ITEMS))


def _between(level: int) -> bytes:
    """What separates two items of a list whose items are this deep."""
    return f",\n{' ' * level * _INDENT}".encode()


def read_statement(path: Path) -> Statement:
    """Read a statement.

    Raises:
        ConfigError: there is no such file, or it is no statement.
    """
    document = _document(path)
    try:
        attested = tuple(_attested(some) for some in document["topic_partitions"])
        return Statement(
            document["mirror"],
            document["destination_cluster_id"],
            document["made_at"],
            attested,
        )
    except (AttributeError, KeyError, TypeError, TamperedError) as error:
        raise _no_statement(path, "it is incomplete") from error


def _document(path: Path) -> dict[str, Any]:
    try:
        document = json.loads(path.read_bytes())
    except OSError as error:
        raise ConfigError(
            f"cannot read the statement {path}: {error.strerror}", remedy=_NEW_STATEMENT
        ) from None
    except ValueError:
        raise _no_statement(path, "it is no JSON") from None
    if not isinstance(document, dict) or document.get("kind") != _KIND:
        raise _no_statement(path, f"it does not say {_KIND!r}")
    found = document.get("version")
    if type(found) is int and found > _VERSION:
        raise written_by_newer(f"the statement {path}")
    if found != _VERSION:
        raise _no_statement(path, f"its version is {document.get('version')}, not {_VERSION}")
    return document


def _no_statement(path: Path, why: str) -> ConfigError:
    return ConfigError(
        f"{path} is no statement that this relay can read: {why}",
        remedy=_NEW_STATEMENT,
    )


def _attested(fields: Mapping[str, Any]) -> Attested:
    source = TopicPartition(fields["topic"], fields["partition"])
    home = TopicPartition(ledger_topic.TOPIC, -1)
    records = []
    for position, text in enumerate(fields["entries"]):
        value = text.encode()
        records.append(LedgerRecord(ledger_topic.from_record(value), value, home, position))
    return Attested(source, tuple(records), from_fields(LedgerHead, fields["head"]))
