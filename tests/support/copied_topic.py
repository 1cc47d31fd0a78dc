"""A topic-partition of which ten records were copied in this process, and what is done to it."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from relay_pipelines.audit.recount import Recount
from relay_pipelines.errors import RelayError
from relay_pipelines.ledger import checkpoint, reader
from relay_pipelines.ledger.chain import Chain
from relay_pipelines.ledger.verified import read_verified_ledger
from relay_pipelines.model import Cluster, LedgerEntry, OffsetRange, TopicPartition
from relay_pipelines.plan.hops import hops_to
from relay_pipelines.run import run_plan
from relay_pipelines.settings import Mirror
from relay_pipelines.sides import Sides
from relay_pipelines.snapshot.cluster_snapshot import ClusterSnapshot
from tests.copying import KEPT, ensure_homes, numbered, records_of
from tests.support import commands
from tests.support.independent import Record, create, delete, write
from tests.support.ledgers import ledger_entries
from tests.support.planned_copy import CLOCK, copy_planned, prepared
from tests.support.recounted import recounted


@dataclass
class Copied:
    """A topic-partition of which ten records were copied."""

    source: Cluster
    destination: Cluster
    topic: str
    name: str = ""
    expected: list[Record] = field(default_factory=list)
    filters: Sequence[Mapping[str, Any]] = ()

    def __post_init__(self) -> None:
        self.name = self.name or f"loss-{self.topic[-8:]}"
        self.at, self.to = TopicPartition(self.topic, 0), TopicPartition(f"copy.{self.topic}", 0)
        create(self.source, self.topic, 1, KEPT)
        create(self.destination, self.to.topic, 1, KEPT)
        ensure_homes(self.destination)
        self.write(0, 10)
        self.copy(self.snapshot())

    def settings(self, on_data_loss: str = "fail") -> dict[str, Any]:
        """Return the mirror as relay.yaml has it."""
        to = self.to.topic if self.to.partition == 0 else f"{self.to.topic}:{self.to.partition}"
        more: Any = {"topics": {"rename": {self.topic: to}}, "on_data_loss": on_data_loss}
        more["filters"] = list(self.filters)
        return commands.mirror(self.source, self.destination, self.topic, **more)

    def mirror(self, on_data_loss: str = "fail") -> Mirror:
        return Mirror.model_validate(self.settings(on_data_loss))

    def write(self, first: int, count: int) -> None:
        records = numbered(count, first=first)
        write(self.source, self.at, records)
        self.expected += records

    def snapshot(self, on_data_loss: str = "fail") -> ClusterSnapshot:
        return prepared(self.name, self.mirror(on_data_loss))

    def loss(self) -> RelayError:
        """Return the loss that holds the topic-partition back; nothing is planned for it."""
        plan = run_plan.plan(self.snapshot())
        assert not plan.planned
        (loss,) = plan.held
        return loss

    def copy(self, taken: ClusterSnapshot) -> list[OffsetRange]:
        """Copy what is planned, wait for the checkpoint, and return the source ranges."""
        return [copy_range.source for copy_range in copy_planned(taken)]

    def reached(self) -> dict[TopicPartition, int]:
        """Return the next offset of each checkpoint."""
        stored = reader.read_checkpoints(Sides(self.name, self.mirror(), CLOCK))
        return {at: committed.next_offset for at, committed in stored.checkpoints.items()}

    def comes_from(self) -> set[str]:
        """Return the ids of the clusters of which the copies are, as who reads them would see."""
        stored = reader.read_checkpoints(Sides(self.name, self.mirror(), CLOCK))
        found = hops_to("there", [self.to.topic], stored.checkpoints.values())
        return {hop.cluster_id for hop in found.get(self.to.topic, ())}

    def arrived(self) -> list[Record]:
        return records_of(self.destination, self.to)

    def ledger(self) -> list[LedgerEntry]:
        """Return all ledger entries in the order of their commits."""
        return ledger_entries(self.destination, self.name)

    def chain(self) -> Chain:
        """Return what verification finds in the chain of the ledger."""
        found = read_verified_ledger(Sides(self.name, self.mirror(), CLOCK))
        return found.chains[self.at]

    def recount(self, wanted: OffsetRange, generation: int) -> Recount:
        options, generations = self.mirror().copy_options, {self.at: generation}
        found = recounted(self.name, [wanted], self.destination, options, CLOCK, 0, generations)
        return found.counted[self.at]


def source_recreated(copied: Copied) -> None:
    """Recreate the source topic and let it grow past the checkpoint."""
    delete(copied.source, copied.topic)
    create(copied.source, copied.topic, 1, KEPT)
    copied.write(100, 12)


def destination_deleted(copied: Copied) -> None:
    delete(copied.destination, copied.to.topic)
    copied.expected = []
    copied.write(10, 5)


def put_back(copied: Copied, saved: list[Record], how: str) -> None:
    """Put older checkpoints back: behind the newer ones, or in a topic that is created again."""
    if how.startswith("created"):
        delete(copied.destination, checkpoint.TOPIC)
        create(copied.destination, checkpoint.TOPIC, checkpoint.PARTITIONS, checkpoint.CONFIGS)
    for record in saved if how != "created empty" else ():
        at = checkpoint.home(checkpoint.TOPIC, (record.key or b"").removesuffix(b"/owner"))
        write(copied.destination, at, [record])
