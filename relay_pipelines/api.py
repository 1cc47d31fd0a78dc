"""What Python programs call; the commands call the same. `relay_pipelines` exports it."""

from __future__ import annotations

import uuid
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Self

from relay_pipelines import settings
from relay_pipelines.audit.request import AuditRequest
from relay_pipelines.errors import ConfigError, RelayError
from relay_pipelines.model import Side, TopicPartition
from relay_pipelines.output.formatting import format_time
from relay_pipelines.output.messages import Say, say_nothing
from relay_pipelines.plan.owners import topic_scope
from relay_pipelines.prepare import prepared_snapshot
from relay_pipelines.protocol.clock import SystemClock
from relay_pipelines.run import run_plan
from relay_pipelines.run.other_writers import mark_end
from relay_pipelines.run.result import RunResult
from relay_pipelines.run.run import Observer
from relay_pipelines.run.run import run as copy
from relay_pipelines.run.run_plan import RunPlan
from relay_pipelines.run.session import Session
from relay_pipelines.sides import Sides
from relay_pipelines.snapshot import read_clusters
from relay_pipelines.snapshot.cluster_snapshot import ClusterSnapshot
from relay_pipelines.user_sources import Sources

if TYPE_CHECKING:
    import dagster as dg

    from relay_pipelines.audit.audit import Audit
    from relay_pipelines.compare.request import CompareRequest
    from relay_pipelines.compare.result import Compared
    from relay_pipelines.expectations.request import ExpectationsRequest
    from relay_pipelines.expectations.selected import TopicResults
    from relay_pipelines.offsets.following import FollowedGroups
    from relay_pipelines.offsets.positions import Answer, ConsumerPosition
    from relay_pipelines.replay.replay import Replay
    from relay_pipelines.replay.request import ReplayRequest
    from relay_pipelines.schemas.request import SchemasRequest
    from relay_pipelines.schemas.verdict import TopicVerdict

_CLOCK = SystemClock()


@dataclass(frozen=True, slots=True)
class Status:
    """How far one topic-partition was copied.

    Args:
        source_end: the offset at which readers of committed records stop.
        next_offset: the source offset that the next run begins with; None if the topic-partition
            was never copied.
        lag_records: how many offsets a run would copy.
        loss: what a data-loss guard holds back; None if it holds nothing back.
    """

    topic_partition: TopicPartition
    source_end: int
    next_offset: int | None
    lag_records: int
    loss: RelayError | None


class Mirror:
    """A mirror of a relay.yaml."""

    def __init__(
        self,
        name: str,
        mirror: settings.Mirror,
        session: Session,
        mirrors: Mapping[str, settings.Mirror] | None = None,
        config: Path = Path("relay.yaml"),
    ) -> None:
        self.name = name
        self.settings = mirror
        self._sides = Sides(name, mirror, _CLOCK)
        self._session = session
        self._mirrors = mirrors or {name: mirror}
        self._config = config

    def snapshot(
        self, topic: str | None = None, *, patient: bool = True, settled: bool = False
    ) -> ClusterSnapshot:
        """Look at both clusters; writes nothing.

        Args:
            topic: only this source topic.
            patient, settled: as in `take_snapshot`.

        Raises:
            RelayError: a cluster does not answer.
        """
        return read_clusters.take_snapshot(self._sides, topic, patient=patient, settled=settled)

    def status(self) -> list[Status]:
        """Say how far every topic-partition was copied; writes nothing.

        Raises:
            RelayError: a cluster does not answer.
        """
        snapshot = self.snapshot()
        return [
            Status(
                position.topic_partition,
                position.end_offset,
                position.next_offset,
                position.lag,
                snapshot.held.get(position.topic_partition),
            )
            for position in snapshot.positions
        ]

    def plan(self, topic: str | None = None) -> RunPlan:
        """Say what a run would copy; writes nothing.

        Args:
            topic: only this source topic.

        Raises:
            RelayError: a cluster does not answer.
        """
        return run_plan.plan(self.snapshot(topic))

    def prepare(self, topic: str | None = None) -> RunPlan:
        """Plan a run and write what it needs: where topics start, and accepted losses.

        Args:
            topic: only this source topic.

        Raises:
            RelayError: a cluster does not answer, or the mirror cannot be copied.
        """
        take = partial(self.snapshot, topic, settled=True)
        return run_plan.plan(prepared_snapshot.prepare_snapshot(take))

    def copy(
        self,
        planned: RunPlan,
        topic: str | None = None,
        observers: Sequence[Observer] = (),
        sources: Sources | None = None,
        run_id: str | None = None,
    ) -> RunResult:
        """Copy what `prepare` has planned; a command's signal stops it at committed checkpoints.

        Args:
            topic: only this source topic.
            sources, run_id: as in `run`. Whoever gives an id says when that run has ended.
        """
        with self._session.deferring():
            result = copy(
                planned,
                self._session,
                observers,
                stop=self._session.stopped,
                scope=topic_scope(topic) if topic else "",
                sources=sources,
                run_id=run_id,
            )
            if run_id is None and result.topics:
                mark_end(self._sides, result.run_id)
            return result

    def run(self, topic: str | None = None) -> RunResult:
        """Copy all new records, as `relay run` does; failures while copying are in the result.

        Args:
            topic: only this source topic.

        Raises:
            RelayError: a cluster does not answer, or the mirror cannot be copied.
        """
        planned = self.prepare(topic)
        with self.followed_groups():
            return self.copy(planned, topic)

    def followed_groups(self, say: Say = say_nothing) -> FollowedGroups:
        """Return a context that keeps the groups of relay.yaml up to date, also at its end.

        Args:
            say: gets a line when a group moves, cannot be followed, or is followed again.
        """
        from relay_pipelines.offsets.following import FollowedGroups

        return FollowedGroups(self._sides, say)

    def plan_replay(self, request: ReplayRequest) -> Replay:
        """Say what a replay would copy, and check that it can; writes nothing.

        Raises:
            ConfigError: the replay cannot be done as it is asked for, or was started with other
                parameters.
            DataLossError: the range is not there any more.
            RelayError: a cluster does not answer, or refuses.
        """
        from relay_pipelines.replay.replay import plan_replay  # Arrow is slow to import

        return plan_replay(self._sides, request, self._session, self._mirrors)

    def replay(
        self, request: ReplayRequest | Replay, observers: Sequence[Observer] = ()
    ) -> RunResult:
        """Copy a range again, exactly once, as `relay replay` does.

        The same request continues where it was stopped; when it is complete, it copies nothing.
        Failures while copying are in the result.

        Args:
            request: what to copy, or what `plan_replay` has returned for it.

        Raises:
            RelayError: as `plan_replay`.
        """
        from relay_pipelines.replay.replay import Replay, copy_replay  # Arrow is slow to import

        planned = request if isinstance(request, Replay) else self.plan_replay(request)
        return copy_replay(planned, self._session, observers)

    def of_replay(self, replay_id: str) -> Mirror:
        """Return the mirror that an earlier replay is, to audit it.

        Raises:
            ConfigError: there is no such replay.
            RelayError: the destination does not answer, or refuses.
        """
        from relay_pipelines.replay.replay import mirror_of_replay  # Arrow is slow to import

        replay = mirror_of_replay(replay_id, self._sides)
        return Mirror(replay.name, replay.mirror, self._session)

    def audit(self, request: AuditRequest | None = None) -> Audit:
        """Verify that the destination is what the source was, as `relay audit` does.

        Args:
            request: what to audit, of one window at most; by default, a recount of everything that
                the ledger has.

        Raises:
            RelayError: a cluster does not answer, or the ledger does not have what is asked for.
        """
        from relay_pipelines.audit import audit, spark_job  # Arrow and Spark are slow to import

        started = _CLOCK.monotonic()
        audited = audit.begin(self._sides, request or AuditRequest())
        for _ in spark_job.read(audited, self._session, f"relay-audit-{uuid.uuid4().hex[:12]}"):
            pass
        audited.seconds = _CLOCK.monotonic() - started
        return audited

    def compare(self, request: CompareRequest | None = None) -> Compared:
        """Compare both sides without the ledger, as `relay compare --mirror` does.

        Args:
            request: what to compare, without addresses; by default, all of each topic.

        Raises:
            ConfigError: no topic is there, or both sides are the same.
            RelayError: a cluster does not answer, or refuses.
        """
        from relay_pipelines.compare.comparing import compare  # Arrow and Spark are slow to import
        from relay_pipelines.compare.request import CompareRequest

        return compare(self._sides, request or CompareRequest(), self._session)

    def attest(self, topic: str | None = None) -> str:
        """Verify the ledger and return a statement of it, the lines that `relay attest` writes.

        Args:
            topic: only this source topic.

        Raises:
            TamperedError: the ledger is not what was committed; its notes name each place.
            RelayError: nothing was copied, or the destination does not answer.
        """
        from relay_pipelines.ledger import statement

        made_at = format_time(_CLOCK.now_ms())
        lines = statement.attest(self._sides, topic, made_at)
        return b"".join(lines).decode()

    def translate_offsets(
        self, positions: Iterable[ConsumerPosition], to: Side = Side.DESTINATION
    ) -> list[Answer]:
        """Say where consumers go on at the other side, as `relay offsets translate` does.

        Args:
            to: that side. To the destination there is an answer for each position, in order; to
                the source, one for each source of the position's topic-partition.

        Raises:
            RelayError: the destination does not answer, or refuses. The source may be gone.
        """
        from relay_pipelines.offsets.translate import translate

        return translate(self._sides, list(positions), to)

    def translate_groups(
        self,
        groups: Sequence[str],
        *,
        pattern: str = "",
        to: Side = Side.DESTINATION,
        upstream: str = "",
    ) -> tuple[list[Answer], dict[str, RelayError]]:
        """Say where groups go on at the other side, as `relay offsets translate --group` does.

        What they have committed is read from the side that they leave.

        Args:
            groups: their names.
            pattern: and those of others, as a regular expression of whole names; empty for none.
            to: the side on which they go on.
            upstream: of the source whose groups are meant, if it has several.

        Returns:
            the answers; and group -> why it has none.

        Raises:
            ConfigError: no group matches the pattern, or the upstream is not known.
            RelayError: a cluster does not answer, or refuses.
        """
        from relay_pipelines.offsets.apply import client_of
        from relay_pipelines.offsets.translate import committed_positions, look_to_leave, translate

        sides = self._sides.seen()
        with client_of(sides, to.other, upstream) as client:
            positions, failed = committed_positions(client, groups, pattern)
            look = look_to_leave(client, self.settings, positions, to)
        return translate(sides, positions, to, look), failed

    def verify_schemas(self, request: SchemasRequest | None = None) -> list[TopicVerdict]:
        """Compare the schemas that copied records name, as `relay schemas verify` does.

        Args:
            request: which copies; None for a sample of all topics.

        Returns:
            the verdict on each topic that has copies; none if nothing was copied.

        Raises:
            ConfigError: a registry is not declared.
            RelayError: the destination does not answer, or refuses. A registry that does not answer
                is a verdict.
        """
        from relay_pipelines.schemas.request import SchemasRequest
        from relay_pipelines.schemas.verify import verify

        return list(verify(self._sides, request or SchemasRequest()))

    def expectations(self, request: ExpectationsRequest) -> list[TopicResults]:
        """Validate copied records as relay.yaml expects them, as `relay expectations run` does.

        Returns:
            the results of each topic with expectations. One that cannot run fails.

        Raises:
            ConfigError: the ledger has nothing of it, there are no expectations, or Great
                Expectations is not installed.
            RelayError: the destination does not answer, or refuses.
        """
        from relay_pipelines.expectations import selected  # Great Expectations is slow to import

        return selected.validate(self._session, self._config, self._sides, request)


class Mirrors(Mapping[str, Mirror]):
    """The mirrors of a relay.yaml by name, which share a Spark session.

    Leaving its `with` block ends the session. A session starts when there is something to copy.
    """

    def __init__(
        self,
        loaded: settings.Settings,
        session: Session | None = None,
        config: Path = Path("relay.yaml"),
    ) -> None:
        self.settings = loaded
        self._session = session or Session(loaded.spark)
        self._mirrors = {
            name: Mirror(name, mirror, self._session, loaded.mirrors, config)
            for name, mirror in loaded.mirrors.items()
        }

    def __getitem__(self, name: str) -> Mirror:
        return self._mirrors[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._mirrors)

    def __len__(self) -> int:
        return len(self._mirrors)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def close(self) -> None:
        """End the Spark session if there is one."""
        self._session.stop()


def load(path: str | Path = "relay.yaml") -> Mirrors:
    """Read a relay.yaml; connects to nothing.

    Raises:
        ConfigError: it is missing or invalid.
    """
    return Mirrors(settings.load(Path(path)), config=Path(path))


def compare_clusters(request: CompareRequest) -> Compared:
    """Compare any two clusters, as `relay compare --source ... --destination ...` does.

    Raises:
        ConfigError: the request names no clusters, or no topic is there.
        RelayError: a cluster does not answer, or refuses.
    """
    from relay_pipelines.compare.comparing import settings_of

    if not request.source:
        raise ConfigError("no clusters are named", remedy="give source and destination")
    with Mirrors(settings_of(request)) as mirrors:
        (mirror,) = mirrors.values()
        return mirror.compare(request)


def asset_key(mirror: str, topic: str, *, key_prefix: str | Sequence[str] = ()) -> dg.AssetKey:
    """Return the key of a mirrored topic's asset.

    Args:
        topic: its name at the source.
        key_prefix: that of the definitions.
    """
    from relay_pipelines.orchestration import naming  # Dagster is slow to import

    return naming.mirrored_asset(naming.path(naming.parts(key_prefix), mirror), topic)


def partitions(
    mirror: str, topic: str, *, key_prefix: str | Sequence[str] = ()
) -> dg.DynamicPartitionsDefinition:
    """Return the windows of a mirrored topic: an asset with the same partitions follows them.

    Args:
        topic: its name at the source.
        key_prefix: that of the definitions.
    """
    from relay_pipelines.orchestration import (
        naming,  # Dagster is slow to import
        window_log,  # Dagster is slow to import
    )

    return window_log.windows(naming.path(naming.parts(key_prefix), mirror), topic)
