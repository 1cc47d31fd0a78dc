"""Finds what is compared with what. On the driver; it only reads."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial

from relay_pipelines.audit.retention import is_compacted
from relay_pipelines.compare.commits import commits_of
from relay_pipelines.compare.pairs import HIDDEN, Commit, CompareJob, Log, Pair
from relay_pipelines.compare.reading import Readers, last_crcs, readers
from relay_pipelines.compare.request import Align, CompareRequest
from relay_pipelines.compare.result import Compared
from relay_pipelines.errors import (
    ConfigError,
    PermissionDeniedError,
    RelayError,
    RetriableError,
)
from relay_pipelines.finding import Finding, Kind, Severity
from relay_pipelines.model import OffsetRange, TopicPartition
from relay_pipelines.plan.topic_selection import (
    RenameRule,
    Target,
    matches_nothing,
    named_without_match,
    select,
    targets,
)
from relay_pipelines.protocol.admin import CLEANUP_POLICY, readable_topic_configs, sizes_on_disk
from relay_pipelines.protocol.client import (
    EARLIEST,
    LATEST,
    READ_COMMITTED,
    READ_UNCOMMITTED,
    ClusterClient,
)
from relay_pipelines.sides import Sides

_RECORD_BYTES = 100  # where the brokers do not tell sizes
_Span = tuple[int | None, int | None]
_Refused = dict[str, RelayError]


@dataclass(frozen=True, slots=True)
class _Topic:
    """A topic of one side.

    Args:
        logs: its topic-partitions as they are; with a part of them as range, if that is asked for.
    """

    name: str
    topic_id: str
    compacts: bool
    logs: Sequence[Log]
    sizes: Mapping[TopicPartition, int] = field(default_factory=dict)

    def size_bytes(self, logs: Iterable[Log]) -> int:
        """Return about how much there is to read."""
        total = 0
        for log in logs:
            whole = self.sizes.get(log.topic_partition, len(log.whole) * _RECORD_BYTES)
            total += whole * len(log.range) // max(1, len(log.whole))
        return total


def begin(sides: Sides, request: CompareRequest) -> Compared:
    """Find the topics on both sides, and the logs that are compared with each other.

    The ends of the destination are read before those of the source: what is copied meanwhile is
    beyond the end, and nothing is extra because it is new.

    Raises:
        ConfigError: no topic is named, or both sides are the same.
        RelayError: a cluster does not answer, or refuses.
    """
    span = _span(request, sides.clock.now_ms())
    with _source(sides) as source, sides.destination("compare") as destination:
        copied_to = _copied_to(sides, request, source)
        # tasks must reach the same clusters
        destination.retry(partial(destination.metadata, []))
        job = CompareJob(
            sides.name,
            source.cluster,
            destination.cluster,
            sides.options,
            request.max_bytes_per_second,
        )
        compared = Compared(sides.name, request, job)
        there, refused_there = _topics(destination, {to.topic for to in copied_to.values()})
        here, refused = _topics(source, copied_to)
        _refuse_the_same(source, destination, copied_to)
        compared.topic_ids = tuple(
            {topic.name: topic.topic_id for topic in side.values()} for side in (here, there)
        )
        both = readers(source, destination, request.max_bytes_per_second)
        commits = commits_of(both, request, copied_to)
        finding = _Finding(compared, both, request, commits, span)
        sources = Counter(copied_to.values())
        for name, to in copied_to.items():
            if sources[to] > 1:
                what = f"several topics are copied to {to}, which nothing tells apart"
                compared.unpaired.append(Finding(Kind.UNREADABLE, name, Severity.ERROR, what))
                continue
            error = refused.get(name) or refused_there.get(to.topic)
            if error is None and name not in here:
                raise source.retriable(f"{name} was deleted on {source.cluster} meanwhile")
            try:
                if error is None:
                    finding.pair(here[name], there.get(to.topic), to)
            except (ConfigError, RetriableError):
                raise
            except RelayError as refusal:
                error = refusal
            if error is not None:  # such as that it may not be read: others may
                text = str(error)
                compared.unpaired.append(Finding(Kind.UNREADABLE, name, Severity.ERROR, text))
        return compared


def _source(sides: Sides) -> ClusterClient:
    """Return a client of the first upstream that answers."""
    errors: list[RelayError] = []
    upstreams = sides.mirror.upstreams
    for upstream in upstreams:
        client = sides.source(upstream, "compare")
        try:
            client.retry(partial(client.metadata, []), patient=len(upstreams) == 1)
        except RelayError as error:
            errors.append(error)
        else:
            return client
    raise errors[0]


def _copied_to(sides: Sides, request: CompareRequest, source: ClusterClient) -> dict[str, Target]:
    """Return the source topics, and what each is called at the destination."""
    topics = sides.mirror.topics
    allow = request.topics or topics.allow
    deny = () if request.topics else topics.deny
    shown = {*source.retry(partial(source.metadata, None)).topics}
    if named := named_without_match(allow, shown):
        asked = source.retry(partial(source.metadata, named)).topics
        shown.update(name for name, topic in asked.items() if topic.is_hidden)  # reading it fails
    names = [each.topic for each in select(shown, allow, deny) if each.included]
    without = matches_nothing(names, allow)
    if not names or (request.topics and without):
        raise ConfigError(
            f"no topic of {source.cluster} matches {', '.join(map(repr, without))}",
            remedy="give other --topics; the user must be allowed to describe them",
        )
    rename = [RenameRule(*rule) for rule in request.rename] or topics.rename
    return targets(names, rename)


def _refuse_the_same(
    source: ClusterClient, destination: ClusterClient, copied_to: Mapping[str, Target]
) -> None:
    if source.cluster_id != destination.cluster_id:
        return
    for name, to in copied_to.items():
        if name == to.topic:
            raise ConfigError(
                f"source and destination are one cluster, {source.cluster_id}, and {name} would"
                " be compared with itself",
                remedy="name another cluster, or give --rename",
            )


def _topics(client: ClusterClient, names: Collection[str]) -> tuple[dict[str, _Topic], _Refused]:
    """Return those of the topics that exist, and why others cannot be read.

    Raises:
        RelayError: the cluster does not answer, or none of them can be read.
    """
    try:
        return _described(client, names)
    except RetriableError:
        topics = client.metadata([*names]).topics.values()
        partitions = [tp for topic in topics for tp in topic.topic_partitions]
        _, refused = client.offsets(partitions, LATEST, READ_COMMITTED)
        silent: _Refused = {tp.topic: error for tp, error in refused.items()}
        readable = [name for name in names if name not in silent]
        if not silent or not readable:
            raise
    described, refused_too = _described(client, readable)
    return described, silent | refused_too


def _described(client: ClusterClient, names: Collection[str]) -> tuple[dict[str, _Topic], _Refused]:
    """Return those of the topics that exist, and why others may not be described."""

    def look() -> tuple[dict[str, _Topic], _Refused]:
        compacts, refused = _policies(client, names)
        known = {name: client.topic(name) for name in compacts}
        tps = [tp for topic in known.values() for tp in topic.topic_partitions]
        # high watermarks first: what is written meanwhile is not hidden
        high = client.list_offsets(tps, LATEST, READ_UNCOMMITTED)
        ends = client.list_offsets(tps, LATEST, READ_COMMITTED)
        lows = client.list_offsets(tps, EARLIEST, READ_COMMITTED)
        sizes = sizes_on_disk(client, [*known])
        # a cleaner may write the last batch again
        stay = [tp for tp in tps if not known[tp.topic].topic_id and not compacts[tp.topic]]
        crcs = last_crcs(client, {tp: ends[tp] for tp in stay})

        def log(tp: TopicPartition) -> Log:
            return Log(
                OffsetRange(tp, lows[tp], max(lows[tp], ends[tp])),
                lows[tp],
                ends[tp],
                known[tp.topic].leader_epochs.get(tp.partition, -1),
                crcs.get(tp, -1),
                max(0, high[tp] - ends[tp]),
            )

        topics = {
            name: _Topic(
                name, topic.topic_id, compacts[name], [*map(log, topic.topic_partitions)], sizes
            )
            for name, topic in known.items()
        }
        return topics, refused

    return client.retry(look)


def _policies(client: ClusterClient, names: Collection[str]) -> tuple[dict[str, bool], _Refused]:
    """Return whether a cleaner may work on each of the topics that exist, or why nobody knows."""
    existing = client.existing(names)
    refused: _Refused = {}
    for name in existing:
        try:
            client.topic(name)
        except PermissionDeniedError as error:
            refused[name] = error
    shown = sorted(existing - refused.keys())
    configs, undescribed = readable_topic_configs(client, shown, [CLEANUP_POLICY])
    compacts = {
        name: is_compacted({key: each.value for key, each in configs[name].items()})
        for name in shown
        if name not in undescribed
    }
    return compacts, refused | undescribed


@dataclass(frozen=True, slots=True)
class _Finding:
    """Makes the pairs of topics.

    Args:
        commits: by source topic-partition.
        span: the times that are asked for, the same ones for both sides of all topics.
    """

    compared: Compared
    readers: Readers
    request: CompareRequest
    commits: Mapping[TopicPartition, Sequence[Commit]]
    span: _Span

    def pair(self, here: _Topic, there: _Topic | None, to: Target) -> None:
        """Add the pairs of a topic, or say why there are none."""
        if there is None:
            self._note(here.name, f"the destination has no topic {to.topic!r}")
            return
        asked = self.request.partition
        sources = [log for log in here.logs if asked in {None, _partition(log)}]
        if not sources:
            raise ConfigError(f"{here.name} has no partition {asked}")
        align, why = self._align(here, there, to)
        if asked is not None and align is Align.KEY and self.request.align is Align.AUTO and why:
            raise ConfigError(
                f"no partition of {here.name} can be compared alone: {why}",
                remedy="leave out --partition",
            )
        places = self.request.start, self.request.until
        if align is not Align.ORDER and any(place and place.offset is not None for place in places):
            raise ConfigError(
                f"{here.name} is compacted, so that source offsets say nothing of the copies",
                remedy="give times, or --align order",
            )
        if why:
            rule = "as a set of records" if align is Align.SET else "key by key"
            text = f"all partitions together {rule}, because {why}"
            self.compared.rules.append(
                Finding(Kind.COMPARED_BY, here.name, Severity.OK, f"compared {text}")
            )
        if align is Align.ORDER or (align is Align.KEY and not why):
            self._partitions(here, there, sources, to, align)
            return
        partitions = {asked if to.partition is None else to.partition}
        copies = [log for log in there.logs if partitions <= {None, _partition(log)}]
        if copies:
            self._add(here, there, sources, copies, align)
        else:
            self._note(here.name, "the destination has no such partition")

    def _align(self, here: _Topic, there: _Topic, to: Target) -> tuple[Align, str]:
        """Return how to compare, and why partitions do not matter; empty if they do."""
        asked, is_compacted = self.request.align, here.compacts or there.compacts
        if asked is Align.SET and is_compacted:
            return Align.KEY, "it is compacted, so that later records of a key tell what is gone"
        if asked in {Align.KEY, Align.SET}:
            return asked, "that is asked for"
        if asked is Align.AUTO and to.partition is not None and len(here.logs) > 1:
            return Align.KEY, "they go to one partition"
        if asked is Align.AUTO and to.partition is None:
            known = {_partition(log) for log in here.logs}
            other = {_partition(log) for log in there.logs if len(log.whole)}
            if not other <= known or not known <= {_partition(log) for log in there.logs}:
                counts = f"{len(here.logs)} partitions, and the destination {len(there.logs)}"
                return Align.KEY, f"the source has {counts}"
        return (Align.KEY if is_compacted and asked is Align.AUTO else Align.ORDER), ""

    def _partitions(
        self, here: _Topic, there: _Topic, sources: Sequence[Log], to: Target, align: Align
    ) -> None:
        logs = {_partition(log): log for log in there.logs}
        for log in sources:
            copy = logs.pop(to.of(log.topic_partition).partition, None)
            if copy is not None:
                self._add(here, there, [log], [copy], align)
            elif self._has_records(0, log):
                self._note(str(log.topic_partition), "the destination has no such partition")
        is_all = to.partition is None and self.request.partition is None
        for log in logs.values() if is_all else ():
            if self._has_records(1, log):
                self._note(str(log.topic_partition), "the source has no such partition")

    def _add(
        self,
        here: _Topic,
        there: _Topic,
        sources: Sequence[Log],
        destinations: Sequence[Log],
        align: Align,
    ) -> None:
        if align is Align.ORDER:
            ranges = self._range(sources[0], destinations[0])
        else:
            ranges = [*map(self._from, sources)], [*map(self._from_there, destinations)]
        for log in ranges[0]:
            if log.hidden:
                self.compared.hidden[f"{log.topic_partition}: {HIDDEN}"] = log.hidden
        size_bytes = here.size_bytes(ranges[0]) + there.size_bytes(ranges[1])
        commits = [each for log in sources for each in self.commits.get(log.topic_partition, ())]
        self.compared.pairs.append(
            Pair(
                here.name,
                tuple(ranges[0]),
                tuple(ranges[1]),
                align,
                size_bytes,
                (here.compacts, there.compacts),
                tuple(commits),
                *(self.span if align is not Align.ORDER else (None, None)),
            )
        )

    def _has_records(self, side: int, log: Log) -> bool:
        """Whether a log has committed records of the times that are asked for."""
        reader = self.readers[side]
        part = self._cut(reader.client, log, *self.span).range
        return reader.record_at(part.topic_partition, part.start, part.end) is not None

    def _from(self, log: Log) -> Log:
        return self._cut(self.readers[0].client, log, self.span[0], None)

    def _from_there(self, log: Log) -> Log:
        return self._cut(self.readers[1].client, log, self.span[0], None)

    def _cut(self, client: ClusterClient, log: Log, start: int | None, until: int | None) -> Log:
        """Return the log with the range from the first record of one time to that of another."""
        tp, (low, end) = log.topic_partition, (log.low, log.end)
        if start is not None:
            low = client.retry(partial(client.first_offsets, start, {tp: end}))[tp]
        if until is not None:
            end = client.retry(partial(client.first_offsets, until, {tp: end}))[tp]
        low = min(max(low, log.low), log.end)
        return replace(log, range=OffsetRange(tp, low, max(low, min(end, log.end))))

    def _range(self, here: Log, there: Log) -> tuple[list[Log], list[Log]]:
        """Return the parts of two logs; offsets are those of the source."""
        source, destination = (reader.client for reader in self.readers)
        tp, (start_ms, until_ms) = here.topic_partition, self.span
        start, until = self.request.start, self.request.until
        cut = self._cut(source, here, start_ms, until_ms)
        first, last = cut.range.start, cut.range.end
        if start is not None and start.offset is not None:
            if start.offset > here.end:
                raise ConfigError(
                    f"{tp} ends at offset {here.end}", remedy="give a smaller offset to --from"
                )
            first = min(max(start.offset, here.low), here.end)
            start_ms = self._time_at(tp, first, here.end)
            if start_ms is None:  # no record is asked for
                there = replace(there, range=replace(there.range, start=there.end))
                return [replace(here, range=OffsetRange(tp, first, here.end))], [there]
        if until is not None and until.offset is not None:
            last = max(first, min(until.offset, here.end))
            until_ms = self._time_at(tp, last, here.end)
            # records before it may have the same time
            until_ms = None if until_ms is None else until_ms + 1
        cut = replace(here, range=OffsetRange(tp, first, max(first, last)))
        return [cut], [self._cut(destination, there, start_ms, until_ms)]

    def _time_at(self, tp: TopicPartition, offset: int, end: int) -> int | None:
        """Return the time of a source record; None at the end of the log."""
        record = self.readers[0].record_at(tp, offset, end) if offset < end else None
        return None if record is None else max(0, int(record.timestamp))

    def _note(self, where: str, text: str) -> None:
        self.compared.unpaired.append(Finding(Kind.OTHER_RECORDS, where, Severity.DIFFERENCE, text))


def _span(request: CompareRequest, now_ms: int) -> _Span:
    """Return the times that are asked for; an offset is none.

    Raises:
        ConfigError: the end is not after the start.
    """
    places = request.start, request.until
    # before 1970, the protocol has other meanings for some numbers
    moments = (None if place is None else place.moment_ms(now_ms) for place in places)
    start, until = (None if moment is None else max(0, moment) for moment in moments)
    if start is not None and until is not None and start >= until:
        raise ConfigError(
            "the time span ends before it begins", remedy="give an end later than the start"
        )
    return start, until


def _partition(log: Log) -> int:
    return log.topic_partition.partition
