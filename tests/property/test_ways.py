"""Names are followed as the mirrors would copy: against a simulation that copies records."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from relay_pipelines.plan.ways import MirrorNames, Return, returns, starts

CLUSTERS = ("a", "b", "c", "d")
TOPICS = ("t", "u", "p.t")
PATTERNS = ("t", ".*", r"p\..*", "u|v", r"p\.t")
SPELLED_OUT = {"t", r"p\.t"}
RENAMES: tuple[str | dict[str, str], ...] = ("{topic}", "p.{topic}", {"t": "u"}, {"u": "p.u"})

clusters = st.sampled_from(CLUSTERS)
worlds = st.dictionaries(clusters, st.sets(st.sampled_from(TOPICS)), max_size=4)


def _mirror(sources: frozenset[str], destination: str, **more: Any) -> MirrorNames:
    return MirrorNames("", sources, destination, **more)


mirrors_of_a_file = st.lists(
    st.builds(
        _mirror,
        st.frozensets(clusters, min_size=1, max_size=2),
        clusters,
        allow=st.lists(st.sampled_from(PATTERNS), min_size=1, max_size=2),
        deny=st.lists(st.sampled_from(PATTERNS), max_size=1),
        rename=st.sampled_from(RENAMES),
        quarantine=st.sampled_from([lambda _source, _copy: "", lambda _source, copy: f"{copy}.q"]),
    ),
    min_size=1,
    max_size=6,
).map(lambda found: [replace(each, name=f"m{number}") for number, each in enumerate(found)])


@dataclass(frozen=True)
class Record:
    """What a copy carries: where its record has been, and which mirrors it has taken."""

    clusters: frozenset[str]
    mirrors: frozenset[str]


def simulate(mirrors: list[MirrorNames], topics: Mapping[str, set[str]]) -> set[tuple[str, ...]]:
    """Copy until nothing is new; return mirror, topic and copy of each copy that comes back.

    Within one cluster, a mirror does not copy what it has copied; other guards see to that.
    """
    logs = {
        (cluster, topic): {Record(frozenset({cluster}), frozenset())}
        for cluster in CLUSTERS
        for topic in topics.get(cluster, set()).union(
            name.replace("\\", "")
            for mirror in mirrors
            for name in SPELLED_OUT.intersection(mirror.allow)
            if cluster in mirror.sources
        )
    }
    back: set[tuple[str, ...]] = set()
    before = -1
    while before != (before := sum(map(len, logs.values()))):
        for mirror in mirrors:
            for (cluster, topic), log in list(logs.items()):
                new = [record for record in log if mirror.name not in record.mirrors]
                for name in written(mirror, cluster, topic):
                    there = logs.setdefault((mirror.destination, name), set())
                    for record in new:
                        if mirror.destination in record.clusters - mirror.sources:
                            back.add((mirror.name, topic, name))
                        else:
                            been = record.clusters | mirror.sources | {mirror.destination}
                            there.add(Record(been, record.mirrors | {mirror.name}))
    return back


def written(mirror: MirrorNames, cluster: str, topic: str) -> list[str]:
    """Return to which topics a mirror copies the records of a topic at a cluster."""
    if cluster not in mirror.sources or any(re.fullmatch(each, topic) for each in mirror.deny):
        return []
    if not any(re.fullmatch(each, topic) for each in mirror.allow):
        return []
    if isinstance(mirror.rename, dict):
        copy = mirror.rename.get(topic, topic)
    else:
        copy = str(mirror.rename).replace("{topic}", topic)
    return [copy, *filter(None, [mirror.quarantine(topic, copy)])]


def followed(mirrors: list[MirrorNames], topics: Mapping[str, set[str]]) -> list[Return]:
    return returns(mirrors, starts(mirrors, topics))


@given(mirrors_of_a_file, worlds)
def test_a_return_is_reported_if_and_only_if_a_record_comes_back(
    mirrors: list[MirrorNames], topics: dict[str, set[str]]
) -> None:
    """And its last step is one that the copy would take."""
    back = simulate(mirrors, topics)
    found = followed(mirrors, topics)
    assert bool(found) == bool(back)
    assert {each.steps[-1].names for each in found} <= back


@given(mirrors_of_a_file, worlds)
def test_nothing_comes_back_when_every_remedy_is_followed(
    mirrors: list[MirrorNames], topics: dict[str, set[str]]
) -> None:
    """Each removes what it names, and adds no return."""
    for _ in range(50):
        found = followed(mirrors, topics)
        if not found:
            break
        for each in found:
            mirrors = [
                replace(mirror, deny=[*mirror.deny, each.pattern])
                if mirror.name == each.mirrors[-1]
                else mirror
                for mirror in mirrors
            ]
    assert simulate(mirrors, topics) == set()
