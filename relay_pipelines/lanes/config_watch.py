"""Whether relay.yaml has changed since a session has read it."""

import logging
from pathlib import Path

from relay_pipelines import settings
from relay_pipelines.errors import ConfigError
from relay_pipelines.lanes.lane import Lane, lanes_of
from relay_pipelines.lanes.topic_catalog import Catalog
from relay_pipelines.resources import KafkaResource
from relay_pipelines.settings import Settings


class ConfigWatch:
    """Looks at the file again and again, and reads it if it was written."""

    def __init__(
        self, kafka: KafkaResource, lane: Lane, catalog: Catalog, log: logging.Logger
    ) -> None:
        self._path = Path(kafka.config_path)
        self._written = self._state()
        self._settings = kafka.settings
        self._lane = lane
        self._catalog = catalog
        self._log = log

    def change(self) -> str:
        """Say what has changed; empty if nothing has, or if the file cannot be used."""
        written = self._state()
        if written == self._written:
            return ""
        self._written = written
        try:
            found = settings.load(self._path)
        except ConfigError as error:
            self._log.warning(
                "relay.yaml has changed, and its last version stays in use: %s", error
            )
            return ""
        if not has_lane(found, self._lane, self._catalog):
            return f"{self._lane.mirror}/{self._lane.name} is no longer in relay.yaml"
        return "" if found == self._settings else "relay.yaml has changed"

    def _state(self) -> tuple[int, int]:
        try:
            status = self._path.stat()
        except FileNotFoundError:
            return 0, 0
        return status.st_mtime_ns, status.st_size


def has_lane(loaded: Settings, lane: Lane, catalog: Catalog) -> bool:
    """Whether these settings have a mirror and a lane of these names."""
    mirror = loaded.mirrors.get(lane.mirror)
    if mirror is None:
        return False
    lanes = lanes_of(lane.mirror, mirror, catalog.known(lane.mirror, mirror))
    return lane.name in {found.name for found in lanes}
