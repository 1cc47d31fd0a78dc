"""A range with a list of kept offsets: a replay that reads copies between records of others."""

from __future__ import annotations

from dataclasses import replace
from typing import Any
from unittest.mock import patch

import pytest

from relay_pipelines.copy import transaction
from relay_pipelines.copy.failpoints import Failpoint
from relay_pipelines.errors import DestinationError
from relay_pipelines.model import Skipped
from tests.copying import copy_as_it_is, copy_as_kept, copy_as_rows
from tests.support.copies_in_memory import (
    AT,
    Clock,
    checkpoints_of,
    destination,
    filled,
    job,
    served,
    whole,
)
from tests.support.filled import chains

KEPT = ((1, 5), (6, 10), (12, 14))


@pytest.mark.parametrize("way", [copy_as_it_is, copy_as_kept, copy_as_rows])
@pytest.mark.parametrize("point", [Failpoint.BEFORE_END_TXN, Failpoint.AFTER_END_TXN])
def test_only_kept_offsets_are_copied_once(way: Any, point: Failpoint) -> None:
    """Also if the first attempt fails around a commit; the ledger counts the others as filtered."""
    source, copies, failed = filled((0, 5), (5, 10), (10, 15)), destination("a"), []

    def failpoint(reached: Failpoint) -> None:
        if reached is point and not failed:
            failed.append(point)
            raise DestinationError("the connection was lost")

    where = "" if way is copy_as_it_is else "true"
    wanted = replace(whole("a", 15, where=where), kept=KEPT)
    with patch.object(transaction, "failpoint", failpoint):
        for _ in range(3):  # rows are planned again after a failure, as the driver does
            known = [None, *checkpoints_of(copies)][-1]
            with served(source=source, destination=copies):
                list(way(job(chunk_bytes=1), [replace(wanted, checkpoint=known)], Clock()))
    values = [record.value for record in source.logs["a"].committed()]
    copied = [record.value for record in copies.logs["a"].committed()]
    assert copied == [values[offset] for start, end in KEPT for offset in range(start, end)]
    entries = [record.entry for record in chains(copies)[AT].records]
    assert sum(entry.skipped.get(Skipped.FILTERED, 0) for entry in entries) == 15 - len(copied)
    assert (entries[-1].source.end, len(failed)) == (15, 1)
