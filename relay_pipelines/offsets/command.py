"""The command `offsets`: where consumers go on at the other side."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from relay_pipelines.errors import RelayError
from relay_pipelines.invocation import Invocation, the_mirror
from relay_pipelines.ledger.reader import read_checkpoints
from relay_pipelines.model import Side
from relay_pipelines.offsets.apply import apply, client_of
from relay_pipelines.offsets.positions import Answer, ConsumerPosition, Exactness, Outcome, State
from relay_pipelines.offsets.request import OffsetsAction, OffsetsRequest
from relay_pipelines.offsets.translate import (
    SourceLook,
    answers_to,
    committed_positions,
    look_at_source,
    look_to_leave,
    read_translation,
    topic_ids,
    translate,
)
from relay_pipelines.offsets.verify import verify
from relay_pipelines.output import messages, tables
from relay_pipelines.output.formatting import count, stdout
from relay_pipelines.protocol.client import ClusterClient
from relay_pipelines.sides import Sides

_FAILED = 1


def run(
    invocation: Invocation,
    mirror: str | None,
    request: OffsetsRequest,
    action: OffsetsAction,
    *,
    execute: bool,
    backwards: bool,
    as_json: bool,
) -> int:
    """Translate positions, commit or verify that if asked to, show it; return the exit code.

    Args:
        execute: whether to commit; otherwise it is only shown.
        backwards: whether groups may move back.
    """
    sides = the_mirror(invocation.settings(), mirror, "offsets are of")
    name, outcomes = sides.name, list[Outcome]()
    with invocation.reporting_errors(name):
        sides = sides.seen()
        positions, look = _positions(invocation, sides, request)
        if action is OffsetsAction.TRANSLATE:
            answers = translate(sides, positions, request.to, look)
        else:
            if action is OffsetsAction.VERIFY:
                outcomes = _verified(sides, positions, request)
            else:
                committing = partial(apply, execute=execute, backwards=backwards)
                outcomes = _applied(sides, positions, look, request, committing)
            answers = [outcome.answer for outcome in outcomes]
        if any(answer.exactness is Exactness.CANNOT for answer in answers):
            invocation.raise_exit_code(_FAILED)
        for outcome in outcomes:
            invocation.raise_exit_code(outcome.exit_code)
        if as_json:
            messages.document(document(name, request, answers, outcomes))
        else:
            tables.show(stdout(), table(name, request, answers, outcomes))
            if any(outcome.state is State.WOULD for outcome in outcomes):
                stdout().print(
                    f"{name}: nothing is changed; add --execute to do it", soft_wrap=True
                )
    return invocation.exit_code


def _applied(
    sides: Sides,
    positions: Sequence[ConsumerPosition],
    look: SourceLook | None,
    request: OffsetsRequest,
    committing: Callable[[ClusterClient, Sequence[Answer], Side], list[Outcome]],
) -> list[Outcome]:
    """Translate and commit."""
    with client_of(sides, request.to, request.upstream) as client:
        if request.to is Side.SOURCE:
            look = SourceLook(topic_ids(client, _source_topics(sides)))
        return committing(client, translate(sides, positions, request.to, look), request.to)


def _verified(
    sides: Sides, positions: Sequence[ConsumerPosition], request: OffsetsRequest
) -> list[Outcome]:
    """Translate, and compare the records around each position on both sides."""
    with (
        client_of(sides, Side.SOURCE, request.upstream) as source,
        sides.destination() as destination,
    ):
        look = look_to_leave(source, sides.mirror, positions, request.to)
        look = look or SourceLook(topic_ids(source, _source_topics(sides)))
        translation = read_translation(destination, look)
        answers = answers_to(translation, destination, positions, request.to)
        return verify(translation, source, destination, answers, request.to)


def _positions(
    invocation: Invocation, sides: Sides, request: OffsetsRequest
) -> tuple[list[ConsumerPosition], SourceLook | None]:
    """Return what is asked about, and what the source has of it if it was read."""
    if request.file:
        positions = request.positions()
        return positions, _look_at_uncopied(invocation, sides, positions, request)
    with client_of(sides, request.to.other, request.upstream) as client:
        positions, failed = committed_positions(client, request.groups, request.pattern)
        look = look_to_leave(client, sides.mirror, positions, request.to)
    for error in failed.values():
        invocation.fail(error, sides.name)
    return positions, look


def _look_at_uncopied(
    invocation: Invocation,
    sides: Sides,
    positions: Sequence[ConsumerPosition],
    request: OffsetsRequest,
) -> SourceLook | None:
    """Return what the source has of what was never copied; None if it need not be asked.

    Positions are in a file where the source may be gone: then these alone have no answer.
    """
    if request.to is Side.SOURCE:
        return None
    copied = read_checkpoints(sides).checkpoints
    uncopied = {position.topic_partition for position in positions}.difference(copied)
    if not uncopied:
        return None
    try:
        with client_of(sides, Side.SOURCE, request.upstream) as client:
            return look_at_source(client, sides.mirror, uncopied, patient=False)
    except RelayError as error:
        invocation.fail(error, sides.name)
        return None


def _source_topics(sides: Sides) -> set[str]:
    return {tp.topic for tp in read_checkpoints(sides).checkpoints}


def document(
    name: str,
    request: OffsetsRequest,
    answers: Sequence[Answer],
    outcomes: Sequence[Outcome] = (),
) -> dict[str, Any]:
    """Return the answers as JSON, and what became of them."""
    done = [{"state": str(outcome.state), "state_why": outcome.why or None} for outcome in outcomes]
    documents = [_document(answer) for answer in answers]
    return {
        "mirror": name,
        "to": request.to.value,
        "positions": [a | b for a, b in zip(documents, done, strict=True)] if done else documents,
    }


def _document(answer: Answer) -> dict[str, Any]:
    position = answer.position
    return {
        "group": position.group or None,
        "topic": position.topic_partition.topic,
        "partition": position.topic_partition.partition,
        "offset": position.offset,
        "to_topic": answer.to and answer.to.topic,
        "to_partition": answer.to and answer.to.partition,
        "to_offset": answer.offset,
        "exactness": answer.exactness.value,
        "rereads": answer.rereads,
        "why": answer.why or None,
        "nearest": answer.nearest,
        "notes": list(answer.notes),
    }


def table(
    name: str,
    request: OffsetsRequest,
    answers: Sequence[Answer],
    outcomes: Sequence[Outcome] = (),
) -> Any:
    """Return one row per answer."""
    table = tables.titled(f"{name}: to the {request.to.value}")
    groups = ("group",) if any(answer.position.group for answer in answers) else ()
    tables.add_columns(table, (*groups, "read up to"), ("offset",), ("goes on in",))
    tables.add_columns(table, (), ("at",), ("how", *(("state",) if outcomes else ())))
    for number, answer in enumerate(answers):
        position = answer.position
        cells = [position.group] if groups else []
        table.add_row(
            *cells,
            str(position.topic_partition),
            count(position.offset),
            "" if answer.to is None else str(answer.to),
            "" if answer.offset is None else count(answer.offset),
            "; ".join((_says(answer), *answer.notes)),
            *(
                ": ".join(filter(None, (outcome.state, outcome.why)))
                for outcome in outcomes[number:][:1]
            ),
        )
    return table


def _says(answer: Answer) -> str:
    nearest = "" if answer.nearest is None else f"; the nearest offset is {count(answer.nearest)}"
    return answer.says + nearest
