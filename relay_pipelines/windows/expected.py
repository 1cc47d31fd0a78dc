"""Which chunks of a window its expectations look at."""

from collections.abc import Sequence
from dataclasses import replace

from relay_pipelines.errors import RelayError
from relay_pipelines.expectations.topic_window import TopicWindow, covering
from relay_pipelines.ledger.reader import CLOCK_SKEW_MS, read_ledger
from relay_pipelines.model import LedgerEntry
from relay_pipelines.protocol.clock import Clock
from relay_pipelines.settings import Mirror
from relay_pipelines.windows.window_run import TopicReport, WindowReport


def topic_windows(
    report: WindowReport, name: str, mirror: Mirror, clock: Clock
) -> list[TopicWindow]:
    """The chunks of the topics that are complete in a window and have expectations.

    Also of a topic of which no record was copied: an expectation may be that there are some.

    Args:
        name: the mirror's.
    """
    wanted = [
        topic
        for topic in report.topics
        if not topic.failure and topic.recounts and mirror.expectations_of(topic.topic)
    ]
    if not wanted:
        return []
    entries: list[LedgerEntry] = []
    problem, since_ms = "", max(0, report.frozen.planned_at_ms - CLOCK_SKEW_MS)
    try:
        # the recount has waited for these entries
        found = read_ledger(mirror.destination_cluster, name, mirror.copy_options, clock, since_ms)
        entries = [record.entry for record in found]
    except RelayError as error:
        problem = str(error)
    return [_topic_window(report, topic, entries, problem) for topic in wanted]


def _topic_window(
    report: WindowReport, topic: TopicReport, entries: Sequence[LedgerEntry], problem: str
) -> TopicWindow:
    window = TopicWindow(
        topic.topic,
        report.frozen.key,
        covering(entries, topic.ranges),
        # another run may have copied it long ago
        report.readable_ms if topic.totals.records else report.frozen.planned_at_ms,
        problem,
    )
    if not problem and window.records != topic.recorded:
        problem = (
            f"the ledger has {window.records:,} records of the window, and its recount knew"
            f" {topic.recorded:,}; materialise the window again"
        )
    return replace(window, problem=problem)
