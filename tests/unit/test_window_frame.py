"""Which window of a topic has a chunk that was copied for none."""

from relay_pipelines.model import LedgerEntry, OffsetRange, TopicPartition
from relay_pipelines.plan.frozen_window import FrozenWindow
from relay_pipelines.window_frame import _Owners

AT = TopicPartition("a", 0)
ONE = FrozenWindow("2026-01-01T00:00:00Z-000", (OffsetRange(AT, 0, 100),))
TWO = FrozenWindow("2026-01-01T00:00:05Z-000", (OffsetRange(AT, 50, 150),))


def entry(start: int, end: int, window: str = "") -> LedgerEntry:
    at = OffsetRange(AT, start, end)
    copied = end - start
    return LedgerEntry("m", at, at, copied, 1, 1, 0, {}, "", 7, "", window, "", 0)


def test_a_chunk_is_in_one_window_whichever_are_read() -> None:
    """The first one failed at offset 50, the second one, too, and `relay run` copied the rest."""
    for start, own in ((50, ONE), (100, TWO)):
        chunk = entry(start, start + 50)
        alone = [
            _Owners([ONE], list[FrozenWindow]).key_of(chunk),
            _Owners([TWO], lambda: [ONE]).key_of(chunk),
        ]
        assert list(filter(None, alone)) == [own.key]
        assert _Owners([TWO, ONE], list[FrozenWindow]).key_of(chunk) == own.key
    own_chunk = entry(50, 150, TWO.key)
    assert _Owners([TWO], lambda: [ONE]).key_of(own_chunk) == TWO.key
    assert _Owners([ONE]).key_of(own_chunk) is None
    outside = FrozenWindow("", ())
    assert _Owners([outside]).key_of(entry(50, 150)) == "", "what was copied for none, by itself"
