"""What `relay schemas` is asked for."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from relay_pipelines.audit.request import Selection
from relay_pipelines.request import asked


class SchemasAction(StrEnum):
    """What to do about the schemas of copied records."""

    VERIFY = "verify"
    PLAN = "plan"
    APPLY = "apply"


@dataclass(frozen=True, slots=True)
class SchemasRequest(Selection):
    """Which copies are looked at for ids, and which subjects are registered.

    Args:
        full: whether all records are read, and not only some of each topic-partition.
        subjects: of the source's registry; none for all.
    """

    full: bool = asked("Let verify read all records, not only some.", False)  # noqa: FBT003
    subjects: tuple[str, ...] = asked(
        "Let plan and apply take only this subject, with what it references; may be repeated.",
        (),
        name="subject",
        short="s",
        metavar="SUBJECT",
    )
