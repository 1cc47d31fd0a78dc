"""Who changes the modes of a registry now, and what they were: a record at the destination.

It outlives a process that is killed, and a machine. Its writer takes a transactional id over, reads
the record, and commits the next one: whoever does that in between fences the writer. So each record
follows from the one before it. docs/schemas.md argues what follows for the registry.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from relay_pipelines.errors import FencedError, RetriableError
from relay_pipelines.json_codec import to_json
from relay_pipelines.ledger import checkpoint, followed
from relay_pipelines.ledger.fencing import commit, take_over
from relay_pipelines.protocol.client import LATEST, READ_COMMITTED, ClusterClient
from relay_pipelines.protocol.producer import TransactionalProducer
from relay_pipelines.protocol.records import encode
from relay_pipelines.schemas.registry import Registry

LEASE_MS = 120_000
"""After this time without a new record, its writer is taken for dead."""
_VERSION = 1
_PREFIX = "@schemas/"
_DIGITS = 16


@dataclass(frozen=True, slots=True)
class ImportRecord:
    """Which subjects of a registry are in import mode only for the time of an import.

    Args:
        registry: its address and context.
        run_id: of the process that imports; empty if none does.
        modes: by subject, the mode before; empty if it had none of its own.
        written_at_ms: by the clock of the writer.
    """

    registry: str = ""
    run_id: str = ""
    modes: Mapping[str, str] = field(default_factory=dict)
    written_at_ms: int = 0


class Lease:
    """The right to change the modes of a registry.

    Args:
        client: of the destination, which has the mirrors' state topics.
        run_id: of this process; no other one has it.
    """

    def __init__(self, client: ClusterClient, registry: Registry, run_id: str) -> None:
        self._client = client
        self._run_id = run_id
        self._registry = registry.identity
        digest = hashlib.sha256(self._registry.encode()).hexdigest()[:_DIGITS]
        self._key = f"{_PREFIX}{digest}".encode()
        self._transactional_id = f"relay./schemas/{digest}"
        self._home = checkpoint.home(checkpoint.TOPIC, self._key)
        self._record = ImportRecord(self._registry)

    def read(self) -> ImportRecord:
        """Return the record as it is; one without a run and modes if there is none."""
        if not self._client.has_topic(checkpoint.TOPIC):
            return ImportRecord(self._registry)
        ends = self._client.list_offsets([self._home], LATEST, READ_COMMITTED)
        value = followed.newest_values(self._client, ends, (self._key,)).get(self._key)
        if value is None:
            return ImportRecord(self._registry)
        return checkpoint.record_of(ImportRecord, value.raw)

    def acquire(self) -> Mapping[str, str]:
        """Take the right; return what an import that was killed has left.

        Raises:
            RetriableError: another process has it, and is not dead, as far as its record says.
            FencedError: another process takes it at the same time.
        """
        producer, found = self._taken_over()
        age_ms = self._client.clock.now_ms() - found.written_at_ms
        if found.run_id and abs(age_ms) < LEASE_MS:
            producer.release()
            raise RetriableError(
                f"another process imports into {self._registry}",
                remedy=f"wait until it has ended, or, if it was killed, {LEASE_MS // 1000} seconds",
            )
        self._commit(producer, replace(found, run_id=self._run_id))
        return found.modes

    def hold(self, modes: Mapping[str, str]) -> None:
        """Write down what is to be restored, before it is changed; it replaces what was written.

        Raises:
            FencedError: another process has taken this one for dead.
        """
        self._write(replace(self._record, modes=dict(modes)))

    def renew(self) -> None:
        """Say that this process lives, if it has not said so for some time."""
        age_ms = self._client.clock.now_ms() - self._record.written_at_ms
        if age_ms > LEASE_MS // 4:
            self._write(self._record)

    def release(self) -> None:
        """Give the right back; what is still to be restored stays written."""
        self._write(replace(self._record, run_id=""))

    def _taken_over(self) -> tuple[TransactionalProducer, ImportRecord]:
        producer = take_over(self._client, self._transactional_id)
        # a transaction of another mirror may hide what was committed
        checkpoint.wait_for_open_transactions(self._client, [self._home])
        return producer, self.read()

    def _write(self, record: ImportRecord) -> None:
        producer, found = self._taken_over()
        if found.run_id != self._run_id:
            producer.release()
            raise FencedError(
                f"another process imports into {self._registry}",
                remedy="this one was too slow, and stops; run it again",
            )
        self._commit(producer, record)

    def _commit(self, producer: TransactionalProducer, record: ImportRecord) -> None:
        now_ms = self._client.clock.now_ms()
        self._record = replace(record, registry=self._registry, written_at_ms=now_ms)
        value = to_json(self._record, version=_VERSION).encode()
        commit(self._client, producer, [(self._home, encode(self._key, value, now_ms))])
