"""The lease of an import without brokers: a commit of a writer that was fenced is refused."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from types import SimpleNamespace
from typing import Any

from relay_pipelines.errors import FencedError
from relay_pipelines.schemas.import_record import ImportRecord, Lease


@dataclass
class Store:
    """What the destination's brokers keep for a lease."""

    record: ImportRecord = field(default_factory=ImportRecord)
    epoch: int = 0
    now_ms: int = 1_000_000


class LeaseInMemory(Lease):
    """A lease whose record is in this process; a commit of who was fenced is refused."""

    def __init__(self, store: Store, run_id: str) -> None:
        clock = SimpleNamespace(now_ms=lambda: store.now_ms)
        registry: Any = SimpleNamespace(identity="r")
        fenced_client: Any = SimpleNamespace(clock=clock)
        super().__init__(fenced_client, registry, run_id)
        self._store = store
        self.before_write: Any = lambda: None

    def read(self) -> ImportRecord:
        return self._store.record

    def _taken_over(self) -> tuple[Any, ImportRecord]:
        self.before_write()
        self._store.epoch += 1
        epoch = self._store.epoch
        return SimpleNamespace(epoch=epoch, release=lambda: None), self.read()

    def _commit(self, producer: Any, record: ImportRecord) -> None:
        if producer.epoch != self._store.epoch:
            raise FencedError("fenced")
        self._record = replace(record, written_at_ms=self._store.now_ms)
        self._store.record = self._record
