"""The configurations that a snapshot has, and those that a session asked for a while ago.

A copy must know the configurations of the moment. A round that copies nothing needs them only for
what it shows, and they are most of what it would ask for.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass, field

from relay_pipelines.errors import RelayError
from relay_pipelines.model import TopicPartition
from relay_pipelines.protocol.config_requests import ConfigValue
from relay_pipelines.snapshot.state_topics import StateTopic

Configs = Mapping[str, Mapping[str, ConfigValue]]
_FRESH_SECONDS = 60.0


@dataclass(frozen=True, slots=True)
class TopicConfigs:
    """Configurations of topics, and what else only a copy needs.

    Args:
        source, destination: by topic and key.
        refused: source topic -> why it could not be copied: its configuration, or that of its
            copy, cannot be read.
        sizes_bytes: on the source's disk, where it reports them.
        state_topics: those of the mirrors' state that exist.
    """

    source: Configs = field(default_factory=dict)
    destination: Configs = field(default_factory=dict)
    refused: Mapping[str, RelayError] = field(default_factory=dict)
    sizes_bytes: Mapping[TopicPartition, int] = field(default_factory=dict)
    state_topics: Sequence[StateTopic] = ()


@dataclass(slots=True)
class RecentConfigs:
    """What the last round of a session was told, for the next one if that copies nothing."""

    _of: Hashable = None
    _asked: float = 0.0
    _found: TopicConfigs = field(default_factory=TopicConfigs)

    def find(
        self, of: Hashable, now: float, ask: Callable[[], TopicConfigs], *, copies: bool
    ) -> TopicConfigs:
        """Return the configurations, which are asked for if the known ones may not be used.

        Args:
            of: what they are of: the upstream and all topics.
            now: in monotonic seconds.
            copies: whether there is something to copy.
        """
        if copies or of != self._of or now - self._asked > _FRESH_SECONDS:
            self._of, self._asked, self._found = of, now, ask()
        return self._found
