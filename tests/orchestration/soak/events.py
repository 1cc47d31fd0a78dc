"""The events of a soak: what people do to a mirror, and clusters that are away.

Each function lets one happen, waits until the mirror and its pages say so, ends it, and waits until
all is as before. It returns what was seen. An `AssertionError` says what was not seen in time.
"""

import datetime as dt
import json
import shutil
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from itertools import pairwise
from random import Random
from typing import Any, NamedTuple, Self

from relay_pipelines.local_kafka import LocalCluster
from relay_pipelines.orchestration import naming
from tests.orchestration import graphql
from tests.orchestration.dev_environment import DevEnvironment
from tests.orchestration.soak.faults import Event
from tests.orchestration.soak.limits import KEEP
from tests.orchestration.soak.operator import Operator
from tests.orchestration.soak.sampling import Sampler
from tests.orchestration.soak.topics import SoakTopic, seconds_until_copied
from tests.support.commands import relay
from tests.support.independent import until

LIMIT_SECONDS = 300.0
"""Nobody waits for longer: long, because the machine may be busy with other work."""
_PAUSE_SECONDS = 1.0
_AWAY_SECONDS = 45.0
_BESIDE_SECONDS = 30.0
_RECENT_RUNS = 4
_RECORDS = 50
STEADY, RECREATED, DENIED = "soak", "soak.recreated", "soak.denied"
_EVERY = "10s", "20s"
_SLOW_SECONDS = 19.0
_INVALID = (
    lambda text: text.replace("allow:", "alow:"),
    lambda text: text.replace("every:", "every: [10s"),
    lambda text: text[: text.index("mirrors:")],
    lambda text: text.replace("every: 10s", "every: soon"),
)


class Seen(NamedTuple):
    """What was seen, and the seconds until a new record came of those it leaves alone."""

    went_on: float
    what: str


@dataclass
class Mirror:
    """A mirror of the soak's topics, and the two deployments that may copy it."""

    dev: DevEnvironment
    source: LocalCluster
    destination: LocalCluster
    operator: Operator
    second: Operator
    sampler: Sampler
    chance: Random
    topics: dict[str, SoakTopic] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for name, partitions, rate in ((STEADY, 2, 20), (RECREATED, 1, 5), (DENIED, 1, 5)):
            self.add(name, partitions, rate)
        self.configure()

    @property
    def steady(self) -> SoakTopic:
        """The topic that no event is about."""
        return self.topics[STEADY]

    def add(self, name: str, partitions: int, rate: int = 0) -> SoakTopic:
        """Create a topic at the source."""
        copy = f"{self.dev.name}.{name}"
        clusters = self.dev.source, self.dev.destination
        topic = SoakTopic(*clusters, name, copy, partitions, rate)
        self.topics[name] = topic
        return topic

    def configure(
        self, *, every: str = _EVERY[0], deny: tuple[str, ...] = (), on_data_loss: str = "fail"
    ) -> None:
        """Write relay.yaml: with all topics, unless it is said otherwise."""
        self.dev.configure(
            topics={
                "allow": [name.replace(".", r"\.") for name in self.topics],
                "deny": [name.replace(".", r"\.") for name in deny],
                "rename": f"{self.dev.name}.{{topic}}",
            },
            window={"every": every, "session": "5m", "keep": KEEP},
            on_data_loss=on_data_loss,
        )

    def copied(self) -> float:
        """Wait until the steady topic has what is written from now on; return the seconds."""
        return seconds_until_copied(self.steady, LIMIT_SECONDS)

    def page(self) -> dict[str, Any]:
        """The page of the mirror, as `relay status --json` prints it."""
        done = relay(self.dev.folder / "relay.yaml", "status", "--json")
        return {"exit_code": done.returncode, **json.loads(done.stdout)["mirrors"][0]}

    def page_with(self, condition: Callable[[dict[str, Any]], object], what: str) -> dict[str, Any]:

        def found() -> dict[str, Any] | None:
            page = self.page()
            return page if condition(page) else None

        return _wait(found, f"the page of `relay status`: {what}")

    def session_says(self, text: str, since: float) -> str:
        """Wait until a session logs a line with this text after a moment; return the line."""

        def lines() -> list[str]:
            runs = graphql.runs(self.operator.dagster)[:_RECENT_RUNS]
            logs = [graphql.messages(self.operator.dagster, run.id, since) for run in runs]
            return [line for log in logs for line in log if text in line]

        return str(_wait(lines, f"a line of the session: {text}")[0])


def happen(event: Event, mirror: Mirror) -> Seen:
    return _EVENTS[event](mirror)


def _recreated(mirror: Mirror) -> Seen:
    topic, began, now = mirror.topics[RECREATED], time.monotonic(), time.time()

    def is_named(page: dict[str, Any]) -> bool:
        held = {(at, each["reason"]) for each in page["held"] for at in each["topic_partitions"]}
        return held == {(f"{RECREATED}-0", "TopicRecreatedError")}

    with topic.recreated(_RECORDS):
        page = mirror.page_with(is_named, f"{RECREATED} is held back, and nothing else")
        named = time.monotonic() - began
        mirror.session_says(f"held back: {RECREATED}-0", now)
        before = topic.offsets_copied()
        went_on = mirror.copied()
        state = mirror.page()["state"]
        assert state not in {"held back", "unknown", "refused"}, state
        assert topic.offsets_copied() == before, "a topic was copied while it was held back"
    accepted = time.monotonic()
    mirror.configure(on_data_loss="continue")
    seconds_until_copied(topic, LIMIT_SECONDS)
    accepted = time.monotonic() - accepted
    mirror.configure()
    mirror.page_with(lambda page: not page["held"], "nothing is held back")
    return Seen(
        went_on,
        f"`relay status` named {RECREATED} after {named:.0f} s ({page['held'][0]['reason']}), the"
        f" mirror was `{state}`; with `on_data_loss: continue` its new log came after"
        f" {accepted:.0f} s",
    )


def _second_waits(mirror: Mirror) -> Seen:
    with _Second(mirror) as second:
        waits = _waits(mirror.second)
        went_on = mirror.copied()
        time.sleep(_BESIDE_SECONDS)
        mirror.copied()
        copying = mirror.page()["copied_by"]["run_id"]
    took_over = copying in second.runs
    again = mirror.copied()
    if took_over:  # what it may do if the first one has stood still for half a minute
        return Seen(went_on, f"it took over from the first, which went on {again:.0f} s after it")
    return Seen(went_on, f"it waited after {waits:.0f} s, and copied nothing")


def _second_takes_over(mirror: Mirror) -> Seen:
    with _Second(mirror) as second:
        waits, killed = _waits(mirror.second), time.monotonic()
        mirror.operator.deployment.kill()
        mirror.operator.stop()  # `dagster dev` may not be seen to have ended yet
        mirror.operator.keep_running()  # for 90 s, it does not know that its session is dead
        mirror.copied()
        went_on = time.monotonic() - killed
        copying = mirror.page()["copied_by"]["run_id"]
        second.look()
        assert copying in second.runs, f"the page names {copying}, a run of the first deployment"
        back = _waits(mirror.operator)
    again = mirror.copied()
    return Seen(
        went_on,
        f"it waited after {waits:.0f} s and took over; the first one, started again, waited after"
        f" {back:.0f} s, and went on {again:.0f} s after the end of the second",
    )


class _Second:
    """Runs the second deployment within the context; `runs` are those that it has had."""

    def __init__(self, mirror: Mirror) -> None:
        self.runs: set[str] = set()
        self._operator = mirror.second
        folder = mirror.dev.folder
        for name in ("relay.yaml", "dagster.yaml"):
            shutil.copy(folder / name, folder / "second")

    def __enter__(self) -> Self:
        self._operator.keep_running()
        return self

    def __exit__(self, *_: object) -> None:
        try:
            self.look()
        finally:
            self._operator.stop()
            self._operator.deployment.kill()

    def look(self) -> None:
        """Remember its runs."""
        self.runs |= {run.id for run in graphql.runs(self._operator.dagster)}


def _waits(operator: Operator) -> float:
    began = time.monotonic()

    def says() -> bool:
        runs = graphql.runs(operator.dagster)[:_RECENT_RUNS]
        tags = [run.tags.get(naming.TAG_WAITS, "") for run in runs if run.status == "STARTED"]
        return any("which this deployment does not know, copies this mirror" in tag for tag in tags)

    _wait(says, "a deployment that says that it waits for the other one")
    return time.monotonic() - began


def _invalid(mirror: Mirror) -> Seen:
    config, now = mirror.dev.folder / "relay.yaml", time.time()
    good = config.read_text()
    bad = mirror.chance.choice(_INVALID)(good)
    assert bad != good
    mirror.dev.replace_config(bad)
    try:
        mirror.session_says("relay.yaml has changed, and its last version stays in use", now)
        went_on = mirror.copied()
        done = relay(config, "status")
        assert done.returncode == 2, f"`relay status` ends with {done.returncode}"
        (error,) = [line for line in done.stderr.splitlines() if line.startswith("error: ")]
    finally:
        mirror.dev.replace_config(good)
    said = error.removeprefix("error: ").replace(str(config), "relay.yaml")
    return Seen(
        went_on,
        f"the session said that the last version stays in use; `relay status` refused: `{said}`",
    )


def _added(mirror: Mirror) -> Seen:
    topic = mirror.add(f"soak.added.{len(mirror.topics)}", 1)
    topic.write(_RECORDS)
    began, now = time.monotonic(), time.time()
    mirror.configure()
    mirror.session_says("the windows from this one on use it", now)
    seconds_until_copied(topic, LIMIT_SECONDS, from_now=False)
    what = f"all of {topic.name} was copied {time.monotonic() - began:.0f} s after"
    return Seen(mirror.copied(), f"the session said that it uses it, and {what}")


def _denied(mirror: Mirror) -> Seen:
    topic, now = mirror.topics[DENIED], time.time()
    mirror.configure(deny=(DENIED,))
    mirror.session_says("the windows from this one on use it", now)
    before, went_on = topic.offsets_copied(), mirror.copied()
    mirror.copied()
    assert topic.offsets_copied() == before, "a topic that is denied was copied"
    waiting = topic.waiting()
    mirror.configure()
    seconds = seconds_until_copied(topic, LIMIT_SECONDS)
    return Seen(
        went_on,
        f"nothing of it was copied while {waiting} records came; allowed again, it was complete"
        f" after {seconds:.0f} s",
    )


def _every(mirror: Mirror) -> Seen:
    gaps = []
    for every, is_slow in zip(reversed(_EVERY), (True, False), strict=True):
        now = time.time()
        mirror.configure(every=every)
        mirror.session_says("the windows from this one on use it", now)
        gaps.append(_gap(mirror, is_slow=is_slow))
    went_on = mirror.copied()
    return Seen(went_on, "windows came {:.0f} s, and later {:.0f} s after each other".format(*gaps))


def _gap(mirror: Mirror, *, is_slow: bool) -> float:
    """Wait until two windows from now on are as far from each other as they should be."""
    known = set(mirror.sampler.windows)

    def gaps() -> list[float]:
        new = sorted(mirror.sampler.windows - known)
        times = [dt.datetime.fromisoformat(name.rpartition("-")[0]) for name in new]
        found = [(after - before).total_seconds() for before, after in pairwise(times)]
        return [gap for gap in found if gap and (gap >= _SLOW_SECONDS) == is_slow]

    return float(_wait(gaps, f"windows that {'are' if is_slow else 'are not'} 20 s apart")[0])


def _away(name: str, mirror: Mirror) -> Seen:
    began, cluster = time.monotonic(), getattr(mirror, name)
    (address,) = cluster.bootstrap_servers
    for broker in cluster.brokers:
        broker.kill()
    try:
        page = mirror.page_with(lambda page: page["state"] == "unknown", f"the {name} is away")
        named = time.monotonic() - began
        assert address in page["error"], f"the page does not name {address}: {page['error']}"
        assert page["exit_code"] == 1
        time.sleep(max(0.0, began + _AWAY_SECONDS - time.monotonic()))
    finally:
        for broker in cluster.brokers:
            broker.start()
    away, back = time.monotonic() - began, time.monotonic()
    went_on = mirror.copied()
    mirror.page_with(lambda page: page["state"] in {"copying", "up to date"}, f"{name} is back")
    healed = time.monotonic() - back
    said = page["error"].partition(";")[0]
    return Seen(
        went_on,
        f"away for {away:.0f} s; `relay status` said after {named:.0f} s: `{said}`, and"
        f" {healed:.0f} s after the end that it is copied",
    )


def _wait(condition: Callable[[], Any], what: str) -> Any:
    return until(condition, what, LIMIT_SECONDS, _PAUSE_SECONDS)


_EVENTS: dict[Event, Callable[[Mirror], Seen]] = {
    Event.RECREATED: _recreated,
    Event.SECOND_WAITS: _second_waits,
    Event.SECOND_TAKES_OVER: _second_takes_over,
    Event.INVALID: _invalid,
    Event.ADDED: _added,
    Event.DENIED: _denied,
    Event.EVERY: _every,
    Event.SOURCE_AWAY: partial(_away, "source"),
    Event.DESTINATION_AWAY: partial(_away, "destination"),
}
