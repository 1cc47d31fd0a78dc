"""Lanes: which topics are copied together, and the catalog that keeps them together."""

from __future__ import annotations

import itertools
import json
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from relay_pipelines.orchestration import naming
from relay_pipelines.orchestration.lane import MOST_TOPICS, Lane, lanes_of, shares
from relay_pipelines.orchestration.naming import MAIN
from relay_pipelines.orchestration.topic_catalog import Catalog
from relay_pipelines.settings import Mirror


def mirror(**changes: Any) -> Mirror:
    clusters = {
        "source": {"nodes": [{"name": "a", "bootstrap_servers": ["a:1"]}]},
        "destination": {"bootstrap_servers": ["b:1"]},
    }
    return Mirror.model_validate(clusters | changes)


def by_name(lanes: list[Lane]) -> dict[str, tuple[str, ...]]:
    return {lane.name: lane.topics for lane in lanes}


def homes(lanes: list[Lane]) -> dict[str, str]:
    found = [(topic, lane.name) for lane in lanes for topic in lane.topics]
    assert len(dict(found)) == len(found), "a topic of two lanes would be copied twice"
    return dict(found)


def numbered(count: int, first: int = 0) -> list[str]:
    return [f"t{number:04d}" for number in range(first, first + count)]


BIG = {
    "big": {"topics": ["big.*"], "window": {"max_records": 5}},
    "rest": {"topics": ["x", ".*rest"]},
}


class TestLanes:
    """The topics of a mirror, by lane."""

    def test_all_topics_share_one_lane_by_default(self):
        """Each run costs the start of Spark, so one run copies a window of all topics."""
        (lane,) = lanes_of("m", mirror(), ["b", "a"])
        assert (lane.name, lane.topics, lane.takes_new) == (MAIN, ("a", "b"), True)

    def test_a_mirror_without_known_topics_has_a_lane_that_discovers_them(self):
        (lane,) = lanes_of("m", mirror(), [])
        assert (lane.topics, lane.belongs("new")) == ((), True)

    def test_topics_go_to_the_first_lane_that_matches_their_whole_name(self):
        """Others go to main, which comes first; a lane without topics exists to discover them."""
        lanes = lanes_of("m", mirror(lanes=BIG), ["x", "xx", "big1", "bigrest", "my.big"])
        assert by_name(lanes) == {
            MAIN: ("my.big", "xx"),
            "big": ("big1", "bigrest"),
            "rest": ("x",),
        }
        assert by_name(lanes_of("m", mirror(lanes=BIG), [])) == {MAIN: (), "big": (), "rest": ()}

    def test_a_lane_has_its_own_window_or_that_of_the_mirror(self):
        lanes = lanes_of("m", mirror(lanes=BIG, window={"max_records": 7}), [])
        assert [lane.window.max_records for lane in lanes] == [7, 5, 7]

    def test_topics_that_are_not_mirrored_have_no_lane(self):
        """A topic in the catalog that relay.yaml denies now has no asset any more."""
        topics = {"allow": ["a.*"], "deny": ["ab"]}
        assert homes(lanes_of("m", mirror(topics=topics), ["a", "ab", "b", "__a"])) == {"a": MAIN}

    def test_more_topics_than_a_lane_may_have_are_split(self):
        """Many assets of one op make Dagster slow; every topic is still in exactly one lane."""
        known = numbered(2 * MOST_TOPICS + 1)
        lanes = lanes_of("m", mirror(), known)
        assert [(lane.name, len(lane.topics)) for lane in lanes] == [
            (MAIN, MOST_TOPICS),
            ("main_2", MOST_TOPICS),
            ("main_3", 1),
        ]
        assert sorted(homes(lanes)) == known

    def test_a_configured_lane_is_split_as_well(self):
        """Its parts are named after it."""
        lanes = lanes_of("m", mirror(lanes={"t": {"topics": ["t.*"]}}), numbered(MOST_TOPICS + 1))
        assert {name: len(topics) for name, topics in by_name(lanes).items()} == {
            MAIN: 0,
            "t": MOST_TOPICS,
            "t_2": 1,
        }

    @pytest.mark.parametrize(
        "names", list(itertools.permutations(["a.b", "a-b", "a_b"])), ids="|".join
    )
    def test_topics_that_dagster_cannot_tell_apart_get_different_lanes(self, names):
        """Dagster replaces dots and dashes, so two outputs of one op would have the same name."""
        lanes = lanes_of("m", mirror(), ["first", *names, "last"])
        assert homes(lanes) == {
            "first": MAIN,
            names[0]: MAIN,
            names[1]: "main_2",
            names[2]: "main_3",
            "last": MAIN,
        }

    def test_a_topic_named_like_the_check_of_another_gets_a_different_lane(self):
        """Dagster names outputs of one op after both, and would refuse to load."""
        lanes = lanes_of(
            "m", mirror(), ["a.message_counts", "a", "b", "b-message-counts", "b_message_counts_2"]
        )
        assert by_name(lanes) == {
            MAIN: ("a.message_counts", "b", "b_message_counts_2"),
            "main_2": ("a", "b-message-counts"),
        }

    @pytest.mark.parametrize("before", [1, MOST_TOPICS - 1, MOST_TOPICS, MOST_TOPICS + 1])
    def test_topics_stay_in_their_lane_when_others_come(self, before):
        """Each lane numbers its windows, so a topic that moves starts a new history."""
        known = [*numbered(before, first=5000), "a.b"]
        came = [*numbered(2 * MOST_TOPICS), "a-b", "A"]
        earlier, later = (
            homes(lanes_of("m", mirror(), topics)) for topics in (known, known + came)
        )
        assert {topic: later[topic] for topic in known} == earlier

    def test_topics_stay_in_their_lane_when_others_are_denied(self):
        """They would copy a topic in two lanes, or in none, until the code location is reloaded."""
        known = [*numbered(MOST_TOPICS), "a.b", "a-b", "late"]
        some = mirror(topics={"deny": ["t000.", "a.b"]})
        earlier, later = (homes(lanes_of("m", each, known)) for each in (mirror(), some))
        assert later == {topic: earlier[topic] for topic in later}
        assert later["late"] == "main_2"

    def test_topics_stay_in_their_lane_when_a_name_is_added_to_relay_yaml(self, catalog):
        """It comes after the topics that were seen before, like any other."""
        catalog.learn("m", mirror(), ["a.b", *numbered(MOST_TOPICS - 1)])
        before, after = mirror(), mirror(topics={"allow": [".*", "a-b", "zz"]})
        earlier, later = (
            homes(lanes_of("m", each, catalog.known("m", each))) for each in (before, after)
        )
        assert later == earlier | {"a-b": "main_2", "zz": "main_2"}
        catalog.learn("m", after, ["new"])
        assert homes(lanes_of("m", after, catalog.known("m", after))) == later | {"new": "main_2"}


class TestShares:
    """Which of the lanes that are loaded copies what: relay.yaml may have others by now."""

    @pytest.mark.parametrize(
        ("loaded", "expected"),
        [
            ({MAIN, "big", "big_2"}, {MAIN: [], "big": [], "big_2": []}),
            ({MAIN, "big"}, {MAIN: [], "big": ["big_2"]}),
            ({MAIN, "gone"}, {MAIN: ["big", "big_2"]}),
        ],
        ids=["all", "a part is missing", "a lane is missing"],
    )
    def test_every_lane_is_copied_by_one_that_is_loaded(self, loaded, expected):
        """A planner can request only jobs that are loaded; no topic may have none, or two."""
        lanes = lanes_of(
            "m", mirror(lanes=BIG | {"rest": {"topics": ["-"]}}), ["a", "big.a", "big-a"]
        )
        found = shares([lane for lane in lanes if lane.name != "rest"], loaded)
        assert {
            share.lane.name: [guest.name for guest in share.guests] for share in found
        } == expected
        for topic in ("a", "big.a", "big-a", "new", "big.new"):
            assert len([share for share in found if share.belongs(topic)]) == 1


NEW = ["new", "bignew", "new.rest", "x"]


class TestBelongs:
    """Whether a lane copies a topic that may be newer than the definitions."""

    @pytest.mark.parametrize(
        "known",
        [[], ["a", "big1"], numbered(MOST_TOPICS), numbered(3 * MOST_TOPICS), ["a.b", "a-b"]],
        ids=len,
    )
    @pytest.mark.parametrize("topic", NEW)
    def test_exactly_one_lane_takes_a_new_topic(self, known, topic):
        """With no lane it would wait for the next reload; two lanes would copy it twice."""
        lanes = lanes_of("m", mirror(lanes=BIG), known)
        expected = {"new": MAIN, "bignew": "big", "new.rest": "rest", "x": "rest"}[topic]
        (taker,) = [lane.name for lane in lanes if lane.belongs(topic)]
        assert taker.partition("_")[0] == expected

    def test_known_topics_belong_where_they_are_listed(self):
        """Parts of a lane share its patterns, but not its topics."""
        known = [*numbered(MOST_TOPICS + 5), "big.a", "big-a"]
        lanes = lanes_of("m", mirror(lanes=BIG), known)
        for topic, home in homes(lanes).items():
            assert [lane.name for lane in lanes if lane.belongs(topic)] == [home]

    def test_a_topic_that_matches_two_patterns_belongs_to_the_first(self):
        """This is true for a topic that is not known yet, too."""
        lanes = lanes_of("m", mirror(lanes=BIG), [])
        assert [lane.name for lane in lanes if lane.belongs("bigrest")] == ["big"]

    @pytest.mark.parametrize("known", [[], ["a.b", "a-b"], numbered(MOST_TOPICS + 1)], ids=len)
    def test_a_new_topic_belongs_where_it_will_be_listed(self, known):
        """Otherwise it would change lanes at the next reload."""
        (taker,) = [lane.name for lane in lanes_of("m", mirror(), known) if lane.belongs("new")]
        assert homes(lanes_of("m", mirror(), [*known, "new"]))["new"] == taker


class TestKeys:
    """The names in Dagster."""

    def test_names_in_dagster_have_no_dashes(self):
        """Ops, sensors, jobs and pools cannot; asset keys and sets of windows keep the name."""
        (lane,) = lanes_of("to-eu", mirror(), [])
        assert lane.identifier == "to_eu__main"
        assert naming.group("to-eu") == "to_eu"
        assert naming.lane_job("to-eu", MAIN) == "mirror_to_eu"
        assert naming.lane_job("to-eu", "big") == "mirror_to_eu__big"
        assert naming.plans_name("to-eu", MAIN) == "to-eu/main/plans"
        assert naming.windows_name("to-eu", "a.b-c") == "to-eu/a.b-c/windows"
        assert naming.windows_asset("to-eu", MAIN).path == ["to-eu", "main", "windows"]
        assert naming.mirrored_asset("to-eu", "a.b-c").path == ["to-eu", "a.b-c"]
        assert naming.replayed_asset("m", "windows") != naming.windows_asset("m", "replays")

    def test_window_keys_sort_by_time(self):
        """Dagster shows and backfills them in this order."""
        made = [
            naming.window_key(planned_at_ms, number)
            for planned_at_ms in (0, 1_000, 1_800_000_000_000)
            for number in (0, 1, 10)
        ]
        assert made[:2] == ["1970-01-01T00:00:00Z-000", "1970-01-01T00:00:00Z-001"]
        assert made[-1] == "2027-01-15T08:00:00Z-010"
        assert made == sorted(made)
        assert naming.planned_at(made[-1]) == "2027-01-15T08:00:00Z"


@pytest.fixture
def catalog(tmp_path: Path) -> Catalog:
    return Catalog(tmp_path / "var" / "relay" / "topics.json")


class TestCatalog:
    """The topics that were seen at the sources."""

    def test_is_empty_without_a_file(self, catalog):
        """Reading does not create the file."""
        assert catalog.topics("m") == []
        assert not catalog.path.parent.exists()

    def test_keeps_the_order_in_which_topics_were_seen(self, catalog):
        """New topics are returned, sorted; others keep their place, and so their lane."""
        assert catalog.learn("m", mirror(), ["z", "b"]) == ["b", "z"]
        assert catalog.learn("m", mirror(), ["a", "z", "a"]) == ["a"]
        assert catalog.learn("m", mirror(), ["a", "b"]) == []
        assert catalog.learn("other", mirror(), ["b"]) == ["b"]
        assert Catalog(catalog.path).topics("m") == ["b", "z", "a"]
        assert catalog.topics("other") == ["b"]

    @pytest.mark.parametrize(
        "text",
        [
            "",
            "{",
            "\x00\xff",
            "[]",
            "null",
            "5",
            '"m"',
            '{"m": null}',
            '{"m": "abc"}',
            '{"m": {"a": 1}}',
        ],
    )
    def test_a_corrupt_file_counts_as_missing(self, catalog, text):
        """The next tick writes it again, and the code location must load until then."""
        catalog.path.parent.mkdir(parents=True)
        catalog.path.write_bytes(text.encode("latin-1"))
        assert catalog.topics("m") == []
        assert catalog.learn("m", mirror(), ["a"]) == ["a"]
        assert catalog.topics("m") == ["a"]

    def test_a_corrupt_mirror_does_not_affect_others(self, catalog):
        catalog.path.parent.mkdir(parents=True)
        catalog.path.write_text('{"m": null, "other": ["b"]}')
        assert catalog.learn("m", mirror(), ["a"]) == ["a"]
        assert json.loads(catalog.path.read_text()) == {"other": ["b"], "m": ["a"]}

    def test_planners_that_learn_at_the_same_time_lose_nothing(self, catalog):
        """Sensors run in threads of one process, and runs in other processes."""
        threads, each = 8, 10
        together = threading.Barrier(threads)

        def learn(number: int) -> None:
            own = Catalog(catalog.path)
            together.wait()
            for topic in range(each):
                own.learn(f"m{number % 3}", mirror(), [f"t{number}.{topic}"])

        with ThreadPoolExecutor(threads) as pool:
            list(pool.map(learn, range(threads)))
        learned = {topic for name in range(3) for topic in catalog.topics(f"m{name}")}
        assert learned == {
            f"t{number}.{topic}" for number in range(threads) for topic in range(each)
        }

    def test_literal_topics_are_known_before_they_are_seen(self, catalog):
        """relay.yaml names them; a name that is added later moves no topic to another lane."""
        catalog.learn("m", mirror(), ["seen", "a.b"])
        allow = [r"z", r"a\.b", ".*"]
        assert catalog.known("m", mirror(topics={"allow": allow})) == ["a.b", "seen", "z"]

    def test_literal_topics_stay_in_their_lane_when_planners_learn_them(self, catalog):
        """The planners of two lanes tick in any order, and each adds the topics of its own lane."""
        configured = mirror(topics={"allow": ["b-c", r"b\.c", "a"]})
        before = lanes_of("m", configured, catalog.known("m", configured))
        for lane in reversed(before):
            catalog.learn("m", configured, lane.topics)
        assert homes(lanes_of("m", configured, catalog.known("m", configured))) == homes(before)

    def test_is_next_to_the_configuration(self, tmp_path, monkeypatch):
        """RELAY_CATALOG overrides that; the configuration's path may be relative."""
        monkeypatch.delenv("RELAY_CATALOG", raising=False)
        monkeypatch.chdir(tmp_path)
        assert Catalog.beside(Path("relay.yaml")).path == tmp_path / "var" / "relay" / "topics.json"
        monkeypatch.setenv("RELAY_CATALOG", "/elsewhere/topics.json")
        assert Catalog.beside(Path("relay.yaml")).path == Path("/elsewhere/topics.json")


def test_checks_of_expectations_have_names_of_their_own() -> None:
    """Dagster gives the check of `a` the same name as a topic `a_keys_not_null`."""
    mirror = Mirror.model_validate(
        {
            "source": {"nodes": [{"name": "a", "bootstrap_servers": "a:1"}]},
            "destination": {"bootstrap_servers": "b:1"},
            "expectations": ["keys_not_null"],
        }
    )
    lanes = lanes_of("m", mirror, ["a", "a.keys-not-null", "b"])
    assert [lane.topics for lane in lanes] == [("a", "b"), ("a.keys-not-null",)]
