"""The series of a soak and their limits."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from relay_pipelines.ledger import checkpoint, ledger_topic
from relay_pipelines.output.formatting import size
from tests.orchestration.soak.growth import Growth, Per, Point, growth
from tests.orchestration.soak.sampling import Role, Sample

KEEP = 60
"""The windows that Dagster keeps, ten minutes of them."""
_KIB, _MIB = 1 << 10, 1 << 20
_SERVERS = (Role.WEB_SERVER, Role.DAEMON, Role.CODE_SERVER, Role.DEV)
_OF_SESSIONS = {Role.SESSION: 64 * _MIB, Role.JVM: 256 * _MIB, Role.PYTHON_WORKER: 64 * _MIB}
_SERVER_MEMORY = 256 * _MIB
_HANDLES = 72.0  # three in an hour
# twenty in an hour: two servers have a pool of a few threads, which start when they are needed
_THREADS = 480.0
_SESSION_HANDLES = 32.0  # fewer than one in each of its 90 windows
PRUNED = {
    "SQLite: events of all assets": 16 * _KIB,
    "SQLite: events of each run": 8 * _KIB,
    "SQLite: runs": 4 * _KIB,
    "logs of runs and ticks": 4 * _KIB,
}
"""The most bytes by which each may grow in a window, once as many are pruned as are cut."""
FILES = {
    "SQLite: ticks": 24 * _KIB,
    "log of `dagster dev`": 48 * _KIB,
    "temporary files": 6 * _KIB,
    f"`{ledger_topic.TOPIC}`": 15 * _KIB,
    f"`{checkpoint.TOPIC}`": 6 * _KIB,
    "`__transaction_state`": 12 * _KIB,
}
"""The same in a minute: in an outage there are ticks and lines, but no windows."""


@dataclass(frozen=True, slots=True)
class Series:
    """A measured value and its growth in the second half."""

    name: str
    what: str
    growth: Growth

    def text(self, value: float | None) -> str:
        if value is None:
            return ""
        if self.what not in {"memory", "bytes"}:
            return f"{value:+.1f}".removeprefix("+")
        return f"-{size(-value)}" if value < 0 else size(value)


def judged(samples: Sequence[Sample]) -> list[Series]:
    """All series."""
    half = samples[-1].seconds / 2
    found = [
        Series(role, what, growth(list(_points(samples, role, get)), half, limit, per))
        for role, what, get, limit, per in _processes()
    ]
    # before it has as many as it keeps, Dagster prunes none
    since = max(KEEP, next(sample.windows for sample in samples if sample.seconds >= half))
    for name, limit in PRUNED.items():
        points = [Point(sample.windows, sample.files[name]) for sample in samples]
        found.append(Series(name, "bytes", growth(points, since, limit, Per.WINDOW)))
    for name, limit in FILES.items():
        points = [Point(sample.seconds, sample.files[name]) for sample in samples]
        found.append(Series(name, "bytes", growth(points, half, limit, Per.MINUTE)))
    return found


_Get = Callable[..., float]


def _processes() -> Iterator[tuple[Role, str, _Get, float, Per]]:
    counted: dict[str, _Get] = {
        "handles": lambda usage: usage.handles,
        "threads": lambda usage: usage.threads,
    }
    for role in Role:
        per = Per.SESSION if role in _OF_SESSIONS else Per.DAY
        if role in _SERVERS or role in _OF_SESSIONS:
            memory = _OF_SESSIONS.get(role, _SERVER_MEMORY)
            yield role, "memory", lambda usage: usage.rss, memory, per
            for what, get in counted.items():
                limit = _THREADS if what == "threads" else _HANDLES
                yield role, what, get, _SESSION_HANDLES if per is Per.SESSION else limit, per


def _points(samples: Sequence[Sample], role: Role, get: _Get) -> Iterator[Point]:
    for sample in samples:
        if usage := sample.roles.get(role):
            yield Point(sample.seconds, get(usage), usage.oldest)
