"""The chaos run of `make chaos`, shorter; and whether its judgement sees what it is there to see."""

from __future__ import annotations

from itertools import islice
from pathlib import Path
from typing import Any

import pytest

from relay_pipelines.model import TopicPartition
from relay_pipelines.protocol.clock import SystemClock
from tests.chaos.storm.faults import Kind, Target, story
from tests.chaos.storm.storm import storm
from tests.chaos.storm.verdict import Verdict, judge, longest_stall
from tests.support.independent import Record

MINUTES = 1
SEED = 5
AT = TopicPartition("topic", 0)


@pytest.mark.timeout(900)
def test_chaos(local_session: Any, tmp_path: Path) -> None:
    """Tasks, Spark's workers and brokers are killed while records arrive: all are copied once, as their topic is to be copied."""
    report = storm(MINUTES, 0, SEED, lambda: local_session, tmp_path, SystemClock(), print)
    assert [(at, one) for at, one in report.verdicts.items() if not one.good] == []
    assert (report.ledger, report.held_back, report.tally.refusals) == ("", [], [])
    # and it was a storm
    assert min(report.struck.values()) >= 1, report.struck
    assert report.struck["task killed"] > 20
    assert report.total(lambda one: one.expected) > 5_000
    assert 0 < report.stall.seconds < 120


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
def test_the_judgement(arrived: list[Record], verdict: Verdict) -> None:
    """What is lost, doubled, altered or out of order is counted as that, and as nothing else."""
    assert judge(numbered(0, 1, 2, 3), arrived) == verdict
    assert verdict.good == (arrived == numbered(0, 1, 2, 3))


def test_the_longest_stall() -> None:
    """It lasts from the last commit, or from the first record waiting if that came later; the first commit begins the count."""
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


def test_the_story_is_told_again() -> None:
    """The same seed draws the same acts, another seed others; every kind of fault strikes every target before long."""
    acts = list(islice(story(SEED), 15))
    assert acts == list(islice(story(SEED), 15))
    assert acts != list(islice(story(SEED + 1), 15))
    struck = {(fault.target, fault.kind) for act in acts for fault in act.faults}
    assert struck == {(target, kind) for target in Target for kind in Kind}
