"""Where reading begins and ends: what options mean in each topic-partition. On the driver."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from relay_pipelines.dataframe.option_names import ENDS, STARTS, only_one
from relay_pipelines.dataframe.topic_options import TopicPartitions
from relay_pipelines.errors import ConfigError
from relay_pipelines.model import TopicPartition
from relay_pipelines.protocol.client import EARLIEST, LATEST, READ_COMMITTED, ClusterClient
from relay_pipelines.protocol.clock import moment_ms, moment_of
from relay_pipelines.settings.validation_errors import nearest

Offsets = dict[TopicPartition, int]
_LAST_MS = (1 << 63) - 1


@dataclass(frozen=True, slots=True)
class Logs:
    """Where logs begin, and where their committed records end."""

    low: Offsets
    end: Offsets


def read_logs(client: ClusterClient, topics: TopicPartitions) -> Logs:
    """Ask the leaders of all topic-partitions."""
    partitions = [tp for some in topics.values() for tp in some]
    # the end comes last: a log that loses its head meanwhile still ends after it
    low = client.list_offsets(partitions, EARLIEST, READ_COMMITTED)
    return Logs(low, client.list_offsets(partitions, LATEST, READ_COMMITTED))


def start_offsets(
    client: ClusterClient, topics: TopicPartitions, logs: Logs, options: Mapping[str, str]
) -> Offsets:
    """Return the first offset to read of every topic-partition, within its log.

    Raises:
        ConfigError: options mean none, or one outside the log.
    """
    option = only_one(options, *STARTS) or "start"
    position = _Position(client, topics, logs, option, EARLIEST)
    return position.offsets(options.get(option, "earliest"))


def end_offsets(
    client: ClusterClient, topics: TopicPartitions, logs: Logs, options: Mapping[str, str]
) -> Offsets:
    """Return the offset after the last one to read of every topic-partition, within its log.

    Raises:
        ConfigError: options mean none, or one outside the log.
    """
    option = only_one(options, *ENDS) or "end"
    position = _Position(client, topics, logs, option, LATEST)
    return position.offsets(options.get(option, "latest"))


@dataclass(frozen=True, slots=True)
class _Position:
    """What the value of an option means.

    Args:
        default: of topic-partitions that JSON does not name: `EARLIEST` or `LATEST`.
    """

    client: ClusterClient
    topics: TopicPartitions
    logs: Logs
    option: str
    default: int

    def offsets(self, text: str) -> Offsets:
        if self.option.endswith("Timestamp"):
            return self._first_offsets(self._time_ms(text))
        if text in {"earliest", "latest"}:
            return self.logs.low if text == "earliest" else self.logs.end
        given = self._parsed(text)
        if type(given) is int:  # `true` is none
            return self._resolved(dict.fromkeys(self.logs.low, given))
        if isinstance(given, dict):
            return self._resolved(self._by_partition(given))
        return self._first_offsets(self._time_ms(text))

    @staticmethod
    def _parsed(text: str) -> Any:
        try:
            return json.loads(text)
        except ValueError:
            return None

    def _by_partition(self, given: Any) -> dict[TopicPartition, Any]:
        """Return the values of JSON by topic and partition; of one topic also by partition.

        Raises:
            ConfigError: a topic or partition is not there, or it is no such JSON.
        """
        if not isinstance(given, dict):
            raise self._wrong(json.dumps(given), "JSON by topic and partition")
        if not any(isinstance(value, dict) for value in given.values()) and len(self.topics) == 1:
            given = dict.fromkeys(self.topics, given)
        offsets = {}
        for topic, values in given.items():
            if topic not in self.topics:
                raise ConfigError(
                    f"option {self.option}: {topic!r} is not one of the topics that are read",
                    remedy=nearest(topic, self.topics, "topics"),
                )
            by_name = {str(tp.partition): tp for tp in self.topics[topic]}
            for name, value in values.items() if isinstance(values, dict) else [("", values)]:
                if name not in by_name or type(value) not in {int, str}:
                    raise self._wrong(
                        json.dumps({name: value} if name else value),
                        f"of a partition of topic {topic}, which has {', '.join(by_name)}",
                    )
                offsets[by_name[name]] = value
        return offsets

    def _resolved(self, given: Mapping[TopicPartition, Any]) -> Offsets:
        """Return offsets; -2 and -1 are where the log begins and ends, as in spark-sql-kafka."""
        return {
            tp: self._within_log(tp, given.get(tp, self.default)) for tp in sorted(self.logs.low)
        }

    def _within_log(self, tp: TopicPartition, offset: Any) -> int:
        low, end = self.logs.low[tp], self.logs.end[tp]
        if type(offset) is not int:
            raise self._wrong(json.dumps({str(tp.partition): offset}), "an offset")
        position = {EARLIEST: low, LATEST: end}.get(offset, offset)
        if not low <= position <= end:
            raise ConfigError(
                f"option {self.option}: {tp} has offsets {low} to {end}, and not {offset}",
                remedy="write earliest or latest (in JSON -2 or -1), or an offset that it has",
            )
        return position

    def _first_offsets(self, ms: int) -> Offsets:
        """Return the first offset whose record is not older than a time; else the log's end.

        Everything before it is older, whatever the order of timestamps and whoever sets them: a
        broker takes the first segment whose newest record is not older, and in its time index the
        last entry that is not newer. An entry is the newest timestamp so far, with the batch that
        brought it: everything before that batch is older, and from there the broker looks at each
        record. After it come older ones, too, if timestamps are out of order; so as an end, the
        offset leaves out what is older and came later.

        Raises:
            ConfigError: no record is as new as `startingTimestamp`, as in spark-sql-kafka.
        """
        positions = {}
        for tp, offset in self.client.list_offsets([*self.logs.low], ms, READ_COMMITTED).items():
            low, end = self.logs.low[tp], self.logs.end[tp]
            if offset < 0 and self.option == "startingTimestamp":
                raise ConfigError(
                    f"option {self.option}: {tp} has no record at or after {moment_of(ms) or ms}",
                    remedy="write an earlier time, or `start`, which then begins at the end",
                )
            positions[tp] = end if offset < 0 else min(max(offset, low), end)
        return positions

    def _time_ms(self, value: int | str) -> int:
        """Return milliseconds since 1970, of a number or of ISO 8601."""
        if self.option in {"start", "end"}:
            form = "earliest, latest, a time, an offset, or JSON by topic and partition"
        else:
            form = "a time"
        try:
            ms = int(value) if str(value).lstrip("-").isdecimal() else moment_ms(str(value))
        except ValueError:
            raise self._wrong(repr(value), form) from None
        # brokers read negative times as questions of another kind: -1 is the end
        if not 0 <= ms <= _LAST_MS:
            raise self._wrong(repr(value), "a time since 1970")
        return ms

    def _wrong(self, given: str, form: str) -> ConfigError:
        topic, partitions = next(((t, some) for t, some in self.topics.items() if some), ("t", []))
        example = f'{{"{topic}": {{"{partitions[0].partition if partitions else 0}": %s}}}}'
        remedies = {
            "Timestamp": "write 2026-01-31T12:00:00Z, or milliseconds since 1970",
            "": f"write earliest, latest, 2026-01-31T12:00:00Z, an offset, or {example % 120}",
        }
        remedy = next(text for end, text in remedies.items() if self.option.endswith(end))
        return ConfigError(f"option {self.option}: {given} is not {form}", remedy=remedy)
