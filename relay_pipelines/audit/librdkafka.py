"""Reads chunks with librdkafka, which shares no code with the copy. Runs in a task.

librdkafka fetches, verifies and decodes the batches, and leaves aborted records out.
"""

from __future__ import annotations

from collections.abc import Generator, Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from itertools import groupby
from typing import Any, Self

from confluent_kafka import TIMESTAMP_LOG_APPEND_TIME, Consumer, KafkaError, KafkaException
from confluent_kafka import TopicPartition as KafkaTopicPartition

from relay_pipelines.audit.comparison import Part, Side
from relay_pipelines.errors import (
    DataLossError,
    PermissionDeniedError,
    RelayError,
    RetriableError,
    UnsupportedError,
)
from relay_pipelines.model import Cluster, CopyOptions, OffsetRange, TopicPartition
from relay_pipelines.protocol import tokens
from relay_pipelines.protocol.client import ClusterClient
from relay_pipelines.protocol.clock import Clock
from relay_pipelines.protocol.records import Record

_AT_ONCE = 500  # records
_POLL_SECONDS = 0.1
_QUEUED_KB = 16 << 10
# of a token whose provider does not say it; librdkafka asks again after four fifths
_UNKNOWN_LIFE_SECONDS = 60.0
_NEAR = 1_000  # offsets, to read on instead of fetching again
_REFUSALS = {
    KafkaError._AUTHENTICATION,  # noqa: SLF001 - these are their public names
    KafkaError._SSL,  # noqa: SLF001
    KafkaError.SASL_AUTHENTICATION_FAILED,
    KafkaError.TOPIC_AUTHORIZATION_FAILED,
    KafkaError.CLUSTER_AUTHORIZATION_FAILED,
}
_PASSING = {
    KafkaError._TIMED_OUT,  # noqa: SLF001
    KafkaError._TRANSPORT,  # noqa: SLF001
    KafkaError._ALL_BROKERS_DOWN,  # noqa: SLF001
}


def settings_of(cluster: Cluster) -> dict[str, Any]:
    """Return how librdkafka connects to a cluster, in the names of its configuration."""
    security = cluster.security
    if security.mechanism == "GSSAPI":
        raise UnsupportedError(
            f"{cluster}: librdkafka of the package confluent-kafka has no GSSAPI",
            remedy="audit without --client librdkafka",
        )
    known = {
        "bootstrap.servers": ",".join(cluster.bootstrap_servers),
        "security.protocol": security.protocol,
        "sasl.mechanism": security.mechanism,
        "sasl.username": security.username,
        "sasl.password": security.password,
        "sasl.oauthbearer.method": "oidc" if security.token_endpoint else None,
        "sasl.oauthbearer.token.endpoint.url": security.token_endpoint,
        "sasl.oauthbearer.client.id": security.client_id,
        "sasl.oauthbearer.client.secret": security.client_secret,
        "sasl.oauthbearer.scope": security.scope,
        "ssl.ca.location": security.ca_location,
        "ssl.certificate.location": security.certificate_location,
        "ssl.key.location": security.key_location or security.certificate_location,
        "ssl.key.password": security.key_password,
        "ssl.endpoint.identification.algorithm": None if security.verify_hostname else "none",
    }
    if security.token_endpoint and security.sasl_extensions:
        pairs = [f"{name}={value}" for name, value in security.sasl_extensions]
        if any("," in pair for pair in pairs):
            raise UnsupportedError(
                f"{cluster}: librdkafka cannot send a value with a comma, such as one of"
                " security.sasl_extensions",
                remedy="audit without --client librdkafka",
            )
        known["sasl.oauthbearer.extensions"] = ",".join(pairs)
    return {key: value for key, value in known.items() if value is not None}


class LibrdkafkaReader:
    """Reads offset ranges of one cluster. It connects with its first use, and again after `close`.

    Args:
        retriable: the error for a cluster that does not answer.
    """

    def __init__(
        self,
        mirror: str,
        cluster: Cluster,
        retriable: type[RetriableError],
        options: CopyOptions,
        clock: Clock,
    ) -> None:
        self._cluster = cluster
        self._mirror = mirror
        self._options = options
        self._retriable = retriable
        self._clock = clock
        self._timeout_seconds = options.request_timeout_ms / 1000
        self._config = settings_of(cluster) | {
            "client.id": f"relay-{mirror}-audit-librdkafka",
            "group.id": f"relay-{mirror}-audit",  # required, although no group is joined
            "isolation.level": "read_committed",
            "check.crcs": True,
            "enable.auto.commit": False,
            "enable.partition.eof": True,
            "auto.offset.reset": "error",  # by default it goes on at the end, without a word
            "fetch.wait.max.ms": 50,
            "fetch.message.max.bytes": options.fetch_max_bytes,
            "queued.max.messages.kbytes": _QUEUED_KB,
            "fetch.queue.backoff.ms": 5,  # a second by default, after the queue was full
            "log_level": 0,
            "error_cb": self._keep,
        }
        if cluster.security.token_provider is not None:
            self._config["oauth_cb"] = self._token
        self._denied: RelayError | None = None
        self._consumer: Consumer | None = None
        self._error: KafkaError | None = None
        self._next: tuple[TopicPartition, int] | None = None
        """Where the consumer continues; None if it has to be told."""
        self._left: list[Any] = []

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def name(self) -> str:
        """Of the cluster."""
        return self._cluster.name

    def log(self, offset_range: OffsetRange) -> tuple[int, int]:
        """Return the offsets at which the log of a range begins and ends.

        Raises:
            RelayError: the cluster does not answer, or refuses.
        """
        tp = offset_range.topic_partition
        until = self._clock.monotonic() + self._timeout_seconds
        while True:
            try:
                low, high = self._open().get_watermark_offsets(
                    KafkaTopicPartition(tp.topic, tp.partition), timeout=1.0
                )
                return int(low), int(high)
            except KafkaException as error:
                self._open().poll(0)  # serves `_keep`
                reason = self._reason(error.args[0])
                if reason.code() not in _PASSING or self._clock.monotonic() >= until:
                    raise self._failure(reason, tp) from error

    def read(self, offset_range: OffsetRange) -> Generator[Part, None, None]:
        """Yield the committed records of a range, in order.

        Raises:
            RelayError: the cluster does not answer, or refuses.
        """
        tp, reached = offset_range.topic_partition, offset_range.start
        self._go_to(offset_range)
        until = self._clock.monotonic() + self._timeout_seconds
        while reached < offset_range.end:
            messages, self._left = self._left or self._consume(tp), []
            if messages:
                until = self._clock.monotonic() + self._timeout_seconds
            elif self._clock.monotonic() >= until:
                raise self._retriable(
                    f"librdkafka reads nothing after offset {reached}",
                    remedy=f"see whether {self._cluster} is up, and whether a transaction is open",
                    topic_partition=tp,
                )
            records, reached = self._taken(messages, offset_range, reached)
            yield from _parts(records)
        self._next = tp, offset_range.end

    @staticmethod
    def side(parts: Generator[Part, None, None], producer_id: int | None = None) -> Side:
        """Return records as a side of a comparison."""
        assert producer_id is None, "librdkafka does not show producers"
        return Side(parts)

    @staticmethod
    def parts(parts: Generator[Part, None, None]) -> Iterator[Part]:
        """Return records as they are."""
        return parts

    def size_bytes(self, tp: TopicPartition) -> int | None:  # noqa: ARG002 - as of `_Reader`
        """Return None: librdkafka does not ask brokers for it."""
        return None

    def forget(self) -> None:
        """Do nothing: `log` always asks."""

    def waiting_at_most(self, _seconds: float) -> AbstractContextManager[None]:
        """Do nothing: librdkafka has limits of its own."""
        return nullcontext()

    def close(self) -> None:
        """Close the connections."""
        if self._consumer is not None:
            self._consumer.close()
        self._consumer, self._next, self._error, self._denied = None, None, None, None

    def _open(self) -> Consumer:
        if self._consumer is None:
            # it would follow whatever address a broker advertises
            with ClusterClient(
                *(self._cluster, self._retriable, self._mirror, self._options, self._clock),
                purpose="audit",
            ) as client:
                client.connect_to_brokers()
            self._consumer = Consumer(self._config)
        if self._denied is not None:
            raise self._denied
        return self._consumer

    def _token(self, _: str) -> tuple[str, float, str, dict[str, str]]:
        """Return what librdkafka asks for: token, when it expires, no principal, extensions."""
        security = self._cluster.security
        assert security.token_provider is not None
        try:
            token, seconds = tokens.request(
                security.token_provider, str(self._cluster), self._retriable, self._timeout_seconds
            )
        except RelayError as error:  # nothing may be raised here; `_open` does it
            self._denied = error
            token, seconds = "none", 0.0
        else:
            self._denied = None
        expires_ms = self._clock.now_ms() + 1000 * (seconds or _UNKNOWN_LIFE_SECONDS)
        return token, expires_ms / 1000, "", dict(security.sasl_extensions)

    def _go_to(self, offset_range: OffsetRange) -> None:
        """Begin at a range, unless the consumer is there because it has read the one before."""
        tp, start = offset_range.topic_partition, offset_range.start
        place, self._next = self._next, None  # known again once the range has been read
        if place is None or place[0] != tp or not 0 <= start - place[1] <= _NEAR:
            self._left = []
            self._open().assign([KafkaTopicPartition(tp.topic, tp.partition, start)])

    def _consume(self, tp: TopicPartition) -> list[Any]:
        try:
            messages = self._open().consume(_AT_ONCE, _POLL_SECONDS)
        except KafkaException as error:
            raise self._failure(error.args[0], tp) from error
        if self._error is not None and self._error.code() in _REFUSALS:
            raise self._failure(self._error, tp)
        return list(messages)

    def _taken(
        self, messages: Sequence[Any], offset_range: OffsetRange, reached: int
    ) -> tuple[list[tuple[Record, bool]], int]:
        """Return the records of a range, keep those after it, and return what has been reached."""
        records: list[tuple[Record, bool]] = []
        for index, message in enumerate(messages):
            error, offset = message.error(), message.offset()
            if error is not None:
                if error.code() == KafkaError._PARTITION_EOF:  # noqa: SLF001
                    reached = max(reached, offset)
                elif error.code() != KafkaError.GROUP_AUTHORIZATION_FAILED:  # no group is used
                    raise self._failure(error, offset_range.topic_partition)
            elif offset >= offset_range.end:
                self._left = list(messages[index:])
                return records, offset
            elif offset >= offset_range.start:
                records.append(self._record(message, offset_range.topic_partition))
                reached = offset + 1
        return records, reached

    def _record(self, message: Any, tp: TopicPartition) -> tuple[Record, bool]:
        kind, timestamp = message.timestamp()
        try:
            headers = message.headers() or []
        except UnicodeDecodeError as error:
            raise UnsupportedError(
                "a header's name is not UTF-8, which confluent-kafka cannot read",
                remedy="audit this topic without --client librdkafka",
                topic_partition=tp,
                offset=message.offset(),
            ) from error
        record = Record(message.offset(), timestamp, message.key(), message.value(), headers)
        return record, kind == TIMESTAMP_LOG_APPEND_TIME

    def _reason(self, error: KafkaError) -> KafkaError:
        """Return the error that says why a call failed, which may be one of the connection."""
        kept = self._error
        explains = kept is not None and (kept.code() in _REFUSALS or error.code() in _PASSING)
        return kept if explains else error

    def _keep(self, error: KafkaError) -> None:
        if self._error is None or error.code() in _REFUSALS:
            self._error = error

    def _failure(self, error: KafkaError, tp: TopicPartition) -> RelayError:
        what = f"{self._cluster}: librdkafka says: {error.str()}"
        if error.code() in _REFUSALS:
            what = f"{self._cluster} refused librdkafka: {error.str()}"
            return PermissionDeniedError(what, remedy="check its security in relay.yaml")
        if error.code() == KafkaError._AUTO_OFFSET_RESET:  # noqa: SLF001 - its public name
            return DataLossError(
                what,
                remedy="see where the log begins and ends now: records were deleted meanwhile",
                topic_partition=tp,
            )
        is_away = error.code() in _PASSING
        return self._retriable(
            what,
            remedy="see whether it is up"
            if is_away
            else "see whether the topic is there, and whether the user may read it",
            # an error of the cluster concerns every topic-partition
            topic_partition=None if is_away else tp,
        )


def _parts(records: Sequence[tuple[Record, bool]]) -> Iterator[Part]:
    for is_append_time, some in groupby(records, key=lambda each: each[1]):
        yield [record for record, _ in some], is_append_time
