"""Which schemas a record names: ids before its key and value, or in its headers. Pure functions.

Confluent's serialisers write a zero byte and four bytes of an id before key or value. Newer ones
can write a header instead, with a GUID. Source: confluent-kafka's `schema_registry` package.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

_PREFIX_BYTES = 5
_KEY_HEADER, _VALUE_HEADER = "__key_schema_id", "__value_schema_id"
_PARTS = (("key", _KEY_HEADER), ("value", _VALUE_HEADER))


def named_by(record: Any) -> Iterator[tuple[str, int | None]]:
    """Yield which of key and value of a record names a schema, and its id; None for a GUID.

    A number of eight bytes begins as an id does: with id 0, which no registry gives.
    """
    headers = {name for name, _ in record.headers}
    for part, header in _PARTS:
        content = getattr(record, part)
        if header in headers:
            yield part, None
        elif content is not None and (number := _id_before(content)):
            yield part, number


def _id_before(content: bytes) -> int:
    if len(content) < _PREFIX_BYTES or content[0] != 0:
        return 0
    return int.from_bytes(content[1:_PREFIX_BYTES], "big")
