"""The record of a move without brokers: a commit of a writer that was fenced is refused."""

from collections.abc import Callable
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

from relay_pipelines.errors import FencedError
from relay_pipelines.ledger.checkpoint import StateRecord, parse, record_of
from relay_pipelines.move.record import MoveRecord, MoveRecords


@dataclass
class Store:
    """What the destination's brokers keep."""

    record: MoveRecord = field(default_factory=lambda: MoveRecord("m"))
    epoch: int = 0
    now_ms: int = 1_000_000


class RecordsInMemory(MoveRecords):
    """Records that are in this process; who was fenced commits none."""

    def __init__(self, store: Store, writer: str) -> None:
        def once(ask: Callable[[], Any]) -> Any:
            return ask()

        fenced_client: Any = SimpleNamespace(
            clock=SimpleNamespace(now_ms=lambda: store.now_ms), retry=once, mirror="m"
        )
        super().__init__(fenced_client, writer, f"{writer}@host")
        self._store = store
        self.before_commit: Callable[[], None] = lambda: None
        self.after_commit: Callable[[], None] = lambda: None

    def _read(self) -> MoveRecord:
        return self._store.record

    def _decide(self, decision: Callable[[], list[StateRecord]]) -> None:
        self._store.epoch = epoch = self._store.epoch + 1
        for _, (key, value, _) in decision():
            self.before_commit()
            if epoch != self._store.epoch:
                raise FencedError("fenced")
            self._store.record = record_of(MoveRecord, parse(key), value)
            self.after_commit()
