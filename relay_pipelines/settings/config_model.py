"""What every mapping of relay.yaml has in common."""

from __future__ import annotations

from typing import Any, Self

from pydantic import BaseModel, ConfigDict, model_validator


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

    def with_over(self, over: Self | None) -> Self:
        """These settings, with those of another section over them: key by key, as far as the other one has them written down."""
        if over is None:
            return self
        changed = {}
        for name in over.model_fields_set:
            here, there = getattr(self, name), getattr(over, name)
            changed[name] = (
                here.with_over(there)
                if isinstance(here, Section) and isinstance(there, Section)
                else there
            )
        return self.model_copy(update=changed)
