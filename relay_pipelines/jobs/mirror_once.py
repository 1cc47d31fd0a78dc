"""`mirror_once`: one run copies everything that is new, one window per lane."""

from collections.abc import Iterator

import dagster as dg

from relay_pipelines.errors import RelayError
from relay_pipelines.orchestration import naming, turns
from relay_pipelines.orchestration.lane import Lane, lanes_of
from relay_pipelines.orchestration.stopping import Session, Stop, stoppable
from relay_pipelines.orchestration.topic_catalog import Catalog
from relay_pipelines.resources import kafka_key, kafka_of, spark_key, spark_of
from relay_pipelines.settings import Settings
from relay_pipelines.windows.cut import UNLIMITED
from relay_pipelines.windows.lane_run import LaneRun, failures
from relay_pipelines.windows.window_events import Event


def build(settings: Settings, catalog: Catalog, prefix: tuple[str, ...] = ()) -> dg.JobDefinition:
    """Build the job for all mirrors of these settings."""

    @dg.op(
        name=naming.job(prefix, "copy_everything"),
        out={},
        required_resource_keys={kafka_key(prefix), spark_key(prefix)},
    )
    def copy_everything(context: dg.OpExecutionContext) -> Iterator[Event]:
        kafka, pyspark = kafka_of(context, prefix), spark_of(context, prefix)

        def copy(stop: Stop, session: Session) -> Iterator[Event]:
            problems = []
            runs = []
            for lane in _lanes(settings, catalog, prefix):
                turns.take(context, lane, kafka.clock, stop)
                copying = LaneRun(context, lane, kafka, session, stop, catalog)
                runs.append(copying)
                try:
                    report = yield from copying.copy_new(UNLIMITED)
                except RelayError as error:
                    problems.append(f"{lane.mirror}/{lane.name}: {error}")
                else:
                    problems += [*failures([report] if report else []), *copying.unseen]
            for copying in runs:
                problems += yield from copying.finish_checks()
            if stop():
                raise dg.DagsterExecutionInterruptedError
            if problems:
                raise dg.Failure("; ".join(problems))

        yield from stoppable(context, pyspark, copy)

    @dg.job(
        name=naming.job(prefix, "mirror_once"),
        description="Copies everything that is new, up to the current end of each source, then"
        " ends.",
        executor_def=dg.in_process_executor,
    )
    def mirror_once() -> None:
        copy_everything()

    return mirror_once


def _lanes(settings: Settings, catalog: Catalog, prefix: tuple[str, ...]) -> list[Lane]:
    return [
        lane
        for name, mirror in settings.mirrors.items()
        for lane in lanes_of(name, mirror, catalog.known(name, mirror), prefix)
    ]
