"""Aligns the records of two sides where they differ, and names what happened to each. Pure.

The longest common subsequence is what is in order on both sides. Of the rest, what is on both sides
is out of order; two records between the same neighbours that share most of their fields are one
record that was changed; what is left is on one side alone.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import defaultdict
from collections.abc import Callable, Hashable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from relay_pipelines.protocol.records import name_to_text

Pairs = list[tuple[int, int]]
"""Indices of the same record on both sides, ascending on both."""

_MOST_PLACES = 16  # of one content that is tried: topics may repeat a record for ever
_ENOUGH = 4  # of so many records, one must be in order on both sides

TIMESTAMP, KEY, VALUE, HEADERS = range(4)
FIELDS = ("timestamp", "key", "value", "headers")
_LEVELS: tuple[tuple[int, ...], ...] = (
    (KEY, VALUE),
    (TIMESTAMP, KEY),
    (TIMESTAMP, VALUE),
    (KEY,),
)
"""What two records share that are one, the strictest first."""


@dataclass(slots=True)
class Alignment:
    """What was found in two stretches of records; all are indices into them.

    Args:
        same: the same record on both sides, in order.
        changed: one record, which differs.
        moved: the same record on both sides, in another order.
        missing: only at the source.
        extra: only at the destination.
    """

    same: Pairs = field(default_factory=list)
    changed: Pairs = field(default_factory=list)
    moved: Pairs = field(default_factory=list)
    missing: list[int] = field(default_factory=list)
    extra: list[int] = field(default_factory=list)


def common(one: Sequence[Hashable], other: Sequence[Hashable]) -> Pairs:
    """Return the longest common subsequence (Hunt and Szymanski).

    Of a content that comes often, only the places that are nearest to the diagonal are tried.
    """
    places: dict[Hashable, list[int]] = defaultdict(list)
    for index, content in enumerate(other):
        places[content].append(index)
    ends: list[int] = []  # the least end at `other` of a subsequence of each length
    links: list[tuple[int, int, Any]] = []  # its last pair, and the pairs before that
    for index, content in enumerate(one):
        there = places.get(content, [])
        if len(there) > _MOST_PLACES:
            near = max(0, bisect_left(there, index) - _MOST_PLACES // 2)
            there = there[near : near + _MOST_PLACES]
        for place in reversed(there):
            length = bisect_left(ends, place)
            link = index, place, links[length - 1] if length else None
            if length == len(ends):
                ends.append(place)
                links.append(link)
            elif place < ends[length]:
                ends[length] = place
                links[length] = link
    pairs: Pairs = []
    last: Any = links[-1] if links else None
    while last:
        pairs.append(last[:2])
        last = last[2]
    return pairs[::-1]


def by(content: Sequence[Any], fields: Sequence[int]) -> Hashable:
    """Return some fields of a record."""
    return tuple(content[each] for each in fields)


def anchors(
    source: Sequence[Sequence[Any]], destination: Sequence[Sequence[Any]], fields: Sequence[int]
) -> Pairs:
    """Return which records are in order on both sides, or nothing if they are too few to tell.

    Where few are the same, such as after a mirror that adds a header to each record, those that
    have the same key and value are.

    Args:
        fields: of `Content` that are compared.
    """
    enough = min(len(source), len(destination)) / _ENOUGH
    for shared in (fields, _LEVELS[0]):
        keys = [[by(content, shared) for content in each] for each in (source, destination)]
        pairs = common(*keys)
        if pairs and len(pairs) >= enough:
            return pairs
    return []


def align(
    source: Sequence[Sequence[Any]],
    destination: Sequence[Sequence[Any]],
    fields: Sequence[int],
    pairs: Pairs,
    *,
    compacted: bool = False,
) -> Alignment:
    """Name what happened to each record of two stretches.

    Args:
        fields: of `Content` that are compared.
        pairs: of `anchors`.
        compacted: whether a cleaner may have left different records of one key on both sides: then
            those that share their key alone are not one.
    """
    alignment = Alignment()
    levels = _LEVELS[:-1] if compacted else _LEVELS
    for one, other in pairs:
        is_same = by(source[one], fields) == by(destination[other], fields)
        (alignment.same if is_same else alignment.changed).append((one, other))
    left = _without(range(len(source)), pairs, 0), _without(range(len(destination)), pairs, 1)
    alignment.moved = _moved(source, destination, fields, *left)
    moved_from, moved_to = ({pair[side] for pair in alignment.moved} for side in (0, 1))
    for gap_source, gap_destination in gaps(pairs, len(source), len(destination)):
        ones = [index for index in gap_source if index not in moved_from]
        others = [index for index in gap_destination if index not in moved_to]
        for shared in levels if ones and others else ():
            more = _sharing(source, destination, ones, others, shared)
            alignment.changed += more
            ones, others = _without(ones, more, 0), _without(others, more, 1)
        alignment.missing += ones
        alignment.extra += others
    return alignment


def gaps(pairs: Pairs, source: int, destination: int) -> Iterator[tuple[range, range]]:
    """Yield the indices between two neighbouring pairs on both sides, from the start to the end."""
    one = other = 0
    for next_one, next_other in (*pairs, (source, destination)):
        if one < next_one or other < next_other:
            yield range(one, next_one), range(other, next_other)
        one, other = next_one + 1, next_other + 1


def changed_fields(
    source: Sequence[Any], destination: Sequence[Any], fields: Sequence[int]
) -> tuple[str, str]:
    """Return which fields of a record differ, and which headers were only added to it."""
    names = ", ".join(FIELDS[each] for each in fields if source[each] != destination[each])
    had, has = list(source[HEADERS]), list(destination[HEADERS])
    added = []
    for header in has:
        if had and had[0] == header:
            had.pop(0)
        else:
            added.append(name_to_text(header[0]))
    return names, "" if had else ", ".join(sorted(set(added)))


def _without(indices: Sequence[int], pairs: Pairs, side: int) -> list[int]:
    taken = {pair[side] for pair in pairs}
    return [index for index in indices if index not in taken]


def _moved(
    source: Sequence[Sequence[Any]],
    destination: Sequence[Sequence[Any]],
    fields: Sequence[int],
    ones: Sequence[int],
    others: Sequence[int],
) -> Pairs:
    """Return what is on both sides, in whatever order."""
    places: dict[Hashable, list[int]] = defaultdict(list)
    for index in reversed(others):
        places[by(destination[index], fields)].append(index)
    partners = ((index, places.get(by(source[index], fields))) for index in ones)
    return [(index, there.pop()) for index, there in partners if there]


def _sharing(
    source: Sequence[Sequence[Any]],
    destination: Sequence[Sequence[Any]],
    ones: Sequence[int],
    others: Sequence[int],
    shared: Sequence[int],
) -> Pairs:
    if shared == (KEY,):  # no key is no key that they share
        ones = [index for index in ones if source[index][KEY] is not None]
    keys: list[Callable[[int], Hashable]] = [
        lambda index: by(source[index], shared),
        lambda index: by(destination[index], shared),
    ]
    pairs = common([*map(keys[0], ones)], [*map(keys[1], others)])
    return [(ones[one], others[other]) for one, other in pairs]
