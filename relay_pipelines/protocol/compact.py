"""What newer ("flexible") versions of requests are made of: KIP-482."""

from __future__ import annotations

NO_TAGS = b"\0"
_LONGEST_ONE_BYTE = 127


def string(data: bytes, at: int) -> tuple[str, int]:
    """Return a compact string, empty if it is null, and where it ends."""
    length, at = unsigned(data, at)
    end = at + max(0, length - 1)
    return data[at:end].decode(), end


def after_tags(data: bytes, at: int) -> int:
    """Return where the tagged fields end, which nobody reads."""
    count, at = unsigned(data, at)
    for _ in range(count):
        _, at = unsigned(data, at)
        length, at = unsigned(data, at)
        at += length
    return at


def unsigned(data: bytes, at: int) -> tuple[int, int]:
    """Return a number of variable length, seven bits a byte, and where it ends."""
    value, shift = data[at], 7
    at += 1
    if value <= _LONGEST_ONE_BYTE:
        return value, at
    value &= _LONGEST_ONE_BYTE
    while True:
        byte = data[at]
        at += 1
        value |= (byte & _LONGEST_ONE_BYTE) << shift
        if byte <= _LONGEST_ONE_BYTE:
            return value, at
        shift += 7


def size(value: int) -> bytes:
    """Return a number in as few bytes as `unsigned` reads."""
    parts = bytearray()
    while value > _LONGEST_ONE_BYTE:
        parts.append(value & _LONGEST_ONE_BYTE | _LONGEST_ONE_BYTE + 1)
        value >>= 7
    parts.append(value)
    return bytes(parts)
