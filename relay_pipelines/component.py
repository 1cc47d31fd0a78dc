"""The Dagster component `relay_pipelines.MirrorComponent`: the mirrors of a relay.yaml."""

# no `from __future__ import annotations`: Dagster resolves the attributes by their annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, NamedTuple
from weakref import WeakKeyDictionary

import dagster as dg
import yaml
from dagster.components.utils.translation import TranslationFn, TranslationFnResolver
from pydantic import BaseModel, Field

from relay_pipelines.definitions import build
from relay_pipelines.errors import ConfigError, RelayError
from relay_pipelines.migration.document import mirror_name
from relay_pipelines.orchestration import naming

_CONFIG = "relay.yaml"
# the folder of the component that has a key prefix, in each project that is loaded
_built: WeakKeyDictionary[object, dict[Sequence[str], Path]] = WeakKeyDictionary()


class Topic(NamedTuple):
    """A mirrored topic, by its name at the source."""

    mirror: str
    name: str


class _Parameters(BaseModel):
    """What `dg scaffold defs` asks for."""

    source: str = Field(
        "127.0.0.1:9092", description="Bootstrap servers of the source, separated by commas."
    )
    destination: str = Field(
        "127.0.0.1:9093", description="Bootstrap servers of the destination, separated by commas."
    )
    topics: str = Field(".*", description="A regular expression for the topics to copy.")


class _Scaffolder(dg.Scaffolder[_Parameters]):
    """Writes defs.yaml, and a relay.yaml with a mirror that has the name of the folder."""

    @classmethod
    def get_scaffold_params(cls) -> type[_Parameters]:
        return _Parameters

    def scaffold(self, request: dg.ScaffoldRequest[_Parameters]) -> None:
        given, folder = request.params, Path(request.target_path)
        attributes: dict[str, object] = {"config": _CONFIG}
        if _has_others(folder):
            attributes["key_prefix"] = [_as_prefix(folder.name)]
        dg.scaffold_component(request, attributes)
        path = folder / _CONFIG
        if path.exists():
            return
        mirror = {
            "source": {
                "upstreams": [{"name": "source", "bootstrap_servers": given.source.split(",")}]
            },
            "destination": {"bootstrap_servers": given.destination.split(",")},
            "topics": {"allow": [given.topics]},
        }
        head = "# `relay init` writes a relay.yaml with every key and its meaning.\n"
        document = {"version": 1, "mirrors": {mirror_name(folder.name): mirror}}
        path.write_text(head + yaml.safe_dump(document, sort_keys=False))
        if not (ignored := folder / ".gitignore").exists():
            ignored.write_text("var/\n")  # has the topics that were seen


def _has_others(folder: Path) -> bool:
    """Whether the project has a component with a relay.yaml already, which has the plain names."""
    root = next((parent for parent in folder.parents if parent.name == "defs"), folder.parent)
    return any(
        path.with_name("defs.yaml").exists()
        for path in root.rglob(_CONFIG)
        if path.parent != folder
    )


def _as_prefix(name: str) -> str:
    return re.sub(r"\W", "_", name, flags=re.ASCII)


@dg.scaffold_with(_Scaffolder)
@dataclass
class MirrorComponent(dg.Component, dg.Resolvable):
    """Mirrors Kafka topics: assets, checks, jobs and sensors of a relay.yaml."""

    config: Annotated[
        str, dg.Resolver.default(description="Path of relay.yaml, from the folder of defs.yaml.")
    ] = _CONFIG
    key_prefix: Annotated[
        str | list[str] | None,
        dg.Resolver.default(
            description="First parts of all asset keys. Of two such components, one needs it."
        ),
    ] = None
    translation: (
        Annotated[
            TranslationFn[Topic],
            TranslationFnResolver[Topic](
                lambda topic: {"mirror": topic.mirror, "topic": topic.name}
            ),
        ]
        | None
    ) = None
    """Attributes of the mirrored topics' assets, which may use `mirror`, `topic` and `spec`."""

    def get_asset_spec(self, spec: dg.AssetSpec, topic: Topic) -> dg.AssetSpec:
        """Return the spec of a mirrored topic; a subclass may change all but key and partitions.

        Args:
            spec: as relay would have it.
        """
        return self.translation(spec, topic) if self.translation else spec

    def build_defs(self, context: dg.ComponentLoadContext) -> dg.Definitions:
        """Build the definitions of relay.yaml.

        Raises:
            DagsterInvalidDefinitionError: relay.yaml is missing or invalid, or a spec has another
                key.
        """
        try:
            prefix = naming.parts(self.key_prefix or ())
            self._refuse_same_names(context, prefix)
            return build(Path(context.path) / self.config, prefix, self._changed)
        except RelayError as error:
            # of any other class, Dagster would show it below a message of its own
            raise dg.DagsterInvalidDefinitionError(str(error)) from None

    def _refuse_same_names(self, context: dg.ComponentLoadContext, prefix: Sequence[str]) -> None:
        """Refuse a second component with this prefix: Dagster would name a resource of ours."""
        paths = _built.setdefault(context.component_tree.state_tracker, {})
        other = paths.setdefault(prefix, context.path)
        if other != context.path:
            raise ConfigError(
                f"{context.path}: {other} has the same"
                f" {f'key_prefix, {list(prefix)}' if prefix else 'names, without a key_prefix'}",
                remedy=f"set key_prefix: [{_as_prefix(context.path.name)}] in this defs.yaml",
            )

    def _changed(self, spec: dg.AssetSpec) -> dg.AssetSpec:
        changed = self.get_asset_spec(spec, Topic(*spec.key.path[-2:]))
        if (changed.key, changed.partitions_def) != (spec.key, spec.partitions_def):
            raise ConfigError(
                f"{spec.key.to_user_string()}: key and partitions of a topic are fixed, because"
                " runs report their windows by them",
                remedy="use key_prefix of the component to move all assets",
            )
        return changed
