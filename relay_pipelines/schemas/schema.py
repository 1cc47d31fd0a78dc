"""Schemas as registries store them, and whether two are the same."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

_AVRO = "AVRO"
_AS_JSON = {_AVRO, "JSON"}
_MORE = ("metadata", "ruleSet")


class Reference(NamedTuple):
    """A schema that another one uses.

    Args:
        name: by which the other one calls it.
        subject: without the context of its registry.
    """

    name: str
    subject: str
    version: int


@dataclass(frozen=True, slots=True)
class Schema:
    """What is registered under an id.

    Args:
        more: metadata and rules as JSON; empty for none.
    """

    text: str
    type: str = _AVRO
    references: tuple[Reference, ...] = ()
    more: str = ""

    def differences(self, other: Schema) -> Iterator[str]:
        """Yield in what the other one differs."""
        if self.type != other.type:
            yield "type"
        elif self._comparable != other._comparable:
            yield "text"
        if self.references != other.references:
            yield "references"
        if self.more != other.more:
            yield "metadata or rules"

    def is_same(self, other: Schema | None) -> bool:
        """Whether the other one is the same; registries write JSON with other spaces."""
        return other is not None and not any(self.differences(other))

    @property
    def _comparable(self) -> Any:
        if self.type in _AS_JSON:
            try:
                return json.loads(self.text)
            except ValueError:
                pass
        return self.text


def schema_of(answer: Mapping[str, Any], context_prefix: str) -> Schema:
    """Return the schema of a registry's answer.

    Args:
        context_prefix: with which subjects of the registry's context may begin.
    """
    references = tuple(
        Reference(
            str(each["name"]),
            str(each["subject"]).removeprefix(context_prefix),
            int(each["version"]),
        )
        for each in answer.get("references") or ()
    )
    more = {key: answer[key] for key in _MORE if answer.get(key)}
    return Schema(
        str(answer["schema"]),
        answer.get("schemaType") or _AVRO,
        references,
        json.dumps(more, sort_keys=True) if more else "",
    )
