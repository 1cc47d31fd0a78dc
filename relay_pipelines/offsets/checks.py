"""Whether the groups that a mirror follows are up to date at the destination. It only looks."""

from collections.abc import Sequence
from contextlib import closing

import dagster as dg

from relay_pipelines.offsets.following import FollowedGroups
from relay_pipelines.offsets.group_look import NONE_FOUND, Following, GroupLook, GroupLooker
from relay_pipelines.orchestration import naming
from relay_pipelines.orchestration.check_builder import CheckResult, build_check
from relay_pipelines.orchestration.lane import Lane
from relay_pipelines.output.formatting import count, plural, seconds
from relay_pipelines.resources import KafkaResource
from relay_pipelines.settings.groups import Groups

_SHOWN_ROWS = 200
_COLUMNS = ("group", "state", "records behind", "seconds behind", "why")


def result(groups: Groups, looks: Sequence[GroupLook]) -> CheckResult:
    """What the check says of a look; one that has seen no group is not a pass."""
    failing = [look for look in looks if look.state is Following.FAILS]
    late = [look for look in looks if _is_late(groups, look)]
    lines = [
        *(f"{look.group}: {look.why}" for look in failing),
        *(
            f"{look.group}: not up to date for up to {seconds(look.lag_seconds)},"
            f" {plural(look.lag_records, 'record')}"
            for look in late
        ),
    ]
    followed = sum(look.state is Following.FOLLOWED for look in looks)
    moved = sum(look.state is Following.MOVED for look in looks)
    words = f"{plural(followed, 'group')} up to date, {count(moved)} moved"
    if not looks:
        words = NONE_FOUND
    if lines:
        words = f"{lines[0]} (and {len(lines) - 1} more)" if lines[1:] else lines[0]
    rows = [
        dg.TableRecord(
            dict(zip(_COLUMNS, _cells(look), strict=True))  # type: ignore[arg-type]
        )
        for look in [*failing, *late, *looks][:_SHOWN_ROWS]
    ]
    schema = dg.TableSchema(columns=[dg.TableColumn(name) for name in _COLUMNS])
    return CheckResult(
        bool(looks) and not lines,
        words,
        {
            "groups": dg.MetadataValue.table(rows, schema=schema),
            "followed (groups)": followed,
            "moved (groups)": moved,
            "not followed (groups)": len(failing),
            "target (seconds)": groups.lag_target / 1000,
        },
        dg.AssetCheckSeverity.ERROR if looks else dg.AssetCheckSeverity.WARN,
    )


def of_run(followed: FollowedGroups, lane: Lane) -> list[dg.AssetCheckEvaluation]:
    """What a run that follows groups says of them; nothing before it has looked."""
    key = lane.check(naming.GROUP_OFFSETS)
    if followed.failure:
        return [CheckResult(passed=False, description=followed.failure).evaluation(key)]
    if followed.looks is None:
        return []
    return [result(followed.sides.mirror.groups, followed.looks).evaluation(key)]


def build(lane: Lane) -> dg.AssetChecksDefinition:
    """The check that people run from the UI; it changes nothing."""

    def look(_context: dg.AssetCheckExecutionContext, kafka: KafkaResource) -> CheckResult:
        sides = kafka.sides(lane.mirror)
        with closing(GroupLooker(sides, lane.belongs)) as looker:
            return result(sides.mirror.groups, looker.look())

    return build_check(
        lane.check(naming.GROUP_OFFSETS),
        "Every group of relay.yaml is where it would go on at the destination, or has moved there.",
        look,
        lane.prefix,
    )


def _is_late(groups: Groups, look: GroupLook) -> bool:
    return look.state is Following.FOLLOWED and look.lag_seconds * 1000 > groups.lag_target


def _cells(look: GroupLook) -> tuple[object, ...]:
    return look.group, look.state.value, look.lag_records, round(look.lag_seconds, 1), look.why
