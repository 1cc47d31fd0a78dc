"""The audit that Dagster repeats by itself."""

from __future__ import annotations

import re
from typing import Annotated, Literal

from pydantic import AfterValidator, BeforeValidator

from relay_pipelines.settings.config_types import Section, expected

_CRON_FIELDS = ((0, 59), (0, 23), (1, 31), (1, 12), (0, 7))
_CRON_PART = re.compile(r"(?:\*|(?P<first>\d{1,2})(?:-(?P<last>\d{1,2}))?)(?:/(?P<step>\d{1,2}))?")
_PERCENTAGE = re.compile(r"(?P<number>\d{1,3}(?:\.\d+)?)\s*%")
_ALL_PERCENT = 100.0


def _cron(value: str) -> str:
    fields = value.split()
    if len(fields) != len(_CRON_FIELDS) or not all(
        _is_cron_part(part, *limits)
        for field, limits in zip(fields, _CRON_FIELDS, strict=True)
        for part in field.split(",")
    ):
        raise expected(
            'a cron schedule in quotes, such as "0 3 * * *"',
            "minute, hour, day, month and day of the week, as numbers",
        )
    return " ".join(fields)


def _is_cron_part(part: str, low: int, high: int) -> bool:
    match = _CRON_PART.fullmatch(part)
    if match is None or match["step"] in {"0", "00"}:
        return False
    if match["step"] and match["first"] and not match["last"]:
        return False
    first = int(match["first"] or low)
    last = int(match["last"] or first)
    return low <= first <= last <= high


def _share(value: object) -> float:
    match = _PERCENTAGE.fullmatch(value.strip()) if isinstance(value, str) else None
    if match is None or not 0 < float(match["number"]) <= _ALL_PERCENT:
        raise expected("a percentage above 0%, such as 1% or 0.5%")
    return float(match["number"]) / _ALL_PERCENT


class AuditSettings(Section):
    """The audit that Dagster repeats."""

    schedule: Annotated[str, AfterValidator(_cron)] | None = None
    """When, as a cron schedule in UTC; never by default."""
    level: Literal["ledger", "recount", "full", "sample"] = "sample"
    """How much it reads: see `relay audit`."""
    share: Annotated[float, BeforeValidator(_share)] = 0.01
    """How much of each topic-partition the level `sample` compares, at least one chunk."""
    strict: bool = False
    """Whether whatever an audit notes, or cannot verify, fails the check as a difference does."""
