"""Runs, backfills and checks by the GraphQL requests that the UI sends."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from relay_pipelines.demo.dagster import REPOSITORY, Dagster
from tests.support.independent import until

_ASSETS = {"pipelineName": "__ASSET_JOB"}
_PAUSE_SECONDS = 1.0  # a query takes a tenth of a second of the processor
_RUNS = """{ runsOrError(limit: 100) { ... on Runs {
  results { runId status jobName startTime tags { key value } } } } }"""
_LOGS = """query($id: ID!, $after: String) {
  logsForRun(runId: $id, afterCursor: $after, limit: 1000) { ... on EventConnection {
  cursor hasMore events { ... on MessageEvent { message timestamp }
  ... on ErrorEvent { error { message } } } } } }"""
_LAUNCH = """mutation($params: ExecutionParams!) {
  launchPipelineExecution(executionParams: $params) { __typename
  ... on LaunchRunSuccess { run { runId } } ... on PythonError { message }
  ... on RunConfigValidationInvalid { errors { message } } } }"""
_BACKFILL = """mutation($params: LaunchBackfillParams!) {
  launchPartitionBackfill(backfillParams: $params) { __typename
  ... on LaunchBackfillSuccess { backfillId } ... on PythonError { message } } }"""
_TICKS = """query($selector: SensorSelector!) { sensorOrError(sensorSelector: $selector) {
  ... on Sensor { sensorState { ticks(limit: 3) { status } } } } }"""
_ADD_PARTITION = """mutation($repositorySelector: RepositorySelector!, $name: String!,
  $key: String!) { addDynamicPartition(repositorySelector: $repositorySelector,
  partitionsDefName: $name, partitionKey: $key) { __typename ... on PythonError { message } } }"""
_RELOAD = """mutation($location: String!) {
  reloadRepositoryLocation(repositoryLocationName: $location) { __typename } }"""
_TERMINATE = """mutation($id: String!) { terminateRun(runId: $id) { __typename
  ... on PythonError { message } } }"""
_BACKFILL_STATUS = """query($id: String!) { partitionBackfillOrError(backfillId: $id) {
  ... on PartitionBackfill { status } } }"""
_ASSET = """query($key: AssetKeyInput!) { assetNodeOrError(assetKey: $key) { ... on AssetNode {
  assetPartitionStatuses { ... on DefaultPartitionStatuses {
    materializedPartitions failedPartitions unmaterializedPartitions } } } } }"""
_CHECKS = """query($key: AssetKeyInput!, $name: String!) {
  assetCheckExecutions(assetKey: $key, checkName: $name, limit: 20) {
  status evaluation { success description partition } } }"""
_GRAPH = """query($keys: [AssetKeyInput!]) { assetNodes(assetKeys: $keys) {
  assetKey { path } groupName assetMaterializations(limit: 1) { runId }
  assetChecksOrError { ... on AssetChecks { checks { name
  executionForLatestMaterialization { status } } } } } }"""
_BACKFILL_ENDED = {"COMPLETED_SUCCESS", "COMPLETED_FAILED", "FAILED", "CANCELED"}
ENDED = {"SUCCESS", "FAILURE", "CANCELED"}


def wait(condition: Callable[..., Any], what: str, seconds: float = 120.0) -> Any:
    """Poll with pauses until the condition is true, and return its value."""
    return until(condition, what, seconds, _PAUSE_SECONDS)


@dataclass(frozen=True)
class Run:
    """One run as the run list shows it; `started` is 0 if its process has not begun."""

    id: str
    status: str
    job: str
    tags: Mapping[str, str]
    started: float

    @property
    def window(self) -> str:
        """The asset partition."""
        return self.tags.get("dagster/partition", "")


def runs(dagster: Dagster) -> list[Run]:

    def run(found: dict[str, Any]) -> Run:
        tags = {tag["key"]: tag["value"] for tag in found["tags"]}
        named = found["runId"], found["status"], found["jobName"]
        return Run(*named, tags, found["startTime"] or 0.0)

    return [run(found) for found in dagster.ask(_RUNS)["runsOrError"]["results"]]


def messages(dagster: Dagster, run_id: str, since: float = 0.0) -> list[str]:
    """The messages in the log of a run since a time, with those of errors."""
    found: list[str] = []
    page: dict[str, Any] = {"cursor": None, "hasMore": True}
    while page["hasMore"]:
        page = dagster.ask(_LOGS, {"id": run_id, "after": page["cursor"]})["logsForRun"]
        found += [
            " ".join(filter(None, [event.get("message"), _reason(event)]))
            for event in page["events"]
            if float(event.get("timestamp") or 0) >= since * 1000
        ]
    return found


def _reason(event: Mapping[str, Any]) -> str:
    return (event.get("error") or {}).get("message", "")


def launch(dagster: Dagster, job: str, config: Mapping[str, Any] | None = None) -> str:
    return _launched(dagster, {"pipelineName": job}, runConfigData=config or {})


def materialize(dagster: Dagster, keys: Sequence[Sequence[str]], window: str) -> str:
    """Materialise one asset partition, like the button in the UI; return the id of the run."""
    selected = {"assetSelection": [{"path": list(key)} for key in keys]}
    tags = [{"key": "dagster/partition", "value": window}]
    return _launched(dagster, _ASSETS | selected, executionMetadata={"tags": tags})


def _launched(dagster: Dagster, selector: Mapping[str, Any], **more: Any) -> str:
    params = {"selector": REPOSITORY | dict(selector), "mode": "default", **more}
    launched = dagster.ask(_LAUNCH, {"params": params})["launchPipelineExecution"]
    assert "run" in launched, launched
    return str(launched["run"]["runId"])


def reload(dagster: Dagster) -> None:
    """Reload the code location, like the button in the UI."""
    location = REPOSITORY["repositoryLocationName"]
    answer = dagster.ask(_RELOAD, {"location": location})["reloadRepositoryLocation"]
    assert answer["__typename"] == "WorkspaceLocationEntry", answer


def add_partition(dagster: Dagster, name: str, key: str) -> None:
    selector = {"repositorySelector": REPOSITORY, "name": name, "key": key}
    answer = dagster.ask(_ADD_PARTITION, selector)["addDynamicPartition"]
    assert answer["__typename"] == "AddDynamicPartitionSuccess", answer


def status(dagster: Dagster, run_id: str) -> str:
    return next(run.status for run in runs(dagster) if run.id == run_id)


def terminate(dagster: Dagster, run_id: str) -> None:
    """Ask a run to stop, like the button in the UI; it may have ended a moment before."""
    answer = dagster.ask(_TERMINATE, {"id": run_id})["terminateRun"]
    succeeded = answer["__typename"] == "TerminateRunSuccess"
    assert succeeded or status(dagster, run_id) not in {"STARTING", "STARTED"}, answer


def backfill(dagster: Dagster, *chosen: tuple[Sequence[str], Sequence[str]]) -> str:
    """Launch a backfill of windows, as the UI does for one asset or several; return its id."""
    params: dict[str, Any] = {
        "partitionsByAssets": [
            {
                "assetKey": {"path": list(key)},
                "partitions": {"ranges": [{"start": each, "end": each} for each in windows]},
            }
            for key, windows in chosen
        ]
    }
    if len(chosen) == 1:
        ((key, windows),) = chosen
        params = {"assetSelection": [{"path": list(key)}], "partitionNames": list(windows)}
    answer = dagster.ask(_BACKFILL, {"params": params})["launchPartitionBackfill"]
    assert "backfillId" in answer, answer
    return str(answer["backfillId"])


def backfill_ended(dagster: Dagster, backfill_id: str, seconds: float = 120.0) -> str:

    def status() -> str | None:
        now = dagster.ask(_BACKFILL_STATUS, {"id": backfill_id})["partitionBackfillOrError"]
        return now["status"] if now["status"] in _BACKFILL_ENDED else None

    return str(wait(status, "the end of the backfill", seconds))


def ended(dagster: Dagster, run_id: str, seconds: float = 120.0) -> Run:
    """Wait until a run ends and return it."""

    def found() -> Run | None:
        own = (run for run in runs(dagster) if run.id == run_id and run.status in ENDED)
        return next(own, None)

    result: Run = wait(found, f"the end of run {run_id}", seconds)
    return result


def partitions(dagster: Dagster, key: Sequence[str]) -> dict[str, list[str]]:
    found = dagster.ask(_ASSET, {"key": {"path": list(key)}})["assetNodeOrError"]
    statuses = found["assetPartitionStatuses"].items()
    return {name.removesuffix("Partitions"): windows for name, windows in statuses}


def graph(
    dagster: Dagster, keys: Sequence[Sequence[str]] | None = None
) -> dict[str, tuple[bool, dict[str, str]]]:
    """Whether each asset was materialised, and its checks that are up to date, as shown."""
    asked = {"keys": None if keys is None else [{"path": list(key)} for key in keys]}
    return {
        "/".join(upstream["assetKey"]["path"]): (
            bool(upstream["assetMaterializations"]),
            {
                check["name"]: check["executionForLatestMaterialization"]["status"]
                for check in upstream["assetChecksOrError"].get("checks", [])
                if check["executionForLatestMaterialization"]
            },
        )
        for upstream in dagster.ask(_GRAPH, asked)["assetNodes"]
    }


def ticks(dagster: Dagster, sensor: str) -> list[str]:
    """How the last ticks of a sensor ended, the newest first."""
    found = dagster.ask(_TICKS, {"selector": REPOSITORY | {"sensorName": sensor}})
    return [tick["status"] for tick in found["sensorOrError"]["sensorState"]["ticks"]]


def checks(dagster: Dagster, key: Sequence[str], name: str) -> list[dict[str, Any]]:
    found = dagster.ask(_CHECKS, {"key": {"path": list(key)}, "name": name})["assetCheckExecutions"]
    return [execution["evaluation"] for execution in found if execution["evaluation"]]
