"""Lanes: which topics are copied together, and the catalog that keeps them together."""

import copy
import json
import logging
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
import yaml

from relay_pipelines.orchestration import naming
from relay_pipelines.orchestration.lane import Lane, lanes_of, ops
from relay_pipelines.orchestration.naming import MAIN
from relay_pipelines.orchestration.topic_catalog import Catalog
from relay_pipelines.resources import KafkaResource
from relay_pipelines.settings import Mirror
from relay_pipelines.windows.config_watch import ConfigWatch
from tests.support.config_files import SIDES


def mirror(**changes: Any) -> Mirror:
    return Mirror.model_validate(SIDES | changes)


def named(lanes: list[Lane]) -> dict[str, tuple[str, ...]]:
    return {lane.name: lane.topics for lane in lanes}


def homes(lanes: list[Lane]) -> dict[str, str]:
    found = [(topic, lane.name) for lane in lanes for topic in lane.topics]
    assert len(dict(found)) == len(found), "a topic of two lanes would be copied twice"
    return dict(found)


def numbered(count: int, first: int = 0) -> list[str]:
    return [f"t{number:04d}" for number in range(first, first + count)]


CLASHES = ["a.b", "a-b", "b.b", "b-b"]
BIG = {"big": {"topics": ["big.*"], "window": {"max_records": 5}}}
BIG |= {"rest": {"topics": ["x", ".*rest"]}}


class TestLanes:
    """The topics of a mirror, by lane."""

    def test_topics_share_one_lane_by_default(self):
        """Each run costs the start of Spark; a mirror without known topics discovers them."""
        (lane,) = lanes_of("m", mirror(), ["b", "a"])
        assert (lane.name, lane.topics) == (MAIN, ("a", "b"))
        (lane,) = lanes_of("m", mirror(), [])
        assert (lane.topics, lane.belongs("new")) == ((), True)

    def test_topics_go_to_the_first_lane_that_matches_their_whole_name(self):
        """Others go to main, which comes first; a lane without topics exists to discover them."""
        lanes = lanes_of("m", mirror(lanes=BIG), ["x", "xx", "big1", "bigrest", "my.big"])
        assert named(lanes) == {MAIN: ("my.big", "xx"), "big": ("big1", "bigrest"), "rest": ("x",)}
        assert named(lanes_of("m", mirror(lanes=BIG), [])) == {MAIN: (), "big": (), "rest": ()}
        lanes = lanes_of("m", mirror(lanes=BIG, window={"max_records": 7}), [])
        assert [lane.window.max_records for lane in lanes] == [7, 5, 7]

    def test_a_topic_joins_its_lane_whatever_else_is_known(self):
        """Many topics, and those alike for Dagster, share one; a denied one has no lane."""
        topics = {"allow": ["a.*"], "deny": ["ab"]}
        assert homes(lanes_of("m", mirror(topics=topics), ["a", "ab", "b", "__a"])) == {"a": MAIN}
        known = [*numbered(2_000), "a.b", "a-b", "big.a", "big-a"]
        lanes = lanes_of("m", mirror(lanes=BIG), known)
        assert [lane.name for lane in lanes] == [MAIN, "big", "rest"]
        assert homes(lanes) == {name: "big" if name.startswith("big") else MAIN for name in known}


class TestOps:
    """How the assets of a lane are divided among ops of Dagster."""

    @pytest.mark.parametrize(
        ("topics", "expected"),
        [
            ([], []),
            (["b", "a"], [["a", "b"]]),
            (numbered(501), [numbered(250), numbered(250, 250), numbered(1, 500)]),
            # Dagster replaces dots and dashes, so two outputs of one op would have the same name
            (["a.b", "a-b", "a_b", "z"], [["a-b", "z"], ["a.b"], ["a_b"]]),
            # Dagster names outputs of one op after topics and checks, and would refuse to load
            (["a.message_counts", "a", "b"], [["a", "b"], ["a.message_counts"]]),
        ],
        ids=["none", "few", "many", "alike", "like a check"],
    )
    def test_each_topic_is_in_one(self, topics, expected):
        (lane,) = lanes_of("m", mirror(), topics)
        found = dict(ops("window", lane, mirror()))
        assert [*found.values()] == expected
        names = ["window_m__main", "window2_m__main", "window3_m__main"]
        assert [*found] == names[: len(expected)]

    def test_no_lane_has_the_name_of_an_op_of_another(self):
        """A lane may be called `main_2`, and a mirror, too."""
        found = mirror(lanes={"main_2": {"topics": ["b.*"]}})
        lanes = [lane for of in ("m", "m__main", "m_2") for lane in lanes_of(of, found, CLASHES)]
        names = [op for lane in lanes for op, _ in ops("window", lane, mirror())]
        assert len(names) == len(set(names)) == 12


class TestLoaded:
    """Which of the lanes that are loaded copies what: relay.yaml may have others by now."""

    @pytest.mark.parametrize(
        ("loaded", "expected"),
        [
            pytest.param({MAIN, "big", "rest"}, {"x": "rest", "big.rest": "big"}, id="all"),
            pytest.param({MAIN, "big"}, {"x": MAIN, "big.rest": "big"}, id="the second is missing"),
            pytest.param({MAIN, "rest"}, {"x": "rest", "big.rest": "rest"}, id="the first"),
            pytest.param({MAIN, "gone"}, {"x": MAIN, "big.rest": MAIN}, id="all but main"),
        ],
    )
    def test_every_topic_is_copied_by_one_that_is_loaded(self, loaded, expected):
        """A planner can request only jobs that are loaded; no topic may have none, or two."""
        lanes = lanes_of("m", mirror(lanes=BIG), expected, only=loaded)
        assert homes(lanes) == expected
        for topic in (*expected, "a", "new", "big.new", "new.rest"):
            assert len([lane for lane in lanes if lane.belongs(topic)]) == 1

    def test_a_run_copies_what_it_was_told(self):
        """Whatever its code location has loaded; one that was told nothing has what is loaded."""
        before, _ = lanes_of("m", mirror(lanes=BIG), [], only={MAIN, "rest"})
        main, big, rest = lanes_of("m", mirror(lanes=BIG), [])
        assert [lane.with_config(lane.op_config) for lane in (before, main, big, rest)] == [
            *(before, main, big, rest)
        ]
        assert main.with_config(before.op_config) == before
        assert (main.with_config({}), main.belongs("big"), before.belongs("big")) == (
            main,
            False,
            True,
        )


NEW = {"new": MAIN, "bignew": "big", "new.rest": "rest", "x": "rest", "bigrest": "big"}


@pytest.mark.parametrize("known", [[], ["a", "big1"], ["a.b", "a-b"]], ids=len)
@pytest.mark.parametrize(("topic", "expected"), NEW.items())
def test_exactly_one_lane_takes_a_new_topic(known, topic, expected):
    """It is the one that will list it after the next loading; of two patterns, the first."""
    lanes = lanes_of("m", mirror(lanes=BIG), known)
    assert [lane.name for lane in lanes if lane.belongs(topic)] == [expected]
    assert homes(lanes_of("m", mirror(lanes=BIG), [*known, topic]))[topic] == expected


def test_keys_of_windows_sort_by_time():
    """As they are shown. Other names in Dagster: test_definitions.py."""
    assert naming.replayed_asset("m", "windows") != naming.windows_asset("m", "replays")
    times = (0, 1_000, 1_800_000_000_000)
    made = [naming.window_key(at_ms, number) for at_ms in times for number in (0, 1, 10)]
    assert made[:2] == ["1970-01-01T00:00:00Z-000", "1970-01-01T00:00:00Z-001"]
    assert made[-1] == "2027-01-15T08:00:00Z-010"
    assert made == sorted(made)
    assert naming.planned_at(made[-1]) == "2027-01-15T08:00:00Z"


@pytest.fixture
def catalog(tmp_path: Path) -> Catalog:
    return Catalog(tmp_path / "var" / "relay" / "topics.json")


class TestCatalog:
    """The topics that were seen at the sources."""

    def test_learns_the_topics_that_are_new(self, catalog):
        """They are returned, sorted; reading creates no file; relay.yaml names some before."""
        assert catalog.topics("m") == []
        assert not catalog.path.parent.exists()
        assert catalog.learn("m", ["z", "b"]) == ["b", "z"]
        assert catalog.learn("m", ["a", "z", "a"]) == ["a"]
        assert catalog.learn("m", ["a", "b"]) == []
        assert catalog.learn("other", ["b"]) == ["b"]
        assert Catalog(catalog.path).topics("m") == ["a", "b", "z"]
        assert catalog.topics("other") == ["b"]
        known = {"m": ["a", "b", "z"], "other": ["b"]}
        assert json.loads(catalog.path.read_text()) == {"version": 100, "mirrors": known}
        catalog.learn("n", ["seen", "a.b"])
        allow = [r"z", r"a\.b", ".*"]
        assert catalog.known("n", mirror(topics={"allow": allow})) == ["a.b", "seen", "z"]

    @pytest.mark.parametrize(
        "text",
        [
            *("", "{", "\x00\xff", "[]", "null", "5", '"m"'),
            *(f'{{"version":100,"mirrors":{{"m":{odd}}}}}' for odd in ("null", '"abc"', '{"a":1}')),
            '{"version":103,"mirrors":{"m":["b"]}}',
        ],
    )
    def test_a_corrupt_file_counts_as_missing(self, catalog, text):
        """The next tick writes it again, and the code location must load until then."""
        catalog.path.parent.mkdir(parents=True)
        catalog.path.write_bytes(text.encode("latin-1"))
        found = catalog.topics("m"), catalog.learn("m", ["a"]), catalog.topics("m")
        assert found == ([], ["a"], ["a"])

    def test_planners_that_learn_at_the_same_time_lose_nothing(self, catalog):
        """Sensors run in threads of one process, and runs in other processes."""
        wanted = [[f"t{number}.{topic}" for topic in range(10)] for number in range(8)]
        together = threading.Barrier(len(wanted))

        def learn(number: int) -> None:
            own = Catalog(catalog.path)
            together.wait()
            for topic in wanted[number]:
                own.learn(f"m{number % 3}", [topic])

        with ThreadPoolExecutor(len(wanted)) as pool:
            list(pool.map(learn, range(len(wanted))))
        learned = {topic for name in range(3) for topic in catalog.topics(f"m{name}")}
        assert learned == {topic for some in wanted for topic in some}

    def test_is_next_to_the_configuration(self, tmp_path, monkeypatch):
        """RELAY_CATALOG overrides that; the configuration's path may be relative."""
        monkeypatch.delenv("RELAY_CATALOG", raising=False)
        monkeypatch.chdir(tmp_path)
        assert Catalog.beside(Path("relay.yaml")).path == tmp_path / "var" / "relay" / "topics.json"
        monkeypatch.setenv("RELAY_CATALOG", "/elsewhere/topics.json")
        assert Catalog.beside(Path("relay.yaml")).path == Path("/elsewhere/topics.json")


def test_checks_of_expectations_have_names_of_their_own() -> None:
    """Dagster gives the check of `a` the same name as a topic `a_keys_not_null`."""
    checked = mirror(expectations=["keys_not_null"])
    (lane,) = lanes_of("m", checked, ["a", "a.keys-not-null", "b"])
    found = [topics for _, topics in ops("window", lane, checked)]
    assert found == [["a", "b"], ["a.keys-not-null"]]


def test_a_rotated_file_is_a_change_of_the_configuration(tmp_path: Path) -> None:
    """What `${file:path}` names is read with relay.yaml; what nobody wrote is not read again."""
    secret, config = tmp_path / "password", tmp_path / "relay.yaml"
    secret.write_text("old")
    security = {"protocol": "SASL_PLAINTEXT", "mechanism": "PLAIN", "username": "u"}
    sides: Any = copy.deepcopy(SIDES)
    sides["destination"]["security"] = security | {"password": "${file:password}"}
    config.write_text(yaml.safe_dump({"mirrors": {"m": sides}}))
    kafka, catalog = KafkaResource(config_path=str(config)), Catalog(tmp_path / "topics.json")
    (lane,) = lanes_of("m", kafka.mirror("m"), [])
    watch = ConfigWatch(kafka, lane, catalog, logging.getLogger())
    assert watch.change() is None

    secret.write_text("newer")

    change = watch.change()
    assert change is not None
    assert change.lane == lane
    assert "newer" not in change.what
    assert change.settings.mirror("m").destination_cluster.security.password == "newer"
    assert watch.change() is None

    config.write_text(config.read_text().replace("file:password", "file:next"))
    assert watch.change() is None, "the file that it names is not there yet"
    (tmp_path / "next").write_text("newest")
    change = watch.change()
    assert change is not None
    assert change.settings.mirror("m").destination_cluster.security.password == "newest"
