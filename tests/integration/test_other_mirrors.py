"""What other mirrors have made is compared as an independent reader sees it.

Their binaries cannot be installed from a registry: environment variables name them, as for the
benchmark.
"""

import uuid
from collections import Counter
from pathlib import Path
from zlib import crc32

import pytest

from benchmarks.clusters import scan
from benchmarks.contenders.other_mirrors import KafRelay, OtherMirror, TopicMirror
from benchmarks.inputs import Input
from benchmarks.values import Case
from relay_pipelines.compare.pairs import PairResult
from relay_pipelines.compare.request import Align
from relay_pipelines.model import TopicPartition
from tests.copying import KEPT, Clusters, write_transaction
from tests.support import independent
from tests.support.comparing import compared, numbered
from tests.support.independent import records_of
from tests.support.odd_records import ODD

RECORDS = [*numbered(300), *ODD]
ABORTED = numbered(3, 1_000)


def _mirrored(sides: Clusters, mirror: OtherMirror) -> tuple[str, str]:
    """Let it copy two partitions, one with an aborted transaction, and return both topics."""
    if mirror.missing:
        pytest.skip(mirror.missing)
    attempt, topic = uuid.uuid4().hex[:8], f"mirrored-{uuid.uuid4().hex[:8]}"
    for cluster, name in zip(sides, (topic, f"{attempt}.{topic}"), strict=True):
        independent.create(cluster, name, 2, KEPT)
    tps = [TopicPartition(topic, number) for number in range(2)]
    write_transaction(sides[0], tps[1], ABORTED, commit=False)
    for tp in tps:
        some = [each for each in RECORDS if crc32(each.key or b"") % 2 == tp.partition]
        independent.write(sides[0], tp, some)
    given = Input(topic, topic, len(RECORDS), 100, 0)
    case = Case(attempt, *sides, topic, given, tuple(scan(sides[0], tps)), 120.0)
    cost = mirror.copy(case)
    assert cost.error == ""
    return topic, f"{attempt}.{topic}"


def _found(sides: Clusters, source: str, destination: str) -> PairResult:
    """Compare, and see that the numbers are those of both multisets."""
    (found,) = compared(sides, source, rename=((source, destination),), align=Align.KEY).results
    here, there = (
        Counter(
            record
            for number in range(2)
            for record in records_of(sides[side], TopicPartition(topic, number))
        )
        for side, topic in enumerate((source, destination))
    )
    numbers = found.numbers
    assert (found.error, found.not_compared) == ("", {})
    assert numbers["missing"] + numbers["changed"] == (here - there).total()
    added = numbers["extra"] + numbers["duplicated"] + numbers["changed"]
    assert added == (there - here).total()
    assert found.same + numbers["out of order"] == (here & there).total()
    return found


def test_topic_mirror(sides: Clusters, tmp_path: Path) -> None:
    """It keeps records, but not partitions; and it copies aborted ones."""
    found = _found(sides, *_mirrored(sides, TopicMirror(tmp_path)))
    assert found.numbers == {"extra": len(ABORTED)}
    assert found.same == len(RECORDS)


def test_kaf_relay(sides: Clusters, tmp_path: Path) -> None:
    """It puts its own time into each record, and a header with the old one."""
    found = _found(sides, *_mirrored(sides, KafRelay(tmp_path)))
    assert found.same == 0
    assert found.numbers["changed"] >= 300
    assert set(found.changed) == {"timestamp, headers"}
    assert found.added == {"_t": found.numbers["changed"]}
