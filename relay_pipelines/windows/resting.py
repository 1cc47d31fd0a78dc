"""Topics that failed rest: windows leave them out for a while, so that the others go on."""

import json
from collections.abc import Mapping
from dataclasses import dataclass, field

from relay_pipelines.orchestration import naming
from relay_pipelines.windows.window_run import WindowReport

_LONGEST_REST_SECONDS = 300.0
_RESTS = 8  # 2^8 seconds are almost the longest rest


@dataclass(slots=True)
class Resting:
    """Topics that failed: each failure in a row doubles the time for which windows omit them.

    Times are in seconds since the Unix epoch, because the next run reads them.

    Args:
        failed: topic -> how often in a row it failed.
        until: topic -> when its rest ends.
    """

    failed: dict[str, int] = field(default_factory=dict)
    until: dict[str, float] = field(default_factory=dict)

    @staticmethod
    def load(tags: Mapping[str, str]) -> "Resting":
        """Read what a run has found out about its topics, or else what it was told at its start."""
        told = tags.get(naming.TAG_RESTING, "")
        text = tags.get(naming.TAG_FAILED_TOPICS, told)
        found = json.loads(text) if text else {}
        return Resting(
            {topic: failed for topic, (failed, _) in found.items()},
            {topic: until for topic, (_, until) in found.items()},
        )

    def dump(self) -> str:
        """The value of the tags; empty if no topic failed."""
        found = {topic: (failed, self.until[topic]) for topic, failed in self.failed.items()}
        return json.dumps(found) if found else ""

    def topics(self, now: float) -> set[str]:
        """The topics that rest now."""
        return {topic for topic, until in self.until.items() if until > now}

    def learn(self, report: WindowReport, now: float) -> None:
        """Let the topics rest that failed in a window, and forget those that recovered."""
        for topic in report.topics:
            if topic.is_failed:
                failed = self.failed[topic.topic] = self.failed.get(topic.topic, 0) + 1
                rest = min(2.0 ** min(failed, _RESTS + 1), _LONGEST_REST_SECONDS)
                self.until[topic.topic] = now + rest
            else:
                self.failed.pop(topic.topic, None)
                self.until.pop(topic.topic, None)
