"""Statements: what a ledger said at some time, kept outside of Kafka, and signed if wanted.

A statement is JSON. It holds every entry in its canonical form, so that whoever has it can compute
the hashes, and compare the destination with it after the ledger has forgotten the entries.
"""

from __future__ import annotations

import base64
import dataclasses
import importlib.metadata
import json
import mmap
import tempfile
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey

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
_NEW_KEY = "make one with `openssl genpkey -algorithm ed25519 -out key.pem`"
_NEW_PUBLIC_KEY = "`openssl pkey -in key.pem -pubout -out public.pem` writes it"
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
        signer: the public key that the signature fits, in base64; empty if it is not signed.
    """

    mirror: str
    cluster_id: str
    made_at: str
    attested: tuple[Attested, ...]
    signer: str


def attest(
    name: str,
    mirror: Mirror,
    topic: str | None,
    key: Ed25519PrivateKey | None,
    made_at: str,
    clock: Clock,
) -> Iterator[bytes]:
    """Verify the ledger of a mirror, and yield a statement of it, part by part.

    Before the first part, everything is verified. Memory does not grow with the number of entries:
    they are in a file meanwhile, and what is signed is in another one.

    Args:
        topic: only this source topic.
        key: signs it; None for no signature.

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
        signature = None
        if key is not None:
            signature = _signature(key, _text(fields, ledger.chains, _SIGNED))
        yield from _text(fields, ledger.chains, _SHOWN, signature)
        yield b"\n"


def _source_cluster_ids(checkpoints: Iterable[Checkpoint]) -> dict[str, str]:
    by_age = sorted(checkpoints, key=lambda checkpoint: checkpoint.committed_at_ms)
    return {
        node: known
        for source_checkpoint in by_age
        for node, known in source_checkpoint.cluster_ids.items()
    }


class _Layout(NamedTuple):
    """How JSON is written.

    Args:
        indent: of each level; None for no white space.
    """

    indent: int | None
    sort_keys: bool

    def text(self, value: object, level: int = 0) -> str:
        """Write a value that is this deep in a document."""
        if self.indent is None:
            return json.dumps(value, sort_keys=self.sort_keys, separators=(",", ":"))
        text = json.dumps(value, sort_keys=self.sort_keys, indent=self.indent)
        return text.replace("\n", f"\n{' ' * level * self.indent}")

    def between(self, level: int) -> str:
        """What separates two items of a list whose items are this deep."""
        return "," if self.indent is None else f",\n{' ' * level * self.indent}"


_SHOWN = _Layout(indent=2, sort_keys=False)
_SIGNED = _Layout(indent=None, sort_keys=True)
"""All but the signature, in ASCII."""
_ITEMS = "the items of a list, which are written one by one"
_LEVEL_OF_CHAINS, _LEVEL_OF_ENTRIES = 2, 4


def _text(
    fields: Mapping[str, Any],
    chains: Iterable[AttestedChain],
    layout: _Layout,
    signature: Mapping[str, str] | None = None,
) -> Iterator[bytes]:
    """Yield the JSON of a statement."""
    document = {**fields, "topic_partitions": [_ITEMS]}
    if signature is not None:
        document["signature"] = signature
    before, after = layout.text(document).split(json.dumps(_ITEMS))
    yield before.encode()
    for number, chain in enumerate(chains):
        if number:
            yield layout.between(_LEVEL_OF_CHAINS).encode()
        yield from _chain_text(chain, layout)
    yield after.encode()


def _chain_text(chain: AttestedChain, layout: _Layout) -> Iterator[bytes]:
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
    before, *after = layout.text(fields, _LEVEL_OF_CHAINS).split(json.dumps(_ITEMS))
    yield before.encode()
    between = ""
    for value in chain.values:
        yield f"{between}{json.dumps(value.decode())}".encode()
        between = layout.between(_LEVEL_OF_ENTRIES)
    yield "".join(after).encode()


def read_key(key: Path) -> Ed25519PrivateKey:
    """Read the key for a signature.

    Args:
        key: PEM file with an Ed25519 private key, without a password.

    Raises:
        ConfigError: it is not.
    """
    pem = _bytes_of("key", key, _NEW_KEY)
    try:
        private = serialization.load_pem_private_key(pem, password=None)
    except (TypeError, ValueError):
        raise ConfigError(
            f"{key} is no private key in PEM without a password", remedy=_NEW_KEY
        ) from None
    if not isinstance(private, Ed25519PrivateKey):
        raise ConfigError(f"the key {key} is not of the type Ed25519", remedy=_NEW_KEY)
    return private


def _signature(key: Ed25519PrivateKey, signed: Iterable[bytes]) -> dict[str, str]:
    """Return the signature of some text, with the public key."""
    with tempfile.TemporaryFile(prefix="relay-statement-") as file:
        for part in signed:
            file.write(part)
        file.flush()
        # Ed25519 reads it twice; the kernel may take the memory back in between
        with (
            mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as mapped,
            memoryview(mapped) as whole,
        ):
            signature = key.sign(whole)
    public = key.public_key().public_bytes_raw()
    return {
        "algorithm": "Ed25519",
        "public_key": base64.b64encode(public).decode(),
        "signature": base64.b64encode(signature).decode(),
    }


def _signed(statement: Mapping[str, Any]) -> bytes:
    """Return the bytes that are signed: all but the signature, with sorted keys, in ASCII."""
    fields = {key: value for key, value in statement.items() if key != "signature"}
    return json.dumps(fields, sort_keys=True, separators=(",", ":")).encode()


def read_statement(path: Path, trusted: Path | None = None) -> Statement:
    """Read a statement and check its signature.

    Args:
        trusted: PEM file with the public key that must have signed it; None if any may, or none.

    Raises:
        ConfigError: there is no such file, it is no statement, or another one has signed it.
        TamperedError: it was changed after it was signed.
    """
    document = _document(path)
    signer = _signer(path, document)
    if trusted is not None and signer != (expected := _public_key(trusted)):
        raise ConfigError(
            f"the statement {path} is {f'signed by {signer}' if signer else 'not signed'}, and not"
            f" by {expected}",
            remedy="ask its author for the signed statement, or for the right public key",
        )
    try:
        attested = tuple(_attested(some) for some in document["topic_partitions"])
        return Statement(
            document["mirror"],
            document["destination_cluster_id"],
            document["made_at"],
            attested,
            signer,
        )
    except (AttributeError, KeyError, TypeError, TamperedError) as error:
        raise _no_statement(path, "it is incomplete") from error


def _document(path: Path) -> dict[str, Any]:
    text = _bytes_of("statement", path, _NEW_STATEMENT)
    try:
        document = json.loads(text)
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


def _bytes_of(what: str, path: Path, remedy: str) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise ConfigError(
            f"cannot read the {what} {path}: {error.strerror}", remedy=remedy
        ) from None


def _attested(fields: Mapping[str, Any]) -> Attested:
    source = TopicPartition(fields["topic"], fields["partition"])
    home = TopicPartition(ledger_topic.TOPIC, -1)
    records = []
    for position, text in enumerate(fields["entries"]):
        value = text.encode()
        records.append(LedgerRecord(ledger_topic.from_record(value), value, home, position))
    return Attested(source, tuple(records), from_fields(LedgerHead, fields["head"]))


def _signer(path: Path, document: Mapping[str, Any]) -> str:
    signature = document.get("signature")
    if signature is None:
        return ""
    try:
        public = base64.b64decode(signature["public_key"])
        key = Ed25519PublicKey.from_public_bytes(public)
        key.verify(base64.b64decode(signature["signature"]), _signed(document))
    except (InvalidSignature, KeyError, TypeError, ValueError) as error:
        raise TamperedError(
            f"the signature of the statement {path} does not fit: it was changed after it was"
            " signed",
            remedy="ask its author for the signed statement",
        ) from error
    return base64.b64encode(public).decode()


def _public_key(path: Path) -> str:
    pem = _bytes_of("public key", path, _NEW_PUBLIC_KEY)
    try:
        key = serialization.load_pem_public_key(pem)
    except ValueError:
        key = None
    if not isinstance(key, Ed25519PublicKey):
        raise ConfigError(f"{path} is no public Ed25519 key in PEM", remedy=_NEW_PUBLIC_KEY)
    return base64.b64encode(key.public_bytes_raw()).decode()
