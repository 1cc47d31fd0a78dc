"""Builds jobs: one op in the run's own process, which a signal stops at the next commit."""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import MISSING
from enum import Enum
from typing import Any

import dagster as dg
from pydantic import Field, create_model

from relay_pipelines.orchestration import shortcuts
from relay_pipelines.orchestration.shortcuts import Batch
from relay_pipelines.orchestration.stopping import Session, Stop, stoppable
from relay_pipelines.request import AskedField, asked_fields
from relay_pipelines.resources import KafkaResource, kafka_key, kafka_of, spark_key, spark_of

Body = Callable[[dg.OpExecutionContext, KafkaResource, Stop, Session], Iterator[Batch]]
"""Gets what asks for a stop, and what starts Spark; yields the events that belong together."""


def build_job(
    name: str,
    op: str,
    description: str,
    body: Body,
    *,
    prefix: tuple[str, ...] = (),
    config: Any = None,
    tags: Mapping[str, str] | None = None,
    pool: str | None = None,
) -> dg.JobDefinition:
    """Build a job of one op.

    Args:
        name: of the job.
        prefix: the key prefix of the definitions.
        config: the schema of the op's configuration.
    """

    @dg.op(
        name=op,
        config_schema=config,
        out={},
        pool=pool,
        required_resource_keys={kafka_key(prefix), spark_key(prefix)},
    )
    def run(context: dg.OpExecutionContext) -> Iterator[Any]:
        kafka, pyspark = kafka_of(context, prefix), spark_of(context, prefix)

        def events(stop: Stop, session: Session) -> Iterator[Any]:
            # stored here, where a signal waits until that is done
            return shortcuts.stored(context, body(context, kafka, stop, session))

        yield from stoppable(context, pyspark, events)

    @dg.job(
        name=name,
        description=description,
        tags=dict(tags or {}),
        # a separate process for the op would cost two seconds
        executor_def=dg.in_process_executor,
    )
    def job() -> None:
        run()

    return job


def config_schema(
    request: type, defaults: Mapping[str, Any] | None = None, **more: tuple[Any, Any]
) -> Any:
    """Return the schema of a request's configuration, which the launchpad shows with its defaults.

    Args:
        defaults: by key, instead of those of the request.
        more: name -> type and `pydantic.Field` of what the job asks for besides.
    """
    name = request.__name__.removesuffix("Request")
    asked = {
        asked_field.key: _field(
            name, asked_field, (defaults or {}).get(asked_field.key, asked_field.default)
        )
        for asked_field in asked_fields(request)
    }
    fields: dict[str, Any] = {**more, **asked}
    return create_model(f"{name}Config", __base__=dg.Config, **fields).to_config_schema()


def _field(request: str, asked_field: AskedField, default: Any) -> tuple[Any, Any]:
    kind: Any = asked_field.asked.plain or (
        str if asked_field.asked.parse is not None else asked_field.kind
    )
    if asked_field.is_choice:
        # people write its values, and Dagster takes the names of an enumeration
        choices = {str(one): str(one) for one in asked_field.kind}
        kind = Enum(f"{request}{asked_field.kind.__name__}", choices)  # type: ignore[misc,no-redef]
        default = kind[str(default)]
    if asked_field.is_repeated and asked_field.asked.collect is None:
        kind, default = list[kind], list(default)
    elif default is None:
        kind = kind | None
    if default is MISSING:
        return kind, Field(description=asked_field.asked.help)
    return kind, Field(default, description=asked_field.asked.help)
