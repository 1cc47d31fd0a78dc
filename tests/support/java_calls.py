"""Which methods a compiled Java class calls."""

import struct
from collections.abc import Iterator
from typing import NamedTuple

_UTF8, _LONG, _DOUBLE, _METHOD_HANDLE = 1, 5, 6, 15
_ONE_INDEX = (7, 8, 16, 19, 20)  # of a class, a string, a method type, a module, a package
_METHODS = (10, 11)  # of a class, of an interface
_FIRST_ENTRY = 10


class Call(NamedTuple):
    """A method that a class calls: its owner, with slashes, and its name."""

    owner: str
    method: str


def calls(code: bytes) -> Iterator[Call]:
    """Read the constant pool of a class file (Java Virtual Machine Specification, 4.4)."""
    (count,) = struct.unpack_from(">H", code, 8)
    texts: dict[int, str] = {}
    references: dict[int, tuple[int, ...]] = {}
    methods: list[tuple[int, ...]] = []
    place, number = _FIRST_ENTRY, 1
    while number < count:
        tag = code[place]
        if tag == _UTF8:
            (length,) = struct.unpack_from(">H", code, place + 1)
            texts[number] = code[place + 3 : place + 3 + length].decode(errors="replace")
            place += 3 + length
        elif tag in _ONE_INDEX:
            references[number] = struct.unpack_from(">H", code, place + 1)
            place += 3
        elif tag in (_LONG, _DOUBLE):
            place, number = place + 9, number + 1  # which counts as two
        elif tag == _METHOD_HANDLE:
            place += 4
        else:
            references[number] = struct.unpack_from(">HH", code, place + 1)
            methods += [references[number]] if tag in _METHODS else []
            place += 5
        number += 1
    for owner, named in methods:
        yield Call(texts[references[owner][0]], texts[references[named][0]])
