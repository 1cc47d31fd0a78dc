"""Filters that raise."""

from typing import Any


class FailsAt:
    """Raises on the record of one offset, and keeps the others."""

    def __init__(self, offset: int) -> None:
        self._offset = offset

    def keep(self, record: Any) -> bool:
        if record.offset == self._offset:
            raise ValueError("made to fail")
        return True


class KeepsBelow:
    """Keeps the records before an offset."""

    def __init__(self, offset: int) -> None:
        self._offset = offset

    def keep(self, record: Any) -> bool:
        return bool(record.offset < self._offset)


class QuotesHeaders:
    """Raises on every record that has headers, and quotes them."""

    def keep(self, record: Any) -> bool:
        for name, _ in record.headers:
            raise ValueError(f"unknown header {name}")
        return True
