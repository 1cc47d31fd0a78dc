"""A relay.yaml that changes while a run copies window after window: who uses it, and when."""

import logging
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from relay_pipelines import settings
from relay_pipelines.orchestration.lane import Lane
from relay_pipelines.orchestration.run_log import log_and_print
from relay_pipelines.orchestration.topic_catalog import Catalog
from relay_pipelines.resources import KafkaResource
from relay_pipelines.settings import Mirror, Settings
from relay_pipelines.settings.followed import Followed

_SHOWN = {"destination.bootstrap_servers", "topics.allow", "topics.deny", "topics.rename", "where"}
"""Keys whose values decide which records go where, and hold no secrets."""


@dataclass(frozen=True, slots=True)
class Change:
    """A change of relay.yaml.

    Args:
        what: what has changed, for people.
        settings: those to use from the next window on.
        lane: the run's lane by these settings; None if the run must end: the lane is gone, or
            another run has to start with what has changed.
    """

    what: str
    settings: Settings
    lane: Lane | None


class ConfigWatch:
    """Looks at the files again and again, and reads them if one was written."""

    def __init__(
        self, kafka: KafkaResource, lane: Lane, catalog: Catalog, log: logging.Logger
    ) -> None:
        load = partial(settings.load, Path(kafka.config_path))
        say = partial(log_and_print, log, level=logging.WARNING)
        self._followed = Followed(kafka.settings, load, lambda loaded: loaded, say)
        self._lane = lane
        self._catalog = catalog

    def change(self) -> Change | None:
        """Return what has changed for the lane; None if nothing has, or the file cannot be used."""
        before, name = self._followed.settings, self._lane.mirror
        if not self._followed.changed():
            return None
        loaded = self._followed.settings
        if (lane := lane_of(loaded, self._lane, self._catalog)) is None:
            return Change(f"{name}/{self._lane.name} is no longer in relay.yaml", loaded, None)
        mirror = loaded.mirror(name)
        starts_anew = _of_a_start(before, name) != _of_a_start(loaded, name)
        if before.mirror(name) == mirror and not starts_anew:
            return None
        keys = ", ".join(_differences(before.mirror(name), mirror))
        what = f"relay.yaml has changed ({keys})" if keys else "relay.yaml has changed"
        return Change(what, loaded, None if starts_anew else lane)


def lane_of(loaded: Settings, lane: Lane, catalog: Catalog) -> Lane | None:
    """The lane of this name by these settings, if they have it, with the topics that it has."""
    mirror = loaded.mirrors.get(lane.mirror)
    if mirror is None:
        return None
    lanes = catalog.lanes(lane.mirror, mirror)
    current = next((each for each in lanes if each.name == lane.name), None)
    return current and current.with_config(lane.op_config)


def _of_a_start(loaded: Settings, name: str) -> tuple[Any, ...]:
    """What only a run that starts can use: its Spark, and what its planner gives to other lanes."""
    return loaded.spark, loaded.mirror(name).all_lanes


def _differences(before: Mirror, after: Mirror) -> Iterator[str]:
    """Yield the keys that differ, some with their values."""
    old, new = (dict(_flat(each.model_dump())) for each in (before, after))
    for key in sorted(old.keys() | new.keys()):
        if old.get(key) != new.get(key):
            yield f"{key}: {_text(old.get(key))} -> {_text(new.get(key))}" if key in _SHOWN else key


def _text(value: object) -> str:
    return ",".join(map(str, value)) if isinstance(value, list | tuple) else str(value)


def _flat(values: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    for key, value in values.items():
        if isinstance(value, dict) and value:
            yield from _flat(value, f"{prefix}{key}.")
        else:
            yield f"{prefix}{key}", value
