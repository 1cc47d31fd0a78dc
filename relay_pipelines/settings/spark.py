"""Where the copy runs."""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import Field, model_validator

from relay_pipelines.settings.config_model import Section
from relay_pipelines.settings.values import Location, SparkValue, Text, complaints


class Spark(Section):
    """Where the copy runs. After loading, exactly one of `master` and `remote` is set."""

    master: Text | None = None
    """A Spark master; local[*], this machine's cores, when `remote` is not given either."""
    remote: Annotated[str, Field(pattern=r"^sc://[^/]+")] | None = None
    """A Spark Connect server, sc://host:port."""
    conf: dict[str, SparkValue] = Field(default={}, repr=False)
    """Spark configuration, flat: {spark.executor.memory: 2g}."""

    @model_validator(mode="before")
    @classmethod
    def _default_master(cls, data: Any) -> Any:
        if isinstance(data, dict) and data.get("master") is None and data.get("remote") is None:
            return {**data, "master": "local[*]"}
        return data

    @model_validator(mode="after")
    def _one_spark_and_no_speculation(self) -> Spark:
        found: list[tuple[Location, str]] = []
        if self.master and self.remote:
            found.append((("remote",), "master and remote are both given; keep one"))
        if self.conf.get("spark.speculation", "").strip().lower() == "true":
            # a speculative twin fences the task it doubles, which fails the range instead of
            # hurrying it
            found.append(
                (
                    ("conf", "spark.speculation"),
                    "two tasks would copy the same range and fence each other; remove it",
                )
            )
        found += [
            (("conf", f"spark.{key}"), f"belongs one level up, as the key {key} of spark")
            for key in ("master", "remote")
            if f"spark.{key}" in self.conf
        ]
        if found:
            raise complaints(*found)
        return self
