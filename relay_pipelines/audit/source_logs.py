"""Whether the logs on both sides are those from which, and to which, was copied. On the driver.

Offsets mean the same records within one log alone. Another upstream's log, or one of a topic that
was created again, may agree with the copies, but it cannot show that they differ.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import partial

from relay_pipelines.audit.retention import RETENTION_CONFIGS, Configs, config_texts
from relay_pipelines.errors import RelayError, SourceError
from relay_pipelines.ledger.verified import VerifiedLedger
from relay_pipelines.model import Checkpoint, Cluster, TopicPartition, UpstreamIdentity
from relay_pipelines.protocol.admin import topic_configs
from relay_pipelines.protocol.client import LATEST, READ_UNCOMMITTED, ClusterClient
from relay_pipelines.sides import Sides

GONE = "the source no longer has the topic"
_RECREATED = "the source topic was created again since they were copied"


@dataclass(slots=True)
class SourceLogs:
    """What the upstreams answered about some topics.

    Args:
        logs: of the upstreams that answered: by upstream and topic.
        clusters: the upstreams that answered, with the ids of their clusters, which tasks prove.
        configs: by topic, of the first upstream that has it.
        away: why upstreams are not read, as a clause about them.
    """

    logs: dict[str, Mapping[str, UpstreamIdentity]] = field(default_factory=dict)
    clusters: list[Cluster] = field(default_factory=list)
    configs: Configs = field(default_factory=dict)
    away: dict[str, str] = field(default_factory=dict)

    def holders(
        self, topic: str, upstream: str, checkpoint: Checkpoint | None
    ) -> tuple[Mapping[str, str], bool, str]:
        """Say which upstreams have the log from which something was copied: the one judge of that.

        Args:
            upstream: its name in the ledger, another one than today perhaps; empty for several.

        Returns:
            by the name of each upstream that has it, the topic's id there, empty if it has none:
            what differs there, differs. Whether any upstream may hold the records: if no upstream
            has that log, others can confirm the copies, and refute nothing. And why no upstream has
            it; empty if one does, or if it is not of one upstream.
        """
        logs = {name: log[topic] for name, log in self.logs.items() if topic in log}
        recreated = sorted(
            name for name, log in logs.items() if checkpoint and _is_recreated(log, checkpoint)
        )
        may_hold = logs.keys() - set(recreated)
        own = {
            name: logs[name].topic_id
            for name in may_hold
            if _is_own(logs[name], upstream, checkpoint)
        }
        why = ""
        if recreated:
            why = f"{_RECREATED}, on upstream {', '.join(recreated)}"
        elif not logs and not self.away:
            why = GONE
        elif upstream:
            why = f"they were copied from upstream {upstream}, which {self._absent(upstream)}"
        return own, bool(may_hold), "" if own else why

    def _absent(self, upstream: str) -> str:
        if upstream in self.away:
            return self.away[upstream]
        return "no longer has the topic" if upstream in self.logs else "is not in source.upstreams"


def _is_recreated(log: UpstreamIdentity, checkpoint: Checkpoint) -> bool:
    """Whether the topic was created again on an upstream, which may have another name now."""
    if checkpoint.is_recreated(log):
        return True
    names = (name for name, known in checkpoint.cluster_ids.items() if known == log.cluster_id)
    ids = {checkpoint.topic_ids.get(name) for name in names} - {"", None}
    return bool(ids and log.topic_id and log.topic_id not in ids)


def _is_own(log: UpstreamIdentity, upstream: str, checkpoint: Checkpoint | None) -> bool:
    """Whether a log is the one that was read under an upstream's name."""
    topic_id = checkpoint.topic_ids.get(upstream, "") if checkpoint else ""
    if topic_id and log.topic_id:
        return log.topic_id == topic_id
    cluster_id = checkpoint.cluster_ids.get(upstream, "") if checkpoint else ""
    if cluster_id and log.cluster_id:
        return log.cluster_id == cluster_id
    return log.upstream == upstream


def read_source_logs(
    sides: Sides, ledger: VerifiedLedger, topics: set[str], *, patient: bool
) -> SourceLogs:
    """Ask every upstream that is not in quarantine, all at once.

    Args:
        patient: whether to wait for the only upstream; otherwise it gets a few seconds.

    Raises:
        RelayError: none of them answers.
    """
    sources, upstreams = SourceLogs(), []
    for upstream in sides.mirror.upstreams:
        if upstream.name in ledger.quarantined:
            sources.away[upstream.name] = "is in quarantine"
        else:
            upstreams.append(upstream)
    if not upstreams:
        return sources
    ask = partial(_ask, sides, topics, patient and len(upstreams) == 1)
    with ThreadPoolExecutor(len(upstreams), thread_name_prefix="audit") as pool:
        answers = [*pool.map(ask, upstreams)]
    errors = [answer for answer in answers if isinstance(answer, RelayError)]
    if len(errors) == len(upstreams):
        raise errors[0]
    for upstream, answer in zip(upstreams, answers, strict=True):
        if isinstance(answer, RelayError):
            sources.away[upstream.name] = "does not answer"
            continue
        cluster, sources.logs[upstream.name], configs = answer
        sources.clusters.append(cluster)
        sources.configs = {**configs, **sources.configs}
    return sources


_Answer = tuple[Cluster, Mapping[str, UpstreamIdentity], Configs]
"""An upstream with its id, the logs of its topics, and their configurations."""


def _ask(
    sides: Sides,
    topics: set[str],
    patient: bool,  # noqa: FBT001 - of a partial
    upstream: Cluster,
) -> _Answer | RelayError:
    """Return what an upstream has of the topics; or the error."""
    with sides.source(upstream, "audit") as client:

        def look() -> _Answer:
            existing = client.existing(topics)
            logs = {
                topic: UpstreamIdentity(
                    upstream.name, client.topic(topic).topic_id, client.cluster_id
                )
                for topic in existing
            }
            configs = topic_configs(client, sorted(existing), RETENTION_CONFIGS)
            return client.cluster, logs, config_texts(configs)

        try:
            return client.retry(look, patient=patient)
        except SourceError as error:
            return error


@dataclass(frozen=True, slots=True)
class DestinationTopics:
    """The topics to which a mirror has copied, as they are now.

    Args:
        topic_ids: of those that exist; an id is empty if the brokers do not report one.
        gone: those that do not exist any more.
        configs: of those that exist; empty if they were not asked for.
        ends: the high watermarks of topic-partitions whose ledger entries have all expired.
    """

    topic_ids: Mapping[str, str]
    gone: frozenset[str] = frozenset()
    configs: Configs = field(default_factory=dict)
    ends: Mapping[TopicPartition, int] = field(default_factory=dict)

    def lost(self, topics: Iterable[str]) -> str:
        """Say which of the topics is gone; empty if none is."""
        gone = self.gone.intersection(topics)
        return f"the destination has no topic {min(gone)!r} any more" if gone else ""

    def replaced(self, checkpoint: Checkpoint | None) -> str:
        """Say that the last copies were in another topic, or log; empty if they were not."""
        if checkpoint is None or checkpoint.copies is None:
            return ""
        copies = checkpoint.copies
        tp = copies.topic_partition
        topic_id = self.topic_ids.get(tp.topic, "")
        if topic_id and copies.topic_id and topic_id != copies.topic_id:
            return (
                f"the destination topic {tp.topic!r} was deleted and created again since the last"
                " copy"
            )
        if self.ends.get(tp, copies.next_offset) < copies.next_offset:
            return (
                f"the destination's log of {tp} ends at {self.ends[tp]}, and the last copy was"
                f" before {copies.next_offset}"
            )
        return ""


def read_destination_topics(
    sides: Sides, ledger: VerifiedLedger, others: Iterable[str] = (), *, with_configs: bool
) -> DestinationTopics:
    """Ask for every topic to which the mirror has copied.

    Args:
        others: topics to which it has copied that the ledger may not know any more.
    """
    copies = [checkpoint.copies for checkpoint in ledger.checkpoints.values() if checkpoint.copies]
    topics = {copy.topic_partition.topic for copy in copies}.union(others)
    # after a changed name, copies are in the former topic, too
    copied = (entry for entry in ledger.own_entries if entry.records)
    topics |= {entry.to.topic for entry in copied}
    expired = {
        checkpoint.copies.topic_partition
        for tp, checkpoint in ledger.checkpoints.items()
        if checkpoint.copies and not ledger.chains[tp].records
    }
    with sides.destination("audit") as client:
        ask = partial(destination_topics, client, topics, expired, with_configs=with_configs)
        return client.retry(ask)


def destination_topics(
    client: ClusterClient,
    topics: Iterable[str],
    expired: Iterable[TopicPartition] = (),
    *,
    with_configs: bool = False,
) -> DestinationTopics:
    """Ask for topics, once.

    Args:
        expired: topic-partitions of which to ask for the ends.
        with_configs: whether to ask for the configurations.
    """
    names = sorted(topics)
    existing = client.existing(names)
    ends = client.list_offsets(
        [tp for tp in expired if tp.topic in existing], LATEST, READ_UNCOMMITTED
    )
    return DestinationTopics(
        {topic: client.topic(topic).topic_id for topic in existing},
        frozenset(names) - existing,
        config_texts(topic_configs(client, sorted(existing), RETENTION_CONFIGS))
        if with_configs
        else {},
        ends,
    )
