"""A short version of `make chaos`, and tests of its comparison."""

from itertools import islice
from pathlib import Path
from typing import Any

import pytest

from relay_pipelines.model import TopicPartition
from relay_pipelines.protocol.clock import SystemClock
from tests.chaos.storm.faults import Kind, Target, scenario
from tests.chaos.storm.storm import storm
from tests.chaos.storm.verdict import Verdict, judge, longest_stall
from tests.support.independent import Record

MINUTES, TASKS = 0.4, 10
"""Every kind of fault is among the first three disruptions of the seed, which take 15 s."""
SEED = 5
AT = TopicPartition("topic", 0)


def test_chaos(local_session: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Records are copied once and correctly while tasks, Spark workers and brokers are killed."""
    monkeypatch.setattr("tests.chaos.storm.storm._TASKS_PER_RUN", TASKS)  # the storm is shorter
    report = storm(MINUTES, 0, SEED, lambda: local_session, tmp_path, SystemClock(), print)
    assert [(at, verdict) for at, verdict in report.verdicts.items() if not verdict.good] == []
    assert (report.ledger, report.held_back, report.tally.refusals) == ("", [], [])
    # and there were faults of every kind
    assert min(report.struck.values()) >= 1, report.struck
    assert report.struck["task killed"] > 5
    assert report.total(lambda verdict: verdict.expected) > 5_000
    # how long it stood still depends on what else runs: a kill every three seconds can outrun the
    # start of a task. That it moves again within minutes, the storm itself demands
    assert report.stall.seconds > 0


def numbered(*numbers: int) -> list[Record]:
    return [Record(None, b"%d" % number) for number in numbers]


@pytest.mark.parametrize(
    ("arrived", "verdict"),
    [
        (numbered(0, 1, 2, 3), Verdict(4, 4, lost=0, doubled=0, foreign=0, disordered=0)),
        (numbered(0, 1, 3), Verdict(4, 3, lost=1, doubled=0, foreign=0, disordered=0)),
        (numbered(0, 1, 0, 1, 2, 3), Verdict(4, 6, lost=0, doubled=2, foreign=0, disordered=0)),
        (numbered(0, 2, 1, 3), Verdict(4, 4, lost=0, doubled=0, foreign=0, disordered=1)),
        (numbered(0, 1, 9, 3), Verdict(4, 4, lost=1, doubled=0, foreign=1, disordered=0)),
        ([], Verdict(4, 0, lost=4, doubled=0, foreign=0, disordered=0)),
    ],
    ids=["all as it was", "one lost", "a chunk twice", "two swapped", "one altered", "nothing"],
)
def test_the_comparison(arrived: list[Record], verdict: Verdict) -> None:
    """Lost, doubled, altered and disordered records are each counted as such."""
    assert judge(numbered(0, 1, 2, 3), arrived) == verdict
    assert verdict.good == (arrived == numbered(0, 1, 2, 3))


def test_the_longest_stall() -> None:
    """A stall begins with the last commit or the first waiting record, whichever is later."""
    source = {
        AT: {
            at: Record(None, b"%d" % ms, timestamp=(1, ms))
            for at, ms in enumerate((0, 1_000, 9_000, 9_100))
        }
    }
    where = {"topic": AT.topic, "partition": AT.partition}
    commits = [(0, 5_000), (1, 6_000), (2, 12_000), (3, 12_500)]
    entries = [
        {"source": {"topic_partition": where, "start": start}, "committed_at_ms": ms}
        for start, ms in commits
    ]
    stall = longest_stall(entries, source)
    assert (stall.seconds, stall.topic_partition, stall.ended_at_ms) == (3.0, AT, 12_000)


def test_a_seed_determines_the_scenario() -> None:
    """A seed determines the disruptions, and every kind of fault soon hits every target."""
    disruptions = list(islice(scenario(SEED), 15))
    assert disruptions == list(islice(scenario(SEED), 15))
    assert disruptions != list(islice(scenario(SEED + 1), 15))
    struck = {
        (fault.target, fault.kind) for disruption in disruptions for fault in disruption.faults
    }
    assert struck == {(target, kind) for target in Target for kind in Kind}
