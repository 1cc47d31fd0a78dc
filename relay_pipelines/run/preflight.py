"""Checks a mirror before a run: its classes, clusters, topics and permissions. Writes nothing."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Iterator
from functools import partial
from typing import Any

from relay_pipelines.copy import user_class
from relay_pipelines.errors import (
    ConfigError,
    DestinationError,
    RelayError,
    RetriableError,
    SourceError,
    together,
)
from relay_pipelines.finding import Finding, Kind, Severity, warning
from relay_pipelines.ledger import checkpoint
from relay_pipelines.model import Cluster, TopicPartition
from relay_pipelines.plan.topic_selection import matches_nothing, named_without_match, select
from relay_pipelines.prepare import findings, permissions, topics
from relay_pipelines.protocol import admin
from relay_pipelines.protocol.client import ClusterClient
from relay_pipelines.settings import Mirror, Spark
from relay_pipelines.settings.validation_errors import nearest
from relay_pipelines.sides import Sides
from relay_pipelines.snapshot import configs, hidden_copies, read_clusters, state_topics
from relay_pipelines.snapshot.cluster_snapshot import ClusterSnapshot
from relay_pipelines.user_sources import Sources

_TOPICS_SHOWN = 3
_TASK_REMEDY = "executors need a way to every broker, and certificate files at the same paths"


Taken = dict[tuple[str, TopicPartition], str]
"""Destination cluster id and topic-partition -> the mirror that copies to it."""


def check(sides: Sides, taken: Taken | None = None) -> Iterator[Finding]:
    """Yield findings on classes, on every cluster, and, if all clusters answer, on topics.

    Args:
        taken: what the checks of other mirrors have seen; it grows.
    """
    yield from classes(sides)
    clusters: list[tuple[Cluster, type[RetriableError]]] = [
        *((upstream, SourceError) for upstream in sides.mirror.upstreams),
        (sides.mirror.destination_cluster, DestinationError),
    ]
    all_answer, upstreams = True, dict[str, str]()
    for cluster, kind in clusters:
        with ClusterClient(cluster, kind, sides.name, sides.options, sides.clock) as client:
            for finding in _probe(sides, client, at_source=kind is SourceError):
                all_answer = all_answer and finding.severity is not Severity.ERROR
                yield finding
            if kind is SourceError:
                yield from _same_cluster(sides, client, upstreams)
    if all_answer:
        try:
            snapshot = read_clusters.take_snapshot(sides, patient=False)
            snapshot = configs.with_all(snapshot, patient=False)
            yield from _topics(snapshot)
            yield from _state_topics(snapshot)
            yield from _hidden(snapshot)
            yield from _shared(snapshot, {} if taken is None else taken)
        except RelayError as error:
            yield _error(sides.name, error)


def check_spark(
    spark: Spark, session: Callable[[], Any], mirrors: Iterable[Mirror]
) -> Iterator[Finding]:
    """Yield whether a Spark elsewhere answers, and whether its tasks could copy.

    Args:
        mirrors: whose clusters the tasks must reach.
    """
    if spark.master and spark.master.startswith("local"):
        return
    from relay_pipelines.spark import answering, connect_channel, job
    from relay_pipelines.spark import session as spark_session

    try:
        if spark.remote:
            address = answering.without_parameters(spark.remote)
            version = connect_channel.version(spark.remote)
            yield _ok("spark", f"{address} answers: Spark {version}")
        clusters = {
            cluster: None
            for mirror in mirrors
            for cluster in (*mirror.upstreams, mirror.destination_cluster)
        }
        places = job.probe(session(), list(clusters))
        if spark.master:
            size = spark_session.cluster_size(session())
            executors = _count(size.executors, "executor")
            memory = f"{size.memory_bytes / (1 << 30):.1f} GiB of memory for tasks"
            cores = _count(size.cores, "core")
            yield _ok("spark", f"{spark.master} has started {executors} with {cores} and {memory}")
    except RelayError as error:
        yield _error("spark", error)
        return
    (version, *_) = sorted({place.python for place in places})
    yield _ok("spark", f"its tasks run Python {version}, with all packages")
    problems = {
        (place.host, cluster): why for place in places for cluster, why in place.problems.items()
    }
    for (host, _), why in sorted(problems.items()):
        yield _error(f"spark: tasks at {host}", RetriableError(why, remedy=_TASK_REMEDY))
    if not problems:
        yield _ok("spark", f"its tasks reach the brokers of {_count(len(clusters), 'cluster')}")


def check_sql(sides: Sides, session: Callable[[], Any]) -> Iterator[Finding]:
    """Yield what Spark reports on the SQL of a mirror.

    Args:
        session: returns the Spark session; called only if there is SQL.
    """
    for settings in sides.mirror.record_settings:
        if settings.where or settings.select:
            from relay_pipelines.spark import sql_rows

            try:
                sql_rows.check(session(), (settings.where or "", tuple(settings.select.items())))
            except RelayError as error:
                yield _error(sides.name, error)


def classes(sides: Sides) -> Iterator[Finding]:
    """Yield why filters and transforms of the mirror cannot be constructed here."""
    sources = Sources()
    for settings in sides.mirror.record_settings:
        specs = [(user_class.FILTER, chosen.spec) for chosen in settings.filters]
        specs += [(user_class.TRANSFORM, settings.transform.spec)] if settings.transform else []
        for purpose, spec in specs:
            try:
                user_class.construct(sources.fix_class(spec), purpose)
            except ConfigError as error:
                yield _error(sides.name, error)


def _probe(sides: Sides, client: ClusterClient, *, at_source: bool) -> Iterator[Finding]:
    where = f"{sides.name}: {'upstream' if at_source else 'to'} {client.cluster}"
    try:
        metadata = client.metadata()
        client.connect_to_brokers()
    except RelayError as error:
        yield _error(where, error)
        return
    brokers = _count(len(metadata.brokers), "broker")
    cluster = f"cluster {client.cluster_id}"
    yield _ok(where, f"answers with {brokers} of {cluster}, and every request of a copy")
    visible = sorted(
        topic
        for topic, shown in metadata.topics.items()
        if not shown.is_internal and not shown.error_code
    )
    if at_source:
        yield from _copies_of_others(where, client)
        decisions = select(visible, sides.mirror.topics.allow, sides.mirror.topics.deny)
        visible = [decision.topic for decision in decisions if decision.included]
    try:
        if not at_source:
            topics.require_transaction_timeout(client)
        admin.topic_configs(client, visible[:1], configs.NEEDED_CONFIGS)
    except RelayError as error:
        yield _error(where, error)


def _same_cluster(
    sides: Sides, client: ClusterClient, upstreams: dict[str, str]
) -> Iterator[Finding]:
    """Yield that an upstream is the cluster of an earlier one: no failover is left between the two.

    Args:
        upstreams: cluster id -> the first upstream that has it; it grows.
    """
    if not client.cluster_id:
        return
    upstream = client.cluster.name
    first = upstreams.setdefault(client.cluster_id, upstream)
    if first != upstream:
        yield warning(
            *(Kind.SAME_CLUSTER, f"{sides.name}: upstream {client.cluster}"),
            f"belongs to the cluster of upstream {first}, {client.cluster_id}: if that is away, so"
            " is this one",
            "name an identical cluster with an id of its own, or remove one of the two",
        )


def _copies_of_others(where: str, client: ClusterClient) -> Iterator[Finding]:
    """Yield that relay cannot see which topics of a source are copies, if so."""
    topic = checkpoint.TOPIC
    shown = client.metadata([topic]).topics[topic]
    if shown.is_hidden:
        then = "records that others have from the destination would go round"
    elif not shown.error_code and admin.unreadable(client, [topic]):
        then = "none is copied once another mirror has copied to it"
    else:
        return
    yield warning(
        *(Kind.UNREADABLE, where),
        f"relay cannot see which of its topics are copies: {then}",
        f"let the user read {topic} there" + (", or deny copies by their names" * shown.is_hidden),
    )


def _topics(snapshot: ClusterSnapshot) -> Iterator[Finding]:
    yield from _patterns(snapshot)
    included = list(snapshot.destinations)
    if included:
        what = f"{_count(len(included), 'topic')} selected: {_some(included)}"
        yield _ok(snapshot.name, what)
    for finding in [*findings.of_snapshot(snapshot), *topics.more_partitions(snapshot)]:
        yield finding.inside(snapshot.name)
    new = topics.missing(snapshot)
    if new:
        what = f"{_count(len(new), 'topic')} will be created at the destination"
        yield _ok(snapshot.name, what)
    for error in permissions.missing_permissions(snapshot):
        yield _error(snapshot.name, error)
    # what cannot be copied now, and what could not be once there is something new
    errors = dict.fromkeys([*snapshot.configs.refused.values(), *snapshot.held.values()])
    for loss in together(errors):
        yield _error(snapshot.name, loss)


def _state_topics(snapshot: ClusterSnapshot) -> Iterator[Finding]:
    with snapshot.destination_client() as client:
        existing = state_topics.read(client, snapshot)
    for topic in existing:
        for error in state_topics.errors(topic):
            yield _error(snapshot.name, error)
        for risk in state_topics.warnings(topic):
            yield Finding.of(risk, Severity.WARNING).inside(snapshot.name)


def _hidden(snapshot: ClusterSnapshot) -> Iterator[Finding]:
    """Yield the transactions of others that hide copies; those of copies end by themselves."""
    now_ms = snapshot.sides.clock.now_ms()
    for each in hidden_copies.hanging(snapshot, hidden_copies.find(snapshot), now_ms):
        yield _error(snapshot.name, each.error(snapshot.destination, now_ms))


def _shared(snapshot: ClusterSnapshot, taken: Taken) -> Iterator[Finding]:
    """Yield the other mirrors of the file that are to copy to the same topic-partitions."""
    pinned, configured = snapshot.pinned_topics, defaultdict[str, set[str]](set)
    for position in snapshot.positions:
        if position.topic_partition.topic not in pinned:
            to = snapshot.destination_of(position.topic_partition)
            other = taken.setdefault((snapshot.destination.id, to), snapshot.name)
            if other != snapshot.name:
                configured[other].add(to.topic)
    for other, names in configured.items():
        what = f"mirror {other!r} copies to {_some(names)}, too"
        remedy = "give the copies of one of them another name with topics.rename"
        yield _error(snapshot.name, ConfigError(what, remedy=remedy))


def _some(names: Collection[str]) -> str:
    first, more = sorted(names)[:_TOPICS_SHOWN], len(names) - _TOPICS_SHOWN
    return ", ".join(first) + (f" and {more} more" if more > 0 else "")


def _patterns(snapshot: ClusterSnapshot) -> Iterator[Finding]:
    shown, configured = snapshot.selected.shown, snapshot.sides.mirror.topics
    missing = partial(warning, Kind.PATTERN_WITHOUT_TOPIC)
    for key, patterns in (
        ("allow", configured.allow),
        ("deny", configured.deny),
        ("overrides", configured.overrides),
    ):
        for pattern in matches_nothing(shown, patterns):
            if key == "allow" and set(named_without_match([pattern], shown)).intersection(
                snapshot.selected.unseen
            ):
                continue  # an error of its own, below
            remedy = (
                nearest(pattern, shown, "topics")
                if shown
                else "the source has no topics, or the user may see none"
            )
            what = f"{pattern!r} matches no topic of the source"
            yield missing(f"{snapshot.name}: topics.{key}", what, remedy)
    if isinstance(configured.rename, dict):
        for topic in sorted(set(configured.rename) - set(shown)):
            what, remedy = f"the source has no topic {topic!r}", nearest(topic, shown, "topics")
            yield missing(f"{snapshot.name}: topics.rename", what, remedy)


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}{'s' if number != 1 else ''}"


def _ok(where: str, text: str) -> Finding:
    return Finding(Kind.OK, where, Severity.OK, text)


def _error(place: str, error: RelayError) -> Finding:
    return Finding.of(error).inside(place)
