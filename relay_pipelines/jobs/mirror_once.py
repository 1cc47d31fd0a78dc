"""`mirror_once`: one run copies everything that is new, one window per lane."""

from collections.abc import Iterator

import dagster as dg

from relay_pipelines.errors import RelayError
from relay_pipelines.orchestration import naming
from relay_pipelines.orchestration.job_builder import build_job
from relay_pipelines.orchestration.shortcuts import Batch
from relay_pipelines.orchestration.stopping import Session, Stop
from relay_pipelines.orchestration.topic_catalog import Catalog
from relay_pipelines.resources import KafkaResource
from relay_pipelines.settings import Settings
from relay_pipelines.windows.cut import UNLIMITED
from relay_pipelines.windows.lane_run import LaneRun, failures


def build(settings: Settings, catalog: Catalog) -> dg.JobDefinition:
    """Build the job for all mirrors of these settings."""

    def copy(
        context: dg.OpExecutionContext, kafka: KafkaResource, stop: Stop, session: Session
    ) -> Iterator[Batch]:
        problems = []
        runs = []
        for lane in (lane for each in settings.mirrors.items() for lane in catalog.lanes(*each)):
            copying = LaneRun(context, lane, kafka, session, stop, catalog)
            runs.append(copying)
            if not copying.place.wait():
                break
            try:
                reports = yield from copying.copy_new(UNLIMITED)
            except RelayError as error:
                problems.append(f"{lane.mirror}/{lane.name}: {error}")
            else:
                problems += [*failures(reports), *copying.unseen]
        for copying in runs:
            problems += yield from copying.finish()
        if stop() or any(copying.place.is_over for copying in runs):
            raise dg.DagsterExecutionInterruptedError
        if problems:
            raise dg.Failure("; ".join(problems))

    return build_job(
        naming.job(catalog.prefix, "mirror_once"),
        naming.job(catalog.prefix, "copy_everything"),
        "Copies everything that is new, up to the current end of each source, then ends.",
        copy,
        prefix=catalog.prefix,
    )
