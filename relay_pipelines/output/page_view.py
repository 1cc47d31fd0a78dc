"""The page of a mirror as text, as one line, and as Markdown."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from relay_pipelines.errors import RelayError
from relay_pipelines.model import TopicPartition
from relay_pipelines.output import formatting
from relay_pipelines.output.formatting import count, format_time, plural, seconds
from relay_pipelines.page.held import Held, State, commands
from relay_pipelines.page.page import Page
from relay_pipelines.snapshot.lag import PartitionLag

_SHOWN = 3
_WIDTH = 11  # of the words before each line


def text(page: Page, relay: str = "relay") -> Iterator[str]:
    """Yield the lines of `relay status`: first the state, then what is held back.

    Args:
        relay: how the reader calls the command, with the options that every command needs.
    """
    yield f"{page.mirror}: {headline(page)}"
    yield from _lines(("error", page.error))
    for held in page.held:
        yield from _lines(("held back", where(held)))
        advice = [(f"  {word}", said) for word, said in _advice(held, relay)]
        yield from _lines(*advice)
    yield from _lines(*_facts(page), *(("note", str(finding)) for finding in page.findings))
    if page.command:
        yield from _lines(("next", _command(page.command, relay)), ("read", page.runbook))


def markdown(page: Page) -> str:
    """Return the page for Dagster, with the time: it may be minutes old."""
    first, *lines = text(page)
    items = map(_item, lines)
    return "\n".join([f"**{first}**", "", *items, "", f"_{format_time(page.taken_ms)}_"])


def _item(line: str) -> str:
    """Return a line of the text as an item of a list; what belongs to another one is inside it."""
    word, said = line[: _WIDTH + 2], line[_WIDTH + 2 :]
    shown = f"`{said}`" if word.strip() == "next" else said
    return f"{'  ' if word.startswith('    ') else ''}- **{word.strip()}** {shown}"


def headline(page: Page) -> str:
    """Say in a few words how the mirror is: copying; 2 topics held back."""
    state = str(page.state)
    if page.since_ms is not None:
        state += f" since {format_time(page.since_ms)}"
    topics = len({topic for held in page.held for topic in held.topics})
    if not topics or page.state is State.HELD_BACK:
        return state
    return f"{plural(topics, 'topic')} held back; the others: {state}"


def held_line(mirror: str, errors: Mapping[TopicPartition, RelayError]) -> str:
    """Say what guards hold back, why, and the command to begin with; empty if they hold nothing."""
    worst_first = commands(mirror, errors)
    said = formatting.held_back(errors[tp] for tp in worst_first)
    return f"{said}; next: {next(iter(worst_first.values()))}" if said else ""


def where(held: Held) -> str:
    """Name what is held back, and how much waits there."""
    first, more = held.topic_partitions[0], len(held.topic_partitions) - 1
    places = str(first) if not more else _topics(held.topics, first)
    count_ = f"{plural(more + 1, 'topic-partition')}, " if more else ""
    waits = "unknown how much waits" if held.lag is None else waiting(held.lag)
    return f"{places} ({count_}{waits})"


def waiting(lag: PartitionLag) -> str:
    """Describe a lag: 1,234 records, the oldest 5.0 s old."""
    if not lag.records:
        return "nothing waits"
    age = "of unknown age" if lag.seconds is None else f"the oldest {seconds(lag.seconds)} old"
    return f"{plural(lag.records, 'record')}, {age}"


def copier(page: Page) -> str:
    """Say who has committed last, and what is read now."""
    behind = f", itself {count(page.upstream_behind)} behind" if page.upstream_behind else ""
    if page.copier is None:
        return f"no run yet; upstream {page.upstream} would be read{behind}"
    age = seconds(max(0, page.taken_ms - page.copier.committed_at_ms) / 1000)
    upstream = page.copier.upstream
    now = f"; {page.upstream} is read now" if page.upstream != upstream else ""
    return f"run {page.copier.run_id} from upstream {upstream}{now}{behind}; last commit {age} ago"


def _topics(topics: list[str], first: TopicPartition) -> str:
    shown, hidden = topics[:_SHOWN], len(topics) - _SHOWN
    more = f" and {plural(hidden, 'topic')} more" if hidden > 0 else ""
    return (", ".join(shown) if len(topics) > 1 else first.topic) + more


def _advice(held: Held, relay: str) -> list[tuple[str, str]]:
    """Why it is held back, the command to begin with, what to do in the end, and what to read."""
    return [
        ("why", held.what),
        ("next", _command(held.command, relay)),
        ("then", held.remedy),
        ("read", held.runbook),
    ]


def _facts(page: Page) -> list[tuple[str, str]]:
    if page.error:
        return []
    waits = waiting(page.lag) if page.lag.records else "nothing"
    opened = f"{waiting(page.opened)}: a transaction at the source has not ended"
    return [
        ("waiting", waits),
        ("open", opened if page.opened.records else ""),
        ("copied by", copier(page)),
    ]


def _command(command: str, relay: str) -> str:
    name, _, rest = command.partition(" ")
    return f"{relay} {rest}" if name == "relay" else command


def _lines(*said: tuple[str, str]) -> Iterator[str]:
    yield from (f"  {word:<{_WIDTH}}{line}" for word, line in said if line)
