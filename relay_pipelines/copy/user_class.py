"""The user's filters and transforms: constructing them, and reporting what they raise."""

from __future__ import annotations

import json
from typing import Any, NamedTuple

from relay_pipelines.errors import ConfigError, FilterError, page
from relay_pipelines.model import ClassSpec, RecordPolicy, TopicPartition
from relay_pipelines.user_code import RAISED_BY_USERS, describe, find


class Kind(NamedTuple):
    """The purpose of a class; its entry point group is `relay_pipelines.<name>s`."""

    name: str
    method: str


FILTER, TRANSFORM = Kind("filter", "keep(record)"), Kind("transform", "transform(batch)")


def construct_all(record_policy: RecordPolicy) -> None:
    """Construct the classes that a topic's records pass, only to see whether that works.

    Raises:
        ConfigError: as `construct`.
    """
    for spec in record_policy.filters:
        construct(spec, FILTER)
    if record_policy.transform is not None:
        construct(record_policy.transform, TRANSFORM)


def construct(spec: ClassSpec, kind: Kind) -> Any:
    """Construct a class of this kind.

    Raises:
        ConfigError: the class does not exist, cannot be imported, refuses its configuration, or is
            of another kind.
    """
    where = f"{kind.name} {spec.name!r}"
    try:
        user_object = find(spec, kind.name)(**json.loads(spec.config))
    except ConfigError:
        raise
    except RAISED_BY_USERS as error:
        raise ConfigError(
            f"{where} cannot be constructed: {describe(error)}", remedy="see its config"
        ) from error
    if not callable(getattr(user_object, kind.method.partition("(")[0], None)):
        raise ConfigError(
            f"{where} has no method {kind.method}",
            remedy=f"see {page('Filter and change records')}",
        )
    return user_object


def record_error(
    what: str, error: BaseException, topic_partition: TopicPartition, offset: int
) -> FilterError:
    """Return the error for an exception that a user's class raised on a record."""
    return FilterError(
        f"{what} raised {describe(error)}",
        remedy="fix the class, or set on_record_error: quarantine, then run again",
        topic_partition=topic_partition,
        offset=offset,
    )
