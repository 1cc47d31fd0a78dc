"""How a run fails for good: Dagster's run retries look at a tag, not at the failure."""

import dagster as dg

from relay_pipelines.orchestration import naming, turns


def forbid_retries(context: dg.OpExecutionContext) -> None:
    """Keep Dagster from retrying the run if it fails."""
    turns.add_tags(context.instance, context.run_id, {naming.TAG_MAX_RETRIES: "0"})


def final_failure(context: dg.OpExecutionContext, what: str) -> dg.Failure:
    """Return a failure that another attempt would only repeat, such as a mistake of a person."""
    forbid_retries(context)
    return dg.Failure(what, allow_retries=False)
