"""`move`: the steps of a move as a job of Dagster, and the rehearsals that a schedule repeats."""

from collections.abc import Iterator, Sequence
from typing import Any

import dagster as dg
from pydantic import Field

from relay_pipelines.errors import ConfigError, RelayError
from relay_pipelines.finding import Finding
from relay_pipelines.move.gates import GATES, Gate, GateState
from relay_pipelines.move.move import Move
from relay_pipelines.move.record import MoveRecord
from relay_pipelines.move.rehearsal import Rehearsal
from relay_pipelines.move.request import MoveRequest, MoveStep
from relay_pipelines.move.states import FenceBy
from relay_pipelines.orchestration import naming, run_tags
from relay_pipelines.orchestration.check_builder import CheckResult, build_checks, check_spec
from relay_pipelines.orchestration.job_builder import build_job, config_schema
from relay_pipelines.orchestration.shortcuts import Batch
from relay_pipelines.orchestration.stopping import Session as StartSession
from relay_pipelines.orchestration.stopping import Stop
from relay_pipelines.request import filled
from relay_pipelines.resources import KafkaResource
from relay_pipelines.run.run import never
from relay_pipelines.run.session import Session
from relay_pipelines.settings import Mirror, Settings, Spark
from relay_pipelines.sides import Sides

_DEFAULTS = {"still": "10s", "recent": "1h"}
_OP = "step_of_move"


class _RunSession(Session):
    """The Spark session of a Dagster run, which stops as that does."""

    def __init__(self, start: StartSession, stop: Stop) -> None:
        super().__init__(Spark())
        self._start, self._stop = start, stop

    def stopped(self) -> bool:
        return self._stop()

    def __call__(self) -> Any:
        return self._start()


def build(settings: Settings, prefix: tuple[str, ...] = ()) -> dg.JobDefinition:
    """Build the job for all mirrors of these settings."""

    def step(
        context: dg.OpExecutionContext, kafka: KafkaResource, stop: Stop, session: StartSession
    ) -> Iterator[Batch]:
        config = context.op_config
        name = config["mirror"]
        try:
            do = _step_of(config["step"])
            sides = Sides(name, settings.mirror(name), kafka.clock)
            request = filled(MoveRequest, config)
            path = naming.path(prefix, name)
            run_tags.add(context.instance, context.run_id, {naming.TAG_MIRROR: path})
            by = f"Dagster run {context.run_id}"
            started = _RunSession(session, stop)
            move = Move(sides, request, started, by, context.log.info)
            yield list(_events(path, move, do))
        except RelayError as error:
            raise _failure(str(error)) from None

    return build_job(
        naming.job(prefix, "move"),
        naming.job(prefix, _OP),
        "A step of a move, as `relay move`: `rehearse` reports the gates as checks. What it changes"
        " needs the mirror's name, which the launchpad asks for.",
        step,
        prefix=prefix,
        config=config_schema(
            MoveRequest,
            _DEFAULTS,
            mirror=(str, Field(description="The mirror's name, as in relay.yaml.")),
            step=(str, Field(str(MoveStep.REHEARSE), description=f"{', '.join(MoveStep)}.")),
        ),
        tags={naming.TAG_MAX_RETRIES: "0", naming.TAG_PRIORITY: "-1"},
        pool=naming.AUDITS_POOL,
    )


def _step_of(text: str) -> MoveStep:
    try:
        return MoveStep(text)
    except ValueError:
        raise ConfigError(
            f"there is no step {text!r}", remedy=f"write one of {', '.join(MoveStep)}"
        ) from None


def asset(path: str, mirror: Mirror) -> list[dg.AssetSpec]:
    """The rehearsals that the mirror's schedule repeats, if it has one."""
    if mirror.move.schedule is None:
        return []
    return [
        dg.AssetSpec(
            naming.move_asset(path),
            description=f"Rehearsals of the move of {path}, and its steps, one materialisation"
            " each. Its checks are the gates.",
            group_name=naming.group(path),
            kinds={"move"},
            metadata={"schedule": mirror.move.schedule},
        )
    ]


def checks(name: str, mirror: Mirror, prefix: tuple[str, ...]) -> list[dg.AssetChecksDefinition]:
    """The gates of the move, if the mirror has a schedule; executed here, they are looked at."""
    if mirror.move.schedule is None:
        return []
    path = naming.path(prefix, name)

    def look(
        _context: dg.AssetCheckExecutionContext,
        kafka: KafkaResource,
        keys: Sequence[dg.AssetCheckKey],
    ) -> Iterator[dg.AssetCheckEvaluation]:
        session = _RunSession(_no_spark, never)
        sides = Sides(name, mirror, kafka.clock)
        move = Move(sides, scheduled_request(mirror), session)
        yield from (e for e in _evaluations(path, move.rehearse()) if e.asset_check_key in keys)

    specs = [
        check_spec(key, f"The gate {gate!r} of a move holds.") for gate, key in _keys(path).items()
    ]
    return [build_checks(f"gates_{naming.group(path)}", specs, look, prefix)]


def scheduled(
    name: str,
    mirror: Mirror,
    job: dg.JobDefinition,
    status: dg.DefaultScheduleStatus,
    prefix: tuple[str, ...] = (),
) -> list[dg.ScheduleDefinition]:
    """Build the schedule of a mirror's rehearsals, if relay.yaml has one."""
    cron = mirror.move.schedule
    if cron is None:
        return []
    config = {"mirror": name, "step": str(MoveStep.REHEARSE), "by": mirror.move.by}
    return [
        dg.ScheduleDefinition(
            name=naming.rehearsal(naming.path(prefix, name)),
            job=job,
            cron_schedule=cron,
            run_config={"ops": {naming.job(prefix, _OP): {"config": config}}},
            default_status=status,
            description=f"Rehearses the move of {name}. Changes nothing.",
        )
    ]


def scheduled_request(mirror: Mirror) -> MoveRequest:
    """Return what relay.yaml says that Dagster rehearses by itself."""
    return MoveRequest(by=FenceBy(mirror.move.by))


def _events(path: str, move: Move, do: MoveStep) -> Iterator[Any]:
    """Do a step, and yield what it has found.

    Raises:
        RelayError: it is refused.
        dg.Failure: something is not as it should be after it.
    """
    if do.is_rehearsal:
        rehearsed = move.rehearse()
        yield dg.AssetMaterialization(naming.move_asset(path), metadata=_rehearsed(rehearsed))
        yield from _evaluations(path, rehearsed)
        return
    result = move.do(do)
    for line in result.lines:
        move.say(line)
    if result.exit_code:
        raise _failure("; ".join(str(finding) for finding in result.findings if finding.exit_code))
    metadata = {**_state(result.record), "found": dg.MetadataValue.text("\n".join(result.lines))}
    yield dg.AssetMaterialization(naming.move_asset(path), metadata=metadata)


def _evaluations(path: str, rehearsal: Rehearsal) -> Iterator[dg.AssetCheckEvaluation]:
    keys = _keys(path)
    for gate in rehearsal.gates:
        yield check_result(gate).evaluation(keys[gate.name])


def check_result(gate: Gate) -> CheckResult:
    """Return a gate as a check: one that could not be looked at is a warning, and does not pass."""
    shown: Sequence[Finding] = gate.reasons or gate.findings
    reasons = "\n".join(map(str, shown))
    unseen = gate.state is GateState.NOT_SEEN
    return CheckResult(
        gate.state is GateState.HOLDS,
        "; ".join(
            filter(None, [str(gate.state) if unseen else "", str(shown[0] if shown else gate.saw)])
        ),
        {
            "state": str(gate.state),
            "looked at": gate.saw,
            "reasons": dg.MetadataValue.text(reasons),
        },
        dg.AssetCheckSeverity.WARN if unseen else dg.AssetCheckSeverity.ERROR,
    )


def _rehearsed(rehearsal: Rehearsal) -> dict[str, Any]:
    return {
        **_state(rehearsal.record),
        "now": rehearsal.summary,
        "gates": dg.MetadataValue.table([_row(gate) for gate in rehearsal.gates]),
        "offsets to copy": rehearsal.waiting,
        "topic-partitions": len(rehearsal.partitions),
        "groups": len(rehearsal.groups.positions),
    }


def _row(gate: Gate) -> dg.TableRecord:
    reasons = "; ".join(map(str, gate.reasons or gate.findings))
    return dg.TableRecord(
        {"gate": gate.name, "state": str(gate.state), "looked at": gate.saw, "reasons": reasons}
    )


def _state(record: MoveRecord) -> dict[str, Any]:
    return {"state": str(record.state), "where": record.where}


def _keys(path: str) -> dict[str, dg.AssetCheckKey]:
    at = naming.move_asset(path)
    return {gate: dg.AssetCheckKey(at, gate.replace(" ", "_")) for gate in GATES}


def _no_spark() -> Any:
    raise ConfigError("a rehearsal needs no Spark")


def _failure(what: str) -> dg.Failure:
    # a step that is refused would be refused again
    return dg.Failure(what, allow_retries=False)
