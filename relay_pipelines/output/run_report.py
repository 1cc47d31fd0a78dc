"""What the commands say about a plan, and about the run that has copied it."""

from __future__ import annotations

from relay_pipelines.finding import Finding, Kind, Severity, warning
from relay_pipelines.output import json_output, messages, tables
from relay_pipelines.output.formatting import count, open_transactions, plural, stdout, throttled
from relay_pipelines.prepare import findings, topic_configs
from relay_pipelines.protocol.clock import SystemClock
from relay_pipelines.run.result import RunResult
from relay_pipelines.run.run_plan import RunPlan


def show_plan(planned: RunPlan, document: json_output.Document, now_ms: int, *, why: bool) -> None:
    """Print what would be copied.

    Args:
        document: of the plan.
        why: whether to say for every topic why it is copied or not.
    """
    name, console = planned.snapshot.name, stdout()
    if planned.planned:
        tables.show(console, tables.plan(document))
    notes = []
    if not planned.planned and not planned.held:
        notes = [_nothing_new(planned)]
    notes += filter(None, [open_transactions(planned.snapshot.positions, now_ms)])
    if notes:
        console.print(f"{name}: {'; '.join(notes)}", soft_wrap=True)
    if why:
        tables.show(console, tables.why(document))
    for topic, number in document["to_grow"].items():
        console.print(
            f"{name}: {topic} will grow to {plural(number, 'partition')}, as its source has",
            soft_wrap=True,
        )


def warnings(planned: RunPlan) -> list[Finding]:
    """Return what a run leaves as it is, such as losses and conflicts, and what it takes over.

    Args:
        planned: of a snapshot with the configurations of all topics.
    """
    snapshot, resumes = planned.snapshot, "the copy resumes after the gap: on_data_loss is continue"
    lost = [
        warning(Kind.LOSS_ACCEPTED, str(each.topic_partition), each.what, resumes)
        for each in snapshot.accepted
    ]
    changed = {
        difference.topic for difference in topic_configs.differences(snapshot) if difference.is_ours
    }
    synced = changed if planned.snapshot.sides.mirror.topics.sync_configs else set()
    others = [
        each
        for each in findings.of_snapshot(snapshot)
        if each.severity is Severity.WARNING
        and each.kind != Kind.TAKEOVER
        and not (each.kind == Kind.CONFIG_DIFFERENCE and each.where in synced)
    ]
    return [*lost, *planned.takeovers, *others]


def report(planned: RunPlan, result: RunResult, *, as_json: bool) -> None:
    """Print what a run did."""
    name = result.mirror
    for failure in result.failures:
        messages.error(f"{name}: {failure}")
    for upstream, why in result.diverged.items():
        messages.warning(f"{name}: upstream {upstream} is in quarantine: {why}")
    if result.interrupted:
        messages.error(f"{name}: {_interrupted(planned, result)}")
    now_ms = SystemClock().now_ms()
    document = json_output.run(result, now_ms)
    if as_json:
        messages.json_line(document)
    else:
        _show(planned, result, document, now_ms)


def _show(planned: RunPlan, result: RunResult, document: json_output.Document, now_ms: int) -> None:
    name = result.mirror
    for change in result.reconfigured:
        stdout().print(f"{name}: {change.done}", soft_wrap=True)
    if result.topics:
        tables.show(stdout(), tables.summary(document))
    notes = []
    if not result.interrupted and not result.failures:
        if not planned.planned:
            notes = [_nothing_new(planned)]
        elif not result.topics:
            notes = ["nothing left to copy: another run has copied everything"]
    waits = throttled(result.throttled_seconds)
    notes += filter(None, [waits, open_transactions(planned.snapshot.positions, now_ms)])
    if notes:
        stdout().print(f"{name}: {'; '.join(notes)}", soft_wrap=True)


def _nothing_new(planned: RunPlan) -> str:
    topics_selected = len(planned.snapshot.destinations)
    if not topics_selected:
        return "no topic is selected: nothing was compared, and there is nothing to copy"
    return f"nothing new in {plural(topics_selected, 'topic')}"


def _interrupted(planned: RunPlan, result: RunResult) -> str:
    done = sum(totals.offsets for totals in result.topics.values())
    copied = f"{count(done)} of {plural(planned.offsets, 'record')} copied"
    return f"interrupted, stopped at committed checkpoints: {copied}; run again to continue"
