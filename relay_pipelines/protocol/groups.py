"""Consumer groups: what they have committed, and committing for them. On the driver.

One group's failure is a value, so that it stops no other.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from functools import partial
from itertools import cycle

from kafka.protocol.admin import ListGroupsRequest
from kafka.protocol.consumer import OffsetFetchRequest

from relay_pipelines.errors import ConfigError, RelayError
from relay_pipelines.model import TopicPartition
from relay_pipelines.protocol import group_requests
from relay_pipelines.protocol.client import ClusterClient
from relay_pipelines.protocol.group_requests import CommittedOffset, GroupCommits
from relay_pipelines.protocol.retries import is_retryable

Commits = dict[TopicPartition, CommittedOffset]
_GROUPS_PER_REQUEST = 10
_REQUESTS_IN_FLIGHT = 32
GROUPS_AT_ONCE = _GROUPS_PER_REQUEST * _REQUESTS_IN_FLIGHT
"""So many are asked about without waiting for an answer between."""
# a broker serves the requests of a connection one after the other, and waits for more to write
# with each commit: some milliseconds, in which nobody would have made another connection
_COMMITS_PER_CONNECTION = 4
_MEMBERS = frozenset({22, 25, 27, 110, 113})
"""What a group with members answers to a commit of nobody: an unknown member, or generation."""
_UNSTABLE_OFFSET_COMMIT = 88


class HasMembersError(ConfigError):
    """A group has members, and so takes no commits of others."""


class PendingCommitError(RelayError):
    """A transaction has committed offsets of a group, and has not ended: it is unknown which count.

    It ends within a moment, unless its producer is gone.
    """


@dataclass(frozen=True, slots=True)
class ListedGroup:
    """A group as its coordinator lists it.

    Args:
        type: `classic`, `consumer` or `share`; empty before Kafka 3.8.
        state: such as `Stable` or `Empty`; empty before Kafka 2.6.
    """

    name: str
    type: str = ""
    state: str = ""

    @property
    def has_members(self) -> bool:
        """Whether somebody is in it, as far as the state says."""
        return bool(self.state) and self.state not in {"Empty", "Dead"}


def consumer_groups(client: ClusterClient) -> list[str]:
    """Return the names of all groups of consumers that the user may see, in order.

    Raises:
        RelayError: a broker does not answer: the groups that it coordinates would be missing.
    """
    return [group.name for group in listed_groups(client)]


def listed_groups(client: ClusterClient) -> list[ListedGroup]:
    """Return all groups of consumers that the user may see, by name.

    Raises:
        RelayError: a broker does not answer: the groups that it coordinates would be missing.
    """
    by_id = {}
    for broker in client.metadata([]).brokers:
        answer = client.call(broker, ListGroupsRequest(states_filter=[], types_filter=[]), 5)
        client.raise_for_error(answer, "ListGroups")
        for group in answer.groups:
            listed = ListedGroup(
                group.group_id, (group.group_type or "").lower(), group.group_state or ""
            )
            by_id[group.group_id] = listed
    return [by_id[name] for name in sorted(by_id)]


Read = dict[tuple[str, ...], tuple[bytes, list[GroupCommits]]]
"""Answers as they were read the last time, and what they say."""


def group_commits(
    client: ClusterClient, groups: Sequence[str], last: Read | None = None
) -> tuple[dict[str, Commits], dict[str, RelayError]]:
    """Return everything that groups have committed, in their order; nothing if there is no group.

    Args:
        last: keeps the answers: one that is the same the next time is not decoded again.

    Returns:
        group -> its commits; and group -> why they are not known.

    Raises:
        RelayError: a broker does not answer.
    """
    commits_of: dict[str, Commits] = {}
    before = dict(last or {})
    read: Read = {}
    coordinators, errors = client.coordinators(groups)
    for broker, coordinated in coordinators.items():
        for answer in _fetched(client, broker, coordinated, before, read):
            if answer.error_code:
                errors[answer.group] = _unread(client, answer)
            else:
                commits_of[answer.group] = answer.commits
    if last is not None:
        last.clear()
        last.update(read)
    return {group: commits_of[group] for group in groups if group in commits_of}, errors


def settled_commits(
    client: ClusterClient, groups: Sequence[str]
) -> tuple[dict[str, Commits], dict[str, RelayError]]:
    """Return what groups have committed, as `group_commits`, once it is settled.

    Raises:
        RelayError: a broker does not answer.
    """
    commits_of: dict[str, Commits] = {}

    def ask(some: Sequence[str]) -> dict[str, RelayError]:
        commits, errors = group_commits(client, some)
        commits_of.update(commits)
        return errors

    errors = settle(client, groups, ask)
    return {group: commits_of[group] for group in groups if group in commits_of}, errors


def settle(
    client: ClusterClient,
    groups: Sequence[str],
    ask: Callable[[Sequence[str]], Mapping[str, RelayError]],
) -> dict[str, RelayError]:
    """Ask about groups, and again about those that fail with what may pass.

    Coordinators are waited for as brokers are; transactions with commits, for 5 s.

    Args:
        ask: about some of the groups; returns why those fail that do.

    Returns:
        group -> why it still fails. It stops no other.

    Raises:
        RelayError: a broker does not answer.
    """
    left: dict[str, RelayError | None] = dict.fromkeys(groups)

    def again(passes: Callable[[RelayError], bool]) -> None:
        some = [group for group, error in left.items() if error is None or passes(error)]
        errors = ask(some) if some else {}
        for group in some:
            del left[group]
        left.update(errors)
        for error in filter(passes, errors.values()):
            raise error

    try:
        client.retry(partial(again, is_retryable))
    except RelayError as error:
        if error not in left.values():  # it is of all groups
            raise
    with suppress(RelayError):  # it stays that of its group
        client.retry(partial(again, _is_pending), patient=False, also=(PendingCommitError,))
    return {group: error for group, error in left.items() if error is not None}


def _is_pending(error: RelayError) -> bool:
    return isinstance(error, PendingCommitError)


def commit_offsets(
    client: ClusterClient, commits: Mapping[str, Commits]
) -> dict[str, dict[TopicPartition, RelayError]]:
    """Commit offsets for groups without members; a group with members refuses them.

    Returns:
        by group, why a topic-partition's is refused, of each that is.

    Raises:
        RelayError: a broker does not answer.
    """
    coordinators, unknown = client.coordinators(list(commits))
    errors = {
        group: dict.fromkeys(of, unknown[group]) if group in unknown else {}
        for group, of in commits.items()
    }
    for broker, coordinated in coordinators.items():
        for first in range(0, len(coordinated), _REQUESTS_IN_FLIGHT):
            some = coordinated[first : first + _REQUESTS_IN_FLIGHT]
            for group, tp, error in _committed(client, broker, {g: commits[g] for g in some}):
                errors[group][tp] = error
    return errors


def _fetched(
    client: ClusterClient, broker: int, groups: Sequence[str], last: Read, read: Read
) -> Iterator[GroupCommits]:
    connection = client.connection(broker)
    if not connection.supports(*group_requests.FETCH):
        yield from (_fetched_alone(client, broker, group) for group in groups)
        return
    some = [
        tuple(groups[first : first + _GROUPS_PER_REQUEST])
        for first in range(0, len(groups), _GROUPS_PER_REQUEST)
    ]
    for first in range(0, len(some), _REQUESTS_IN_FLIGHT):
        sent = [
            (asked, connection.send(*group_requests.FETCH, group_requests.encode_fetch(asked)))
            for asked in some[first : first + _REQUESTS_IN_FLIGHT]
        ]
        for asked, request in sent:
            answer = bytes(connection.receive(request))
            known = last.get(asked)
            if known is None or known[0] != answer:
                known = answer, list(group_requests.decode_fetch(answer))
            read[asked] = known
            yield from known[1]


def _fetched_alone(client: ClusterClient, broker: int, group: str) -> GroupCommits:
    """Ask a broker before Kafka 3.0."""
    answer = client.call(
        broker, OffsetFetchRequest(group_id=group, topics=None, require_stable=True), 7
    )
    return group_requests.group_commits(group, answer.topics, answer.error_code)


def _committed(
    client: ClusterClient, broker: int, commits: Mapping[str, Commits]
) -> Iterator[tuple[str, TopicPartition, RelayError]]:
    """Commit with requests that are all on their way at once; yield what is refused."""
    with ExitStack() as leased:
        connections = [
            leased.enter_context(client.lease(broker))
            for _ in range(0, len(commits), _COMMITS_PER_CONNECTION)
        ]
        sent = []
        for (group, of_group), connection in zip(commits.items(), cycle(connections), strict=False):
            body = group_requests.encode_commit(group, of_group)
            sent.append((group, connection, connection.send(*group_requests.COMMIT, body)))
        for group, connection, request in sent:
            answer = group_requests.decode_commit(connection.receive(request))
            for tp, code in list(answer):
                if code:
                    yield group, tp, _refusal(client, group, tp, code)


def _unread(client: ClusterClient, answer: GroupCommits) -> RelayError:
    if answer.error_code == _UNSTABLE_OFFSET_COMMIT:
        servers = ",".join(client.cluster.bootstrap_servers)
        return PendingCommitError(
            f"a transaction has committed offsets of the group {answer.group} on {client.cluster},"
            " and has not ended",
            remedy="end its producer, or wait until the transaction times out:"
            f" kafka-transactions.sh --bootstrap-server {servers} list",
        )
    of = f"topic {answer.topic}" if answer.topic else f"group {answer.group}"
    doing = f"OffsetFetch of group {answer.group}"
    return client.failure(answer.error_code, doing, permission=f"Describe on {of}")


def _refusal(client: ClusterClient, group: str, tp: TopicPartition, code: int) -> RelayError:
    if code in _MEMBERS:
        what = f"the group {group} has members on {client.cluster}"
        return HasMembersError(what, remedy="stop them first")
    doing = f"OffsetCommit of group {group}"
    permission = f"Read on group {group} and topic {tp.topic}"
    return client.failure(code, doing, permission=permission)
