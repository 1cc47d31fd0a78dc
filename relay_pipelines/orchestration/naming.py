"""Names of assets, partitions, jobs, resources, pools and tags in Dagster.

Every `mirror` here is the mirror's path: its name after the key prefix, if the definitions have
one, such as `eu/shop`. So two relay.yaml fit into one code location.
"""

import re
from collections.abc import Sequence

import dagster as dg

from relay_pipelines.errors import ConfigError
from relay_pipelines.output.formatting import format_time

_PREFIX = re.compile(r"[A-Za-z0-9_]+")
_WINDOW_KEY = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ-([a-z0-9_]+\.)?\d{3,}")

MAIN = "main"
"""The lane of topics that no lane of relay.yaml takes."""
MESSAGE_COUNTS = "message_counts"
LAG = "lag"
LAG_TARGET = "lag_target"
AVAILABLE = "available"
DIVERGENCE = "divergence"
CONFIGS = "configs"
SOURCE_TOPICS = "source_topics"
OTHER_DEPLOYMENTS = "other_deployments"
GROUP_OFFSETS = "group_offsets"
AUDIT = "audit"
SCHEMAS = "schemas"
AUDITS_POOL = "relay_audits"
"""The pool that lets one audit run at a time; no run that copies is in it."""
TAG_MIRROR = "relay/mirror"
TAG_LANE = "relay/lane"
TAG_UPSTREAM = "relay/upstream"
TAG_WHY = "relay/upstream_why"
TAG_WAITING = "relay/requested_for"
"""What was waiting when the planner requested the run."""
TAG_MAX_RETRIES = "dagster/max_retries"
TAG_PRIORITY = "dagster/priority"
TAG_HEARTBEAT = ".dagster/relay_heartbeat"
"""When a run was last able to stop, and how long it has not moved; the UI hides this prefix."""
TAG_CHANGED = "relay/changed"
"""What has changed in relay.yaml since the run began, and when it was used."""
TAG_WAITS = "relay/waits_for"
"""The run of another deployment that copies the same topics; empty once that has ended."""
TAG_FAILURES = "relay/failures"
"""What fails in the windows of a session now, with the reason; empty if nothing does."""
TAG_TURN = ".dagster/relay_turn"
"""What a run that copies a lane is doing: see `orchestration/turns.py`; hidden, too."""


def parts(key_prefix: str | Sequence[str]) -> tuple[str, ...]:
    """The parts of a key prefix.

    Raises:
        ConfigError: Dagster refuses a name that begins with it.
    """
    prefix = (key_prefix,) if isinstance(key_prefix, str) and key_prefix else tuple(key_prefix)
    for part in prefix:
        if not _PREFIX.fullmatch(part):
            raise ConfigError(
                f"key_prefix: {part!r} cannot begin a name in Dagster",
                remedy="use letters, digits and '_'",
            )
    return prefix


def path(prefix: Sequence[str], mirror: str) -> str:
    """The path of a mirror: its name after the key prefix."""
    return "/".join([*prefix, mirror])


def job(prefix: Sequence[str], name: str) -> str:
    """The name of a job for all mirrors of a relay.yaml, and of its op."""
    return "_".join([*prefix, name])


def windows_asset(mirror: str, lane: str) -> dg.AssetKey:
    """The asset of a lane's plan: one asset partition per frozen window."""
    return dg.AssetKey([*mirror.split("/"), lane, "windows"])


def mirrored_asset(mirror: str, topic: str) -> dg.AssetKey:
    """The asset of a topic at the destination, by its name at the source."""
    return dg.AssetKey([*mirror.split("/"), topic])


def replayed_asset(mirror: str, topic: str) -> dg.AssetKey:
    """The asset of a topic to which replays are copied; no lane's name contains a dash."""
    return dg.AssetKey([*mirror.split("/"), "replayed-to", topic])


def topic_check(mirror: str, topic: str, check: str) -> dg.AssetCheckKey:
    """A check of a topic at the destination."""
    return dg.AssetCheckKey(mirrored_asset(mirror, topic), check)


def upstream_check(mirror: str, upstream: str, check: str) -> dg.AssetCheckKey:
    """A check of an upstream."""
    return dg.AssetCheckKey(upstream_asset(mirror, upstream), check)


def source_asset(mirror: str, topic: str) -> dg.AssetKey:
    """The asset of a topic at the source; the graph shows the last part of a key alone."""
    *prefix, name = mirror.split("/")
    return dg.AssetKey([*prefix, "source", name, f"source.{topic}"])


def upstream_asset(mirror: str, name: str) -> dg.AssetKey:
    """The asset of an upstream."""
    *prefix, own = mirror.split("/")
    return dg.AssetKey([*prefix, "upstreams", own, name])


def sample_audit_asset(mirror: str) -> dg.AssetKey:
    """The asset of the audits that a mirror's schedule repeats."""
    *prefix, name = mirror.split("/")
    return dg.AssetKey([*prefix, "audits", name, "sample_audit"])


def sample_audit(mirror: str) -> str:
    """The job and the schedule of these audits."""
    return f"sample_audit_{group(mirror)}"


def move_asset(mirror: str) -> dg.AssetKey:
    """The asset of a mirror's move; a topic's has no such last part, nor has a lane's plan."""
    return dg.AssetKey([*mirror.split("/"), "move", "gates"])


def rehearsal(mirror: str) -> str:
    """The schedule of these rehearsals."""
    return f"rehearse_move_{group(mirror)}"


def identifier(mirror: str, lane: str) -> str:
    """The part of a lane in names of ops, sensors and pools, which must not have dashes."""
    return f"{group(mirror)}__{lane}"


def planner(mirror: str) -> str:
    """The sensor that plans the lanes of a mirror."""
    return f"plan_{group(mirror)}"


def pool(mirror: str, lane: str) -> str:
    """The pool that limits a lane to one run at a time."""
    return f"relay_{identifier(mirror, lane)}"


def group(mirror: str) -> str:
    """The asset group of a mirror: its topics at the destination, and its plans."""
    return re.sub(r"[^a-zA-Z0-9_]", "_", mirror)


def source_group(mirror: str) -> str:
    """The asset group of a mirror's topics at the source."""
    return f"{group(mirror)}_source"


def upstreams_group(mirror: str) -> str:
    """The asset group of a mirror's upstreams."""
    return f"{group(mirror)}_upstreams"


def lane_job(mirror: str, lane: str) -> str:
    """The job that copies a lane: `mirror_shop`, or `mirror_shop__big` for the lane `big`."""
    name = group(mirror) if lane == MAIN else identifier(mirror, lane)
    return f"mirror_{name}"


def plans_name(mirror: str, lane: str) -> str:
    """The name of the set of a lane's windows, those of its plan asset."""
    return f"{mirror}/{lane}/plans"


def windows_name(mirror: str, topic: str) -> str:
    """The name of the set of a topic's windows: those in which it had something new."""
    return f"{mirror}/{topic}/windows"


def window_key(planned_at_ms: int, number: int, lane: str = MAIN) -> str:
    """The key of a window: when it was planned, and its number among the lane's of that second.

    Keys sort in the order in which windows are planned: 2026-11-22T04:10:20Z-000. Those of other
    lanes than `main` say which one: 2026-11-22T04:10:20Z-big.000.
    """
    of_lane = "" if lane == MAIN else f"{lane}."
    return f"{format_time(planned_at_ms)}-{of_lane}{number:03d}"


def is_window_key(text: str) -> bool:
    """Whether `window_key` may have made it."""
    return _WINDOW_KEY.fullmatch(text) is not None


def planned_at(window_key: str) -> str:
    """The time in a window's key."""
    return window_key.rpartition("-")[0]


def tags(mirror: str, lane: str) -> dict[str, str]:
    """Tags by which people filter the run list, and by which runs of a lane find each other."""
    return {TAG_MIRROR: mirror, TAG_LANE: lane}
