"""A check of any asset: whether its topics are the same in two clusters."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import dagster as dg

from relay_pipelines.compare.comparing import compare, settings_of
from relay_pipelines.compare.pairs import KINDS
from relay_pipelines.compare.request import CompareRequest
from relay_pipelines.compare.result import Compared
from relay_pipelines.errors import ConfigError, RelayError
from relay_pipelines.finding import Severity
from relay_pipelines.run.session import Session
from relay_pipelines.settings import load
from relay_pipelines.sides import Sides

_SHOWN = 20


def compare_check(
    asset: dg.CoercibleToAssetKey,
    request: CompareRequest,
    *,
    mirror: str = "",
    config: str | Path = "relay.yaml",
    name: str = "compare",
) -> dg.AssetChecksDefinition:
    """Return a check that passes if all that was asked for was compared, and is the same.

    Args:
        asset: to which the check belongs.
        request: with the addresses of both clusters, or without them for a mirror.
        mirror: of relay.yaml; the only one if it is empty.
        config: where relay.yaml is. It is read when the check runs.
    """

    def check() -> dg.AssetCheckResult:
        try:
            compared = _compared(request, mirror, Path(config))
        except RelayError as error:
            return dg.AssetCheckResult(passed=False, description=str(error))
        return _result(compared)

    # Dagster reads annotations of its own contexts alone
    decorated: Callable[[Any], dg.AssetChecksDefinition] = dg.asset_check(
        asset=asset, name=name, description="Compares two clusters, whoever copies between them."
    )
    return decorated(check)


def _compared(request: CompareRequest, mirror: str, config: Path) -> Compared:
    settings = settings_of(request) if request.source else load(config)
    if not mirror and len(settings.mirrors) > 1:
        raise ConfigError("a comparison is of one mirror", remedy="name it: mirror=...")
    name = mirror or next(iter(settings.mirrors))
    session = Session(settings.spark, purpose="compare")
    try:
        return compare(Sides(name, settings.mirror(name)), request, session)
    finally:
        session.stop()


def _result(compared: Compared) -> dg.AssetCheckResult:
    numbers = {kind: sum(result.numbers[kind] for result in compared.results) for kind in KINDS}
    lines = [str(finding) for finding in compared.findings if finding.severity is not Severity.OK]
    tally = compared.tally
    return dg.AssetCheckResult(
        passed=not compared.exit_code,
        description=str(compared.verdict),
        metadata={
            "records": tally.records,
            "compared by content (records)": tally.by_content,
            "not compared (records)": tally.unverified,
            **numbers,
            "seconds": round(compared.seconds, 3),
            "findings": dg.MetadataValue.md("\n".join(f"- {line}" for line in lines[:_SHOWN])),
        },
    )
