"""relay.yaml: the audit that Dagster repeats."""

from __future__ import annotations

from typing import get_args

import pytest

from relay_pipelines.audit.audit import Level
from relay_pipelines.cli.app import AuditLevel
from relay_pipelines.settings import load
from relay_pipelines.settings.audits import AuditSettings
from tests.support.config_files import cases, changed, refusal

CRON = 'expected a cron schedule in quotes, such as "0 3 * * *"'
WHY = "minute, hour, day, month and day of the week, as numbers"
SHARE = "expected a percentage above 0%, such as 1% or 0.5%"
REFUSED = [
    (
        "no cron schedule",
        {"@/audit/schedule": "daily"},
        f"@.audit.schedule: {CRON}, got 'daily': {WHY}",
    ),
    (
        "an hour that no day has",
        {"@/audit/schedule": "0 24 * * *"},
        f"@.audit.schedule: {CRON}, got '0 24 * * *': {WHY}",
    ),
    (
        "a step of zero",
        {"@/audit/schedule": "*/0 * * * *"},
        f"@.audit.schedule: {CRON}, got '*/0 * * * *': {WHY}",
    ),
    (
        "a range backwards",
        {"@/audit/schedule": "0 3 * * 5-1"},
        f"@.audit.schedule: {CRON}, got '0 3 * * 5-1': {WHY}",
    ),
    (
        "a step from one value",
        {"@/audit/schedule": "5/10 * * * *"},
        f"@.audit.schedule: {CRON}, got '5/10 * * * *': {WHY}",
    ),
    ("a share without a unit", {"@/audit/share": 1}, f"@.audit.share: {SHARE}, got 1"),
    ("more than all", {"@/audit/share": "101%"}, f"@.audit.share: {SHARE}, got '101%'"),
    ("nothing", {"@/audit/share": "0%"}, f"@.audit.share: {SHARE}, got '0%'"),
]


@pytest.mark.parametrize(("changes", "line"), cases(REFUSED))
def test_is_refused_in_one_line(write_config, changes, line):
    path = write_config(changed(changes))
    assert refusal(path) == f"{path}: {line}"


@pytest.mark.parametrize("schedule", ["0 3 * * *", "*/15 0-6,22 1,15 1-12/3 0"])
def test_schedules(write_config, schedule):
    path = write_config(changed({"@/audit": {"schedule": schedule, "share": "0.5%"}}))
    found = load(path).mirror("orders").audit
    assert (found.schedule, found.share, found.level) == (schedule, 0.005, "sample")


def test_the_levels_are_those_of_the_audit():
    """The settings and the command have them by name: the audit itself is slow to import."""
    levels = [str(level) for level in Level]
    assert list(get_args(AuditSettings.model_fields["level"].annotation)) == levels
    assert [str(level) for level in AuditLevel] == levels
