"""A Spark driver in a process of its own: `... <pickled Request>` says as JSON what came of it."""

import json
import pickle
import sys
import threading
import warnings
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import pyarrow as pa

from relay_pipelines.errors import RelayError
from relay_pipelines.model import CopyJob, CopyRange
from relay_pipelines.spark.job import cancel, submit
from relay_pipelines.spark.session import connect, end, slots
from tests.support.independent import until

_PATIENCE_SECONDS = 120.0


@dataclass(frozen=True)
class Request:
    """Copy `groups`, a task each, so many `times`, until a file at `cancel_at` appears."""

    master: str | None = None
    remote: str | None = None
    conf: dict[str, str] = field(default_factory=dict)
    job: CopyJob | None = None
    groups: Sequence[Sequence[CopyRange]] = ()
    times: int = 1
    cancel_at: str = ""


def answer(request: Request) -> dict[str, Any]:
    try:
        session = connect(request.master, request.remote, request.conf)
        try:
            return _copied(session, request)
        finally:
            end(session)
    except RelayError as error:
        return {"error": str(error), "kind": type(error).__name__}


def cancelled(
    session: Any, job: CopyJob, groups: Sequence[Sequence[CopyRange]], when: Callable[[], bool]
) -> str:
    """Submit a copy, cancel it once `when()` is true, and return the error that `submit` raised."""
    told: list[str] = []

    def copy() -> None:
        try:
            submit(session, job, groups, job.run_id)
        except RelayError as error:
            told.append(str(error))

    thread = threading.Thread(target=copy, daemon=True)
    thread.start()
    until(lambda: when() or not thread.is_alive(), "the time to cancel", _PATIENCE_SECONDS)

    def ended() -> bool:
        cancel(session, job.run_id)
        thread.join(1)
        return not thread.is_alive()

    until(ended, "the end of the cancelled job")
    return told[0] if told else "the job ended without an error"


def _copied(session: Any, request: Request) -> dict[str, Any]:
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        cores = slots(session).now
    found: dict[str, Any] = {
        "slots": cores,
        "warnings": [str(message.message) for message in said],
        "package": _package(session),
    }
    if request.job is None:
        return found
    if request.cancel_at:
        return found | {
            "told": cancelled(session, request.job, request.groups, Path(request.cancel_at).exists)
        }
    outcomes = [
        submit(session, request.job, request.groups, f"run-{number}")
        for number in range(request.times)
    ]
    return found | {"outcomes": [[asdict(outcome) for outcome in group] for group in outcomes]}


def _package(session: Any) -> str:
    """Return the path from which a Spark task imports the package."""

    def look(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        import relay_pipelines

        for _ in batches:
            yield pa.RecordBatch.from_arrays([pa.array([relay_pipelines.__file__])], ["file"])

    return str(session.range(0, 1, 1, 1).mapInArrow(look, "file string").collect()[0].file)


if __name__ == "__main__":
    print(json.dumps(answer(pickle.loads(Path(sys.argv[1]).read_bytes()))))  # noqa: T201 - what the test reads
