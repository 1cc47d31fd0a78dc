"""The page of a mirror, without clusters: its states, what is held back, and how it reads."""

import re
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import pytest

from relay_pipelines import errors
from relay_pipelines.model import BY_DRIVER, Checkpoint, Cluster, OffsetRange, TopicPartition
from relay_pipelines.output import json_output, page_view
from relay_pipelines.page.held import GUARDS, OTHERS, STATES, State, of_guard
from relay_pipelines.page.look import Look
from relay_pipelines.page.page import page_of, page_unreachable
from relay_pipelines.plan.blockers import Facts
from relay_pipelines.plan.positions import Position
from relay_pipelines.plan.topic_selection import TopicDecision
from relay_pipelines.plan.upstreams import UpstreamSelection, UpstreamState
from relay_pipelines.protocol.open_transactions import OpenTransaction
from relay_pipelines.settings import Mirror
from relay_pipelines.sides import Sides
from relay_pipelines.snapshot.cluster_snapshot import Selected
from relay_pipelines.snapshot.lag import PartitionLag
from scripts import reference
from tests.support.config_files import SIDES
from tests.support.doc_blocks import ROOT
from tests.support.run_plans import snapshot_of, with_checkpoints
from tests.support.tables import titled
from tests.support.wordings import Wordings

NOW = 10_000_000
MIRROR = Mirror.model_validate({**SIDES, "window": {"lag_target": "10m", "every": "5s"}})


def at(topic: str, partition: int = 0) -> TopicPartition:
    return TopicPartition(topic, partition)


def look_at(
    positions: list[Position],
    ages: Mapping[str, float | None] | None = None,
    committed: Mapping[str, float] | None = None,
    hidden: list[OpenTransaction] | None = None,
    **changes: Any,
) -> Look:
    """A look; `ages` and `committed`: seconds by topic, of the oldest record, since a commit."""
    committed = committed or {}
    lags = {
        each.topic_partition: PartitionLag(
            each.lag, (ages or {}).get(each.topic_partition.topic, 1.0) if each.lag else 0.0
        )
        for each in positions
    }
    checkpoints = {
        position.topic_partition: replace(
            Checkpoint.initial("m", position.topic_partition, position.topic_partition, 0),
            run_id="run-1",
            upstream="one",
            committed_at_ms=round(NOW - 1000 * committed[position.topic_partition.topic]),
        )
        for position in positions
        if position.topic_partition.topic in committed
    }
    topics = {each.topic_partition.topic: each.topic_partition.topic for each in positions}
    decisions = [TopicDecision(topic, included=True, why="") for topic in topics]
    more = {"selected": Selected(decisions)} | changes
    snapshot = replace(snapshot_of("m", "one", topics, positions, MIRROR, checkpoints), **more)
    window_of = snapshot.sides.mirror.window_of
    late = [
        place
        for place, lag in lags.items()
        if (lag.seconds or 0.0) * 1000 > window_of(place.topic).lag_target
    ]
    return Look(snapshot, lags, 0, NOW, hidden or [], late)


def copied(topic: str) -> Position:
    return Position(at(topic), 0, 100, 100)


def waiting(topic: str) -> Position:
    return Position(at(topic), 0, 100, 40)


def recreated(topic: str, partition: int = 0) -> Position:
    return Position(at(topic, partition), 0, 5, 108, recreated=True)


QUEUED, FAILING = {"a": 700}, {"a": 800, "b": 3}
LATE, OLD = {"a": 700, "b": 700}, {"a": 5_000, "b": 5_000}
NOT_COPIED, RECREATED = ["NotCopied a"], ["TopicRecreatedError a"]
STATES_FOUND = [
    ("nothing waits", [copied("a")], {}, {"a": 7_200}, State.UP_TO_DATE, []),
    ("a commit a moment ago", [waiting("a")], {"a": 300}, {"a": 4}, State.COPYING, []),
    ("an idle topic just got a record", [waiting("a")], {"a": 2}, {"a": 999}, State.COPYING, []),
    ("nobody commits", [waiting("a")], {"a": 90}, {"a": 80}, State.NOT_COPYING, []),
    ("nobody ever has", [waiting("a")], {"a": None}, {}, State.NOT_COPYING, []),
    ("nobody ever has, and it is new", [waiting("a")], {"a": 2}, {}, State.NOT_COPYING, []),
    ("a topic is new", [waiting("a"), copied("b")], {"a": 2}, {"b": 30}, State.COPYING, []),
    ("too slow", [waiting("a")], {"a": 601}, {"a": 4}, State.BEHIND, []),
    ("one fails", [waiting("a"), copied("b")], QUEUED, FAILING, State.UP_TO_DATE, NOT_COPIED),
    ("... another is late", [waiting("a"), waiting("b")], LATE, FAILING, State.BEHIND, NOT_COPIED),
    ("a guard holds one", [recreated("a"), copied("b")], OLD, OLD, State.UP_TO_DATE, RECREATED),
    ("a guard holds all", [recreated("a")], {}, {"a": 9}, State.HELD_BACK, RECREATED),
    ("nothing is selected", [], {}, {}, State.NO_TOPIC, []),
]


@titled("positions, ages, committed, state, held", STATES_FOUND)
def test_the_state(positions, ages, committed, state, held) -> None:
    """It is that of what nothing holds back; a mirror copies if somebody commits."""
    page = page_of(look_at(positions, ages, committed))
    assert page.state is state
    assert [f"{each.reason} {' '.join(each.topics)}" for each in page.held] == held


def test_what_no_cluster_says_is_unknown() -> None:
    """An outage, a wrong configuration, or upstreams in quarantine; so each state is found."""
    for error, state, command in (
        (errors.SourceError("no answer"), State.UNKNOWN, "relay check --mirror m"),
        (errors.ConfigError("a loop"), State.REFUSED, "relay check --mirror m"),
        (errors.DivergedUpstreamError("others"), State.DIVERGED, "relay upstreams --mirror m"),
    ):
        page = page_unreachable("m", error, NOW, NOW - 60_000)
        assert (page.state, page.command) == (state, command)
    away_states = {State.UNKNOWN, State.REFUSED, State.DIVERGED}
    assert {case[4] for case in STATES_FOUND} | away_states == set(State)


def test_who_is_not_copied_and_who_copies() -> None:
    """Nobody is held back beside others if all wait; what is known is said, not guessed."""
    window = MIRROR.window.model_copy(update={"lag_target": 30_000})
    short: dict[str, Any] = {"sides": Sides("m", MIRROR.model_copy(update={"window": window}))}
    late = look_at([waiting("a"), waiting("b")], {"a": 40, "b": 45}, {"a": 41, "b": 42}, **short)
    page = page_of(late)
    assert (page.state, page.held) == (State.BEHIND, ())
    alone = page_of(look_at([waiting("a")], {"a": 40}, {"a": 41}, **short))
    assert (alone.state, alone.held) == (State.BEHIND, ())
    look = look_at([waiting("a"), copied("b")], {"a": 700}, {"a": 800, "b": 3})
    (held,) = page_of(look).held
    assert held.what == (
        "nothing of it was committed for longer than its lag target; others are copied"
    )
    look = look_at([waiting("a")], {"a": 90}, {"a": 1})
    moved = {tp: replace(each, run_id=BY_DRIVER) for tp, each in look.snapshot.checkpoints.items()}
    page = page_of(replace(look, snapshot=with_checkpoints(look.snapshot, moved)))
    assert (page.state, page.copier) == (State.NOT_COPYING, None)


class TestHeld:
    """What is held back."""

    def test_reasons(self) -> None:
        """One item per topic and reason, or for all topics; losses come first; sums of lags."""
        look = look_at([recreated("a"), recreated("a", 1), recreated("b")], {"a": 30})
        first, second = page_of(look).held
        assert first.topic_partitions == (at("a"), at("a", 1))
        assert (first.lag, second.topics) == (PartitionLag(10, 30), ["b"])
        assert first.command == "relay ledger --mirror m --topic a --last 5"
        lost = list(map(copied, "abcde"))
        (held,) = page_of(look_at(lost, facts=Facts(is_ledger_lost=True))).held
        assert (held.reason, held.command) == ("LedgerLostError", "relay restore --mirror m")
        where = page_view.where(held)
        assert where == "a, b, c and 2 topics more (5 topic-partitions, nothing waits)"
        unknown = {at("a"): errors.SourceError("it has no leader")}
        page = page_of(look_at([copied("b"), recreated("z")], facts=Facts(unknown=unknown)))
        assert [each.reason for each in page.held] == ["TopicRecreatedError", "SourceError"]
        assert page.held[1].lag is None
        assert page.lag.records == 5
        refused = {"a": errors.ConfigError("another mirror copies there").of(at("a"))}
        positions = [waiting("a"), Position(at("a", 1), 0, 9, 0), copied("b")]
        (held,) = page_of(look_at(positions, facts=Facts(refused=refused))).held
        assert held.topic_partitions == (at("a"), at("a", 1))

    def test_transactions(self) -> None:
        """Only what is open for longer than the target, or than a copy's own may be."""
        since = NOW - 700_000
        opened = replace(OPENED, open_since_ms=since)
        fresh = replace(copied("b"), high_watermark=150, open_since_ms=NOW - 9_000)
        hidden = [
            OpenTransaction(OffsetRange(at("a"), 5, 9), 7, "x", since),
            OpenTransaction(OffsetRange(at("b"), 5, 9), 7, "x", NOW - 9_000),
        ]
        first, second = page_of(look_at([opened, fresh], hidden=hidden)).held
        assert (first.reason, first.lag) == ("OpenTransaction", PartitionLag(50, 700))
        assert "--bootstrap-server a:1 find-hanging --topic a --partition 0" in first.command
        assert (second.reason, second.lag) == ("HiddenCopies", PartitionLag(4, 700))
        assert "--bootstrap-server 127.0.0.1:1 find-hanging" in second.command

    @pytest.mark.parametrize(
        ("producer", "then"),
        [
            ("x", "kafka-transactions.sh --bootstrap-server 127.0.0.1:1 abort"),
            ("", "kafka-transactions.sh --bootstrap-server 127.0.0.1:1 abort"),
            ("relay.m.main/1", "the page 'RelayHiddenCopies' of the documentation says how to end"),
        ],
    )
    def test_a_transaction_of_a_mirror_is_not_to_be_aborted(self, producer: str, then: str) -> None:
        """It may have been committed elsewhere, with the checkpoint that names its records."""
        hidden = [OpenTransaction(OffsetRange(at("b"), 5, 9), 7, producer, NOW - 700_000)]
        (held,) = page_of(look_at([copied("b")], hidden=hidden)).held
        assert then in held.remedy


OPENED = replace(copied("a"), high_watermark=150, open_since_ms=NOW - 9_000)
READ, SILENT = Cluster("one", ("a:1",)), Cluster("two", ())
NO_SECOND = UpstreamSelection(
    (UpstreamState(READ), UpstreamState(SILENT, unreadable="silent")), "one", ""
)
UP_TO_DATE: Any = [copied("a")], {}, {"a": 1}
PAGES = {
    "a healthy mirror": page_of(look_at([waiting("a")], {"a": 4.0}, {"a": 3.0})),
    "an open transaction": page_of(look_at([OPENED], {}, {"a": 3})),
    "nobody copies yet": page_of(look_at([waiting("a")], {"a": 90})),
    "an upstream that is behind": replace(page_of(look_at(*UP_TO_DATE)), upstream_behind=1_020),
    "what is held back stands first": page_of(
        look_at([recreated("a"), waiting("b")], {"a": 30}, {"b": 3})
    ),
    "an upstream cannot be read": page_of(look_at(*UP_TO_DATE, selection=NO_SECOND)),
    "an outage has no numbers": page_unreachable("m", errors.SourceError("no answer"), NOW, 0),
}


@pytest.mark.parametrize("title", PAGES)
def test_how_a_page_reads(wordings: Wordings, title: str) -> None:
    """Every number, name and command of `relay status` is on Dagster's page, too."""
    wordings.check(f"page: {title}", "\n".join(page_view.text(PAGES[title], "relay -c my.yaml")))
    shown = page_view.markdown(PAGES[title])
    _, *lines = page_view.text(PAGES[title])
    assert [line for line in lines if line[13:] not in shown] == []


def test_the_document_has_the_same_facts() -> None:
    """Of an outage nothing: zero records would say that nothing waits, and nobody knows."""
    document = json_output.page(PAGES["an outage has no numbers"])
    numbers = ("lag_records", "lag_seconds", "open_transaction_records", "upstream_behind")
    assert [document[key] for key in numbers] == [None] * 4
    document = json_output.page(PAGES["what is held back stands first"])
    (held,) = document["held"]
    found = [held[key] for key in ("topic_partitions", "lag_records", "lag_seconds")]
    assert found == [["a-0"], 5, 30]
    assert (document["state"], document["lag_records"]) == ("copying", 65)
    assert document["copied_by"]["committed_at"] == "1970-01-01T02:46:37Z"
    (note,) = map(str, PAGES["an upstream cannot be read"].findings)
    assert note == "upstream two cannot be read now: silent; see `relay upstreams`"


class TestRunbooks:
    """docs/runbooks explains all that a page can show."""

    def test_every_guard_has_a_section(self) -> None:
        """One without, or a section that nothing shows, fails here; as do errors that ask."""
        page = (RUNBOOKS / "RelayGuard.md").read_text()
        sections = set(re.findall(r"^### (\w+)$", page, re.MULTILINE))
        assert sections == {kind.__name__ for kind in GUARDS}
        asking = {kind for kind in reference.all_errors() if kind.exit_code == 3}
        asking -= {errors.DataLossError, errors.DivergedUpstreamError}
        assert len(asking) > 5
        for kind in (*asking, errors.PermissionDeniedError, errors.SourceError):
            advice = of_guard(kind("what"))
            assert (advice.runbook, advice.section) == ("RelayGuard", kind.__name__)
        assert of_guard(errors.RelayError("what")).command == GUARDS[errors.RelayError]

    @pytest.mark.parametrize("name", [*STATES, *OTHERS])
    def test_every_state_has_a_page(self, name: str) -> None:
        """The table of states names each, with its page; those without one need nothing."""
        found = OTHERS.get(name) or STATES[State(name)]
        named = re.findall(rf"^\| `{name}` \| .* \| (.*) \|$", CLI, re.MULTILINE)
        page = found.runbook and f"[{found.runbook}](runbooks/{found.runbook}.md)"
        assert named == [page or "nothing to do"]
        assert not found.runbook or (RUNBOOKS / f"{found.runbook}.md").exists()
        assert bool(found.command) == bool(page) or name == State.HELD_BACK


RUNBOOKS = ROOT / "docs" / "runbooks"
CLI = (ROOT / "docs" / "cli.md").read_text()
