"""A file with the topics seen at the sources.

The definitions are loaded from it, so that loading makes no network calls once it is there.
"""

import fcntl
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path

from relay_pipelines.formats import CATALOG
from relay_pipelines.orchestration import naming
from relay_pipelines.orchestration.lane import Lane, lanes_of
from relay_pipelines.plan.topic_selection import literal_names
from relay_pipelines.protocol.clock import Clock
from relay_pipelines.settings import Mirror
from relay_pipelines.sides import Sides
from relay_pipelines.snapshot import upstream_selection

_ENVIRONMENT = "RELAY_CATALOG"
_DEFAULT = Path("var", "relay", "topics.json")


@dataclass(frozen=True, slots=True)
class _Topics:
    """What the file holds: the topics of each mirror, by its path."""

    mirrors: Mapping[str, list[str]] = field(default_factory=dict)


class Catalog:
    """Topics of each mirror that were seen at its source.

    Without the file nothing is lost: the next tick of a planner writes it again. Planners may write
    at the same time, in threads and in processes.

    Args:
        path: path of the file, which need not exist.
        prefix: the key prefix of the definitions: two relay.yaml with mirrors of the same name may
            have one file.
    """

    def __init__(self, path: Path, prefix: Sequence[str] = ()) -> None:
        self.path = path
        self.prefix = tuple(prefix)

    @staticmethod
    def beside(config: Path, prefix: Sequence[str] = ()) -> "Catalog":
        """The catalog at RELAY_CATALOG, or at var/relay/topics.json next to relay.yaml."""
        named = os.environ.get(_ENVIRONMENT)
        return Catalog(Path(named) if named else config.absolute().parent / _DEFAULT, prefix)

    def topics(self, mirror: str) -> list[str]:
        """The topics seen of a mirror; none if the file is missing or unreadable."""
        return list(self._read().get(naming.path(self.prefix, mirror), []))

    def known(self, name: str, mirror: Mirror) -> list[str]:
        """The topics seen before, and those that relay.yaml names literally, sorted."""
        return sorted({*self.topics(name), *literal_names(mirror.topics.allow)})

    def lanes(self, name: str, mirror: Mirror) -> list[Lane]:
        """The lanes of a mirror, with the topics that are known."""
        return lanes_of(name, mirror, self.known(name, mirror), self.prefix)

    def learn(self, name: str, topics: Iterable[str]) -> list[str]:
        """Add topics of a mirror, and return the new ones, sorted."""
        shown = set(topics)
        if shown.issubset(self.topics(name)):
            return []
        with self._locked():
            known, key = self._read(), naming.path(self.prefix, name)
            seen = known.get(key, [])
            new = sorted(shown.difference(seen))
            if new:
                self._write({**known, key: sorted(shown.union(seen))})
        return new

    def _read(self) -> Mapping[str, list[str]]:
        try:
            text = self.path.read_text(encoding="utf-8")
        except (OSError, ValueError):
            return {}
        return CATALOG.recalled(_Topics, text).mirrors

    @contextmanager
    def _locked(self) -> Iterator[None]:
        self.path.parent.mkdir(parents=True, exist_ok=True)
        with self.path.with_suffix(".lock").open("w") as held:
            fcntl.flock(held, fcntl.LOCK_EX)
            yield

    def _write(self, known: Mapping[str, list[str]]) -> None:
        draft = self.path.with_suffix(".draft")
        draft.write_text(CATALOG.text(_Topics(known)), encoding="utf-8")
        draft.replace(self.path)


def discover(catalog: Catalog, mirrors: Mapping[str, Mirror], clock: Clock) -> None:
    """Ask sources for the topics that patterns select, if none of a mirror was ever seen.

    So they have assets when the definitions are loaded for the first time. All sources are asked at
    once, for `health.request_timeout`. A source that does not answer is asked again by the next
    loading or by its planner, and so is any if the catalog cannot be written.
    """
    new = {
        name: mirror
        for name, mirror in mirrors.items()
        if len(literal_names(mirror.topics.allow)) < len(mirror.topics.allow)
        and not catalog.topics(name)
    }
    if not new:
        return
    with ThreadPoolExecutor(len(new), thread_name_prefix="discover") as pool:
        answers = {
            name: pool.submit(upstream_selection.probe, Sides(name, mirror, clock))
            for name, mirror in new.items()
        }
    for name, answer in answers.items():
        topics = {tp.topic for state in answer.result() for tp in state.logs}
        with suppress(OSError):
            catalog.learn(name, topics)
