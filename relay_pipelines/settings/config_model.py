"""What all mappings of relay.yaml have in common, and how they report problems.

A message built here never contains the value: a value may be a secret, and only
`validation_errors.py` decides whether it may be shown.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Self

from pydantic import BaseModel, ConfigDict, model_validator
from pydantic_core import PydanticCustomError

Location = tuple[str | int, ...]
Problem = tuple[Location, str]
"""Where, below the value that is validated, and what is wrong."""


def expected(what: str, why: str = "") -> PydanticCustomError:
    """The value is not `what`; `why` explains the rule if it is not obvious."""
    return PydanticCustomError("expected", "expected {what}", {"what": what, "why": why})


def refuse(problems: Iterable[Problem]) -> None:
    """Raise all problems at once, if there are any."""
    if found := list(problems):
        raise PydanticCustomError("problems", "several problems", {"found": found})


class Section(BaseModel):
    """A mapping of relay.yaml: unknown keys are errors, a key without a value has its default."""

    model_config = ConfigDict(
        frozen=True, extra="forbid", hide_input_in_errors=True, use_attribute_docstrings=True
    )

    @model_validator(mode="before")
    @classmethod
    def _null_is_default(cls, data: Any) -> Any:
        if not isinstance(data, dict):
            return data
        known = {field.alias or name for name, field in cls.model_fields.items()}
        return {key: value for key, value in data.items() if value is not None or key not in known}

    @model_validator(mode="after")
    def _has_no_problems(self) -> Self:
        refuse(self.problems())
        return self

    def problems(self) -> Iterable[Problem]:
        """Find keys that contradict each other."""
        return ()

    def overridden_by(self, override: Self | None) -> Self:
        """Return these settings with every key that `override` sets replaced, at any depth."""
        if override is None:
            return self
        changed = {}
        for name in override.model_fields_set:
            here, there = getattr(self, name), getattr(override, name)
            changed[name] = (
                here.overridden_by(there)
                if isinstance(here, Section) and isinstance(there, Section)
                else there
            )
        return self.model_copy(update=changed)
