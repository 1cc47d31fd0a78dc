"""What is done to statements, and what `relay audit --against` makes of it.

The letters stand for a statement that is not signed; one that was signed before it was edited; and
the same with `--key`. D: exit code 4. R: refused, with exit code 2. A dot: it passes.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from relay_pipelines.audit.against_statement import audit_against
from relay_pipelines.errors import DIFFERENCE, RelayError
from tests.integration.tampering.stage import CLOCK, Stage
from tests.integration.tampering.views import Cell
from tests.support.findings import differences

Document = dict[str, Any]
REFUSED = "R"
KINDS = ("not signed", "signed", "signed, and `--key` given")


@dataclass(frozen=True)
class Edited:
    """One row: an edit of a statement.

    Args:
        is_signed_again: whether the forger signs it with a key of their own.
    """

    name: str
    what: str
    expect: str
    edit: Callable[[Document], object]
    is_signed_again: bool = False


def _first(document: Document) -> Document:
    found: Document = document["topic_partitions"][0]
    return found


def _entry(number: int, **fields: Any) -> Callable[[Document], object]:
    def edit(document: Document) -> None:
        entries = _first(document)["entries"]
        entry = json.loads(entries[number]) | fields
        entries[number] = json.dumps(entry, separators=(",", ":"))

    return edit


def _cut(document: Document) -> None:
    """Leave out the newest entry, and make the one before it the head."""
    first = _first(document)
    newest = json.loads(first["entries"].pop())
    first["head"] = {
        "number": newest["number"] - 1,
        "hash": newest["previous"],
        "committed_at_ms": newest["previous_at_ms"],
    }
    first["records"] -= newest["records"]


EDITED = [
    Edited("nothing", "nothing", "...", lambda _: None),
    Edited("entry", "an entry changed", "DDD", _entry(1, records=9)),
    Edited("removed", "an entry removed", "DDD", lambda found: _first(found)["entries"].pop(1)),
    Edited("newest", "the newest entry left out, and the head set to match", ".DD", _cut),
    Edited(
        "total",
        "the number of records in its summary changed",
        ".DD",
        lambda found: _first(found).update(records=7),
    ),
    Edited(
        "partition",
        "a topic-partition left out",
        ".DD",
        lambda found: found["topic_partitions"].pop(),
    ),
    Edited("time", "its time changed", ".DD", lambda found: found.update(made_at="2020-01-01")),
    Edited("mirror", "its mirror changed", "RDD", lambda found: found.update(mirror="main")),
    Edited(
        "cluster",
        "its cluster changed",
        "RDD",
        lambda found: found.update(destination_cluster_id="another"),
    ),
    Edited(
        "signed-again",
        "a topic-partition left out, and signed by somebody else",
        "..R",
        lambda found: found["topic_partitions"].pop(),
        is_signed_again=True,
    ),
]


def sign(statement: Document, key: Ed25519PrivateKey) -> Document:
    """Return the statement with a signature, as docs/reference/formats.md describes it."""
    unsigned = {name: value for name, value in statement.items() if name != "signature"}
    text = json.dumps(unsigned, sort_keys=True, separators=(",", ":")).encode()
    public = key.public_key().public_bytes_raw()
    signature = {
        "algorithm": "Ed25519",
        "public_key": base64.b64encode(public).decode(),
        "signature": base64.b64encode(key.sign(text)).decode(),
    }
    return unsigned | {"signature": signature}


def look(stage: Stage, mirror: str, edited: Edited) -> list[Cell]:
    """Return what a comparison shows, for each of `KINDS`."""
    keys = [Ed25519PrivateKey.generate() for _ in range(2)]
    public = stage.folder / "public.pem"
    public.write_bytes(
        keys[0]
        .public_key()
        .public_bytes(serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo)
    )
    original = json.loads(stage.statement(mirror).read_text())
    unsigned, signed = json.loads(json.dumps(original)), sign(original, keys[0])
    edited.edit(unsigned)
    edited.edit(signed)
    if edited.is_signed_again:
        signed = sign(unsigned, keys[1])
    return [
        _compare(stage, mirror, unsigned, None),
        _compare(stage, mirror, signed, None),
        _compare(stage, mirror, signed, public),
    ]


def _compare(stage: Stage, mirror: str, document: Document, key: Path | None) -> Cell:
    path = stage.folder / "edited.json"
    path.write_text(json.dumps(document))
    try:
        found = audit_against(path, mirror, stage.settings(mirror), CLOCK, key)
    except RelayError as error:
        state = "D" if error.exit_code == DIFFERENCE else REFUSED
        return Cell(state, (str(error).replace(str(path), "FILE"),))
    return Cell("D" if differences(found) else ".", tuple(differences(found)))
