"""relay.yaml: the audit that Dagster repeats."""

from __future__ import annotations

from typing import get_args

import pytest

from relay_pipelines.audit.request import Level
from relay_pipelines.settings import load
from relay_pipelines.settings.models import AuditSettings
from tests.support.config_files import cases, changed

REFUSED = [
    ("no cron schedule", {"@/audit/schedule": "daily"}, "@.audit.schedule"),
    ("an hour that no day has", {"@/audit/schedule": "0 24 * * *"}, "@.audit.schedule"),
    ("a step of zero", {"@/audit/schedule": "*/0 * * * *"}, "@.audit.schedule"),
    ("a range backwards", {"@/audit/schedule": "0 3 * * 5-1"}, "@.audit.schedule"),
    ("a step from one value", {"@/audit/schedule": "5/10 * * * *"}, "@.audit.schedule"),
    ("a share without a unit", {"@/audit/share": 1}, "@.audit.share"),
    ("more than all", {"@/audit/share": "101%"}, "@.audit.share"),
    ("nothing", {"@/audit/share": "0%"}, "@.audit.share"),
]


@pytest.mark.parametrize(("changes", "place"), cases(REFUSED))
def test_is_refused_in_one_line(assert_refused, changes, place):
    assert_refused(changes, place)


@pytest.mark.parametrize("schedule", ["0 3 * * *", "*/15 0-6,22 1,15 1-12/3 0"])
def test_schedules(write_config, schedule):
    path = write_config(changed({"@/audit": {"schedule": schedule, "share": "0.5%"}}))
    found = load(path).mirror("orders").audit
    assert (found.schedule, found.share, found.level) == (schedule, 0.005, "sample")


def test_the_levels_are_those_of_the_audit():
    """The settings and the command have them by name: the audit itself is slow to import."""
    levels = [str(level) for level in Level]
    assert list(get_args(AuditSettings.model_fields["level"].annotation)) == levels
