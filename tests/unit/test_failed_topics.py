"""Topics that failed rest, and the next run knows for how long."""

from __future__ import annotations

from relay_pipelines.orchestration import naming
from relay_pipelines.plan.frozen_window import FrozenWindow
from relay_pipelines.run.result import RunResult
from relay_pipelines.windows.cut import FailedTopics
from relay_pipelines.windows.window_run import TopicReport, WindowReport


def report(**failures: str) -> WindowReport:
    topics = [TopicReport(topic, failure=failure) for topic, failure in failures.items()]
    window = FrozenWindow(key="", ranges=(), node="", planned_at_ms=0)
    return WindowReport(window, "", topics, RunResult("m", "run", {}))


def test_rests_double_from_run_to_run() -> None:
    """Each run starts with what the one before has dumped; a topic that recovers is forgotten."""
    rests, text = [], ""
    for now in range(0, 10_000, 1000):
        failed = FailedTopics.load({naming.TAG_RESTING: text})
        assert failed.left_out(now) == set()
        failed.note(report(bad="too large", good=""), now)
        assert failed.left_out(now) == {"bad"}
        text = failed.dump()
        rests.append(FailedTopics.load({naming.TAG_FAILED_TOPICS: text}).until["bad"] - now)
    assert rests == [2, 4, 8, 16, 32, 64, 128, 256, 300, 300]
    failed = FailedTopics.load({naming.TAG_RESTING: text})
    failed.note(report(bad=""), 10_000)
    assert failed.dump() == ""


def test_what_a_run_found_out_replaces_what_it_was_told() -> None:
    """The planner tells a run what failed before; afterwards all of it may have recovered."""
    told = FailedTopics({"bad": 1}, {"bad": 9.0}).dump()
    assert FailedTopics.load({naming.TAG_RESTING: told}).failed == {"bad": 1}
    assert FailedTopics.load({naming.TAG_RESTING: told, naming.TAG_FAILED_TOPICS: ""}).failed == {}
    assert FailedTopics.load({}).failed == {}
