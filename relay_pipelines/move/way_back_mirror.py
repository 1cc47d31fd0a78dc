"""The mirror that brings home what was written at the destination since a cut.

It is the mirror turned round: it reads the topics of the copies from the ends of the cut on, and
writes to the topics that they are copies of. Its checkpoints and its ledger are at the source.
"""

from __future__ import annotations

import re
from typing import Any

from relay_pipelines.errors import ConfigError
from relay_pipelines.ledger.checkpoint import way_back_name
from relay_pipelines.move.record import MoveRecord
from relay_pipelines.plan.topic_selection import renamed_target
from relay_pipelines.settings import Destination, Mirror, Source, Topics, Upstream
from relay_pipelines.settings.copying import RecordSettings
from relay_pipelines.settings.groups import Groups
from relay_pipelines.settings.models import Start


def name_of(record: MoveRecord) -> str:
    """Return the name of the mirror: that in the record, or the one that the next record gets."""
    return record.way_back.mirror or way_back_name(record.mirror, record.number)


def reversed_mirror(mirror: Mirror, record: MoveRecord) -> Mirror:
    """Return the mirror of the way back.

    Records come home as they are: filters and transforms of the mirror do not apply. The source's
    topics keep their configuration.

    Raises:
        ConfigError: the source has several upstreams, or a topic was pinned to a partition.
    """
    if len(mirror.source.upstreams) > 1:
        raise ConfigError(
            "the source has several upstreams, which would need the same records at the same"
            " offsets",
            remedy="nothing can be mirrored back to them: go on at the destination, or take one"
            " upstream as the source of a new mirror",
        )
    for topic in record.topics:
        if renamed_target(topic, mirror.topics.rename).partition is not None:
            raise ConfigError(
                f"the topic {topic} is pinned to a partition: of what others have written there,"
                " it is unknown to which source partition it belongs",
                remedy="nothing can be mirrored back from there: go on at the destination",
            )
    for each in record.cut:
        if (to := renamed_target(each.source.topic, mirror.topics.rename)).of(each.source) != (
            each.destination
        ):
            raise ConfigError(
                f"relay.yaml has {each.source.topic} copied to {to}, and it has moved to"
                f" {each.destination.topic}",
                remedy="name it there in topics.rename until the move is taken back",
            )
    (upstream,) = mirror.source.upstreams
    there = mirror.destination
    plain = RecordSettings()
    records: dict[str, Any] = {key: getattr(plain, key) for key in RecordSettings.model_fields}
    names = {each.destination.topic: each.source.topic for each in record.cut}
    return mirror.model_copy(
        update={
            **records,
            "source": Source(
                upstreams=(there.reached_as(Upstream, name="destination"),),
                schema_registry=there.schema_registry,
            ),
            "destination": upstream.reached_as(
                Destination, schema_registry=mirror.source.schema_registry
            ),
            "topics": Topics(
                allow=tuple(map(re.escape, sorted(names))), rename=names, config_keys=()
            ),
            "start": Start.model_validate(
                {"offsets": {str(each.destination): each.destination_end for each in record.cut}}
            ),
            "groups": Groups(),
        }
    )
