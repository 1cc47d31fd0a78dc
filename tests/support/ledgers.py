"""A mirror's ledger, as the package reads it."""

from relay_pipelines.ledger.ledger_topic import LedgerRecord
from relay_pipelines.ledger.reader import LedgerReader, by_time
from relay_pipelines.model import Cluster, LedgerEntry
from relay_pipelines.protocol.client import destination_client
from tests.copying import OPTIONS


def ledger_records(destination: Cluster, mirror: str) -> list[LedgerRecord]:
    """Return all entries, in the order of their commits, once no transaction is open."""
    with destination_client(mirror, destination, OPTIONS) as client:
        return by_time(LedgerReader(client).forward(settled=True))


def ledger_entries(destination: Cluster, mirror: str) -> list[LedgerEntry]:
    """Return what `ledger_records` does, without the records."""
    return [record.entry for record in ledger_records(destination, mirror)]
