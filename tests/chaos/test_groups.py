"""A short version of `make chaos-groups`."""

from pathlib import Path

from tests.chaos.groups.sides import SIDES
from tests.chaos.groups.storm import storm

KILLS, MINUTES, SEED = 8, 10, 5


def test_groups_move_between_clusters_that_are_mirrored_to_each_other(tmp_path: Path) -> None:
    """Each side has the other's records once, no copy returns, and groups read each once."""
    report = storm(KILLS, MINUTES, SEED, tmp_path, print)
    assert {name: each for name, each in report.verdicts.items() if not each.good} == {}
    assert report.faults == []
    # and there was something to survive: also a broker, and a way there and back
    assert report.killed.total() >= KILLS
    assert report.moves >= len(SIDES)
    assert all(verdict.expected for verdict in report.verdicts.values())
