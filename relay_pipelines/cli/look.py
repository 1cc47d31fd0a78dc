"""The commands that only look: check, plan, status, ledger."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import chain

from relay_pipelines.cli.context import Invocation, chosen
from relay_pipelines.cli.session import Session
from relay_pipelines.console import documents, say, tables
from relay_pipelines.console.words import open_transactions, plural, stdout
from relay_pipelines.copy.clock import SystemClock
from relay_pipelines.driver import check as probe
from relay_pipelines.driver import configs, planning, survey, topics
from relay_pipelines.driver.follow import LedgerFollower
from relay_pipelines.driver.planning import RunPlan
from relay_pipelines.driver.retries import retry
from relay_pipelines.driver.signals import Stop
from relay_pipelines.model import LedgerEntry


def check(invocation: Invocation, names: Sequence[str]) -> int:
    """Say what was found, one line each."""
    clock, settings, stop = SystemClock(), invocation.settings(), Stop()
    session = Session(settings.spark, stop, verbose=invocation.debug)
    with stop.heard():
        try:
            for name, mirror in chosen(settings, names).items():
                for finding in chain(probe.check(name, mirror, clock), probe.check_sql(name, mirror, session)):
                    stdout().print(tables.finding(finding), soft_wrap=True)
                    invocation.worsen(finding.exit_code)
        finally:
            session.stop()
    return invocation.exit_code


def plan(invocation: Invocation, names: Sequence[str], topic: str | None, *, why: bool, as_json: bool) -> int:
    """Show what a run would copy."""
    clock = SystemClock()
    found = []
    for name, mirror in chosen(invocation.settings(), names).items():
        with invocation.tolerating(name):
            planned = planning.plan(survey.take(name, mirror, clock, only_topic=topic))
            found.append(documents.plan(planned, clock.now_ms()))
            if not as_json:
                _show_plan(planned, clock.now_ms(), why=why, sync=mirror.topics.sync_configs)
            for missing in topics.nothing_selected(planned.survey, mirror.topics.allow):
                say.warning(f"{name}: {missing}")
            for error in [*planned.data_losses, *topics.unseen(planned.survey)]:
                invocation.fail(error, name)
    if as_json:
        say.document({"mirrors": found})
    return invocation.exit_code


def _show_plan(planned: RunPlan, now_ms: int, *, why: bool, sync: bool) -> None:
    name, console = planned.survey.mirror, stdout()
    new = [one.name for one in topics.missing(planned.survey)]
    if planned.windows:
        tables.show(console, tables.plan(planned, new))
    said = []
    if not planned.windows and not planned.data_losses:
        said = [f"nothing new in {plural(len(planned.survey.destinations), 'topic')}"]
    said += filter(None, [open_transactions(planned.survey.positions, now_ms)])
    if said:
        console.print(f"{name}: {'; '.join(said)}", soft_wrap=True)
    if why:
        tables.show(console, tables.why(planned.survey.decisions, planned.survey.targets))
    for conflict in topics.conflicts(planned.survey):
        say.warning(f"{name}: {conflict}")
    for one in configs.differences(planned.survey):
        say.warning(f"{name}: {one}; {one.remedy(sync=sync)}")
    for gone in topics.deleted(planned.survey):
        say.warning(f"{name}: {gone}")
    for topic, count in topics.to_grow(planned.survey).items():
        console.print(f"{name}: {topic} will grow to {plural(count, 'partition')}, as its source has", soft_wrap=True)
    for short in topics.too_few_partitions(planned.survey):
        say.warning(f"{name}: {short} has fewer partitions at the destination than at the source: a run will refuse it")


def status(invocation: Invocation, names: Sequence[str], *, as_json: bool) -> int:
    """Show how far every topic-partition is copied."""
    clock = SystemClock()
    found = []
    for name, mirror in chosen(invocation.settings(), names).items():
        with invocation.tolerating(name):
            taken = survey.take(name, mirror, clock)
            document = documents.status(taken, clock.now_ms())
            found.append(document)
            if not as_json:
                tables.show(stdout(), tables.status(document))
                for problem in documents.problems(document):
                    say.error(f"{name}: {problem}")
                for missing in [*topics.deleted(taken), *topics.unseen(taken)]:
                    say.warning(f"{name}: {missing}")
                for missing in topics.nothing_selected(taken, mirror.topics.allow):
                    say.warning(f"{name}: {missing}")
    if as_json:
        say.document({"mirrors": found})
    return invocation.exit_code


def ledger(invocation: Invocation, names: Sequence[str], topic: str | None, last: int, *, as_json: bool) -> int:
    """Show what was committed."""
    clock = SystemClock()
    found: list[LedgerEntry] = []
    for name, mirror in chosen(invocation.settings(), names).items():
        with invocation.tolerating(name):
            follower = LedgerFollower(mirror.destination_cluster, name, None, mirror.copy_options, clock)
            try:
                entries = retry(follower.history, name, mirror.copy_options, clock, follower)
            finally:
                follower.close()
            entries = [one for one in entries if topic in {None, one.source.topic_partition.topic}][-last:]
            found += entries
            if not as_json:
                _show_ledger(name, entries)
    if as_json:
        say.document([documents.entry(one) for one in found])
    return invocation.exit_code


def _show_ledger(name: str, entries: Sequence[LedgerEntry]) -> None:
    if entries:
        tables.show(stdout(), tables.ledger(name, entries))
    else:
        stdout().print(f"{name}: the ledger holds nothing of it")
