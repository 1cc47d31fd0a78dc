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


@dataclass(frozen=True, slots=True)
class Version:
    """A version of a subject.

    Args:
        subject: without the context of its registry.
        is_deleted: softly: its id still resolves.
    """

    subject: str
    number: int
    id: int
    schema: Schema
    is_deleted: bool = False

    @property
    def place(self) -> tuple[str, int]:
        """Subject and number."""
        return self.subject, self.number

    def __str__(self) -> str:
        return f"{self.subject} version {self.number}"


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


def to_request(version: Version, context_prefix: str) -> dict[str, Any]:
    """Return what registers a version under its own id and number."""
    schema = version.schema
    references = [
        {"name": each.name, "subject": context_prefix + each.subject, "version": each.version}
        for each in schema.references
    ]
    return {
        "schema": schema.text,
        "schemaType": schema.type,
        "references": references,
        "id": version.id,
        "version": version.number,
        **(json.loads(schema.more) if schema.more else {}),
    }
