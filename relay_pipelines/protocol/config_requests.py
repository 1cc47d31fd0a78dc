"""DescribeConfigs of topics and brokers, as fixed structs.

Most topics of a cluster have the same configuration, so that the bytes of one are those of the next
one, too: each is decoded once. Brokers from Kafka 2.4 to 4.x serve version 2.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from relay_pipelines.protocol.fetch import encode_string

DESCRIBE = 32, 2
"""Api key and version."""
TOPIC, BROKER = 2, 4
_DEFAULT_CONFIG = 5  # where a value comes from
_REMEMBERED = 8  # different configurations
_COUNT = struct.Struct(">i")
_SIZE = struct.Struct(">h")
_THROTTLE_BYTES = 4
_NO_SYNONYMS = b"\0"
# read only, source, sensitive, synonyms
_AFTER_VALUE = struct.Struct(">bbbi")


@dataclass(frozen=True, slots=True)
class ConfigValue:
    """A topic's configuration value.

    Args:
        is_default: neither the topic nor a broker sets it.
    """

    value: str
    is_default: bool


class Described(NamedTuple):
    """What a broker says of one topic, or of itself.

    Args:
        configs: by key, without keys that have no value; shared by topics with the same ones.
    """

    name: str
    error_code: int
    error_message: str
    configs: Mapping[str, ConfigValue]


def encode(names: Sequence[str], keys: Sequence[str], kind: int = TOPIC) -> bytes:
    """Return a request for some keys of topics, or of the broker that gets it.

    Args:
        names: of topics, or the broker's id.
        kind: `TOPIC` or `BROKER`.
    """
    encoded = b"".join((_COUNT.pack(len(keys)), *map(encode_string, keys)))
    parts = [_COUNT.pack(len(names))]
    for name in names:
        parts += (bytes([kind]), encode_string(name), encoded)
    return b"".join((*parts, _NO_SYNONYMS))


def decode(body: memoryview) -> Iterator[Described]:
    """Read the answer to `encode`."""
    data = bytes(body)
    known: list[tuple[bytes, Mapping[str, ConfigValue]]] = []
    (topics,) = _COUNT.unpack_from(data, _THROTTLE_BYTES)
    at = _THROTTLE_BYTES + _COUNT.size
    for _ in range(topics):
        (error_code,) = _SIZE.unpack_from(data, at)
        message, at = _string(data, at + _SIZE.size)
        name, at = _string(data, at + 1)  # the type of a resource is that which was asked for
        entry = next((one for one in known if data.startswith(one[0], at)), None)
        if entry is None:
            configs, end = _configs(data, at)
            entry = data[at:end], configs
            known = [entry, *known[: _REMEMBERED - 1]]
        at += len(entry[0])
        yield Described(name or "", error_code, message or "", entry[1])


def _configs(data: bytes, at: int) -> tuple[dict[str, ConfigValue], int]:
    configs = {}
    (count,) = _COUNT.unpack_from(data, at)
    at += _COUNT.size
    for _ in range(count):
        name, at = _string(data, at)
        value, at = _string(data, at)
        _, source, _, synonyms = _AFTER_VALUE.unpack_from(data, at)
        at += _AFTER_VALUE.size
        for _ in range(synonyms):
            _, at = _string(data, at)
            _, at = _string(data, at)
            at += 1  # where it comes from
        if name is not None and value is not None:
            configs[name] = ConfigValue(value, is_default=source == _DEFAULT_CONFIG)
    return configs, at


def _string(data: bytes, at: int) -> tuple[str | None, int]:
    """Return a string, and where it ends; None if it is null."""
    (size,) = _SIZE.unpack_from(data, at)
    at += _SIZE.size
    return (None, at) if size < 0 else (data[at : at + size].decode(), at + size)
