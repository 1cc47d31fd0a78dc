"""What `relay check` finds across the mirrors of one relay.yaml. Asks nothing of the clusters."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from relay_pipelines.finding import Finding, Kind, Severity, warning
from relay_pipelines.model import Cluster, TopicPartition
from relay_pipelines.plan import ways
from relay_pipelines.plan.topic_selection import QUARANTINE
from relay_pipelines.plan.ways import MirrorNames
from relay_pipelines.settings import Mirror


@dataclass(frozen=True, slots=True)
class Survey:
    """What the checks of all mirrors have seen of their clusters; it grows.

    Args:
        taken: destination cluster id and topic-partition -> the mirror that copies to it.
        ids: bootstrap server -> id of its cluster, of those that have answered.
        topics: cluster id -> the topics that it has.
    """

    taken: dict[tuple[str, TopicPartition], str] = field(default_factory=dict)
    ids: dict[str, str] = field(default_factory=dict)
    topics: dict[str, set[str]] = field(default_factory=lambda: defaultdict(set))

    def add(self, cluster: Cluster, cluster_id: str, topics: list[str]) -> None:
        """Add what a cluster has answered; another user may see other topics there."""
        self.ids.update(dict.fromkeys(cluster.bootstrap_servers, cluster_id))
        self.topics[cluster_id].update(topics)

    def id_of(self, cluster: Cluster) -> str:
        """Return the id of a cluster; if it has not answered, its addresses."""
        known = (self.ids[server] for server in cluster.bootstrap_servers if server in self.ids)
        return next(known, ",".join(sorted(cluster.bootstrap_servers)))


def loops(mirrors: Mapping[str, Mirror], count: int, survey: Survey) -> Iterator[Finding]:
    """Yield where records would come back by way of several mirrors, and what was looked at.

    Args:
        mirrors: those that were checked.
        count: how many the file has.
    """
    if count < 2:  # noqa: PLR2004
        return
    named = [_names(name, mirror, survey) for name, mirror in mirrors.items()]
    first_steps = list(ways.starts(named, survey.topics))
    cluster_names = _cluster_names(mirrors, survey)
    found = ways.errors(ways.returns(named, first_steps), lambda key: cluster_names.get(key, key))
    for error in found:
        yield Finding.of(error).inside("mirrors")
    followed = (
        f"{len(first_steps):,} topic{'s' * (len(first_steps) != 1)} followed by name over"
        f" {len(mirrors)} of {count} mirrors"
    )
    if silent := _silent(mirrors, survey):
        what = f"{followed}; nothing is known of {', '.join(silent)}"
        yield warning(Kind.UNREADABLE, "mirrors", what, "see the errors above")
    elif not found:
        what = f"{followed}: no copy comes back to where its records have been"
        yield Finding(Kind.OK, "mirrors", Severity.OK, what)


def _names(name: str, mirror: Mirror, survey: Survey) -> MirrorNames:
    def quarantine(source: str, copy: str) -> str:
        return copy + QUARANTINE if mirror.record_policy(source).may_quarantine else ""

    return MirrorNames(
        name,
        frozenset(map(survey.id_of, mirror.nodes)),
        survey.id_of(mirror.destination_cluster),
        mirror.topics.allow,
        mirror.topics.deny,
        mirror.topics.rename,
        quarantine,
    )


def _cluster_names(mirrors: Mapping[str, Mirror], survey: Survey) -> dict[str, str]:
    """Return cluster id -> the name of its node, with addresses if others have the same name."""
    nodes: dict[str, Cluster] = {}
    for mirror in mirrors.values():
        for node in mirror.nodes:
            nodes.setdefault(survey.id_of(node), node)
    names = Counter(node.name for node in nodes.values())
    return {key: node.name if names[node.name] == 1 else str(node) for key, node in nodes.items()}


def _silent(mirrors: Mapping[str, Mirror], survey: Survey) -> list[str]:
    """Return the clusters that have not answered: one may be another that has, by its id."""
    nodes = [node for mirror in mirrors.values() for node in mirror.nodes]
    clusters = {
        survey.id_of(cluster): cluster
        for cluster in (*(mirror.destination_cluster for mirror in mirrors.values()), *nodes)
    }
    return [str(cluster) for key, cluster in clusters.items() if key not in survey.topics]
