"""The names of options, Spark's and ours, and what is wrong with others."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from relay_pipelines.errors import ConfigError
from relay_pipelines.settings.validation_errors import nearest

TOPICS = ("topic", "subscribePattern", "assign")
STARTS = ("start", "startingTimestamp")
ENDS = ("end", "endingTimestamp")
CHUNKS = ("window", "chunks")
MIN_PARTITIONS = "minPartitions"
_PLACE = ("what", "config", "mirror", *TOPICS, "side", "upstream")
_READING = (MIN_PARTITIONS, "includeHeaders")
BATCH_OPTIONS = (*_PLACE, *STARTS, *ENDS, *CHUNKS, *_READING)
STREAM_OPTIONS = (*_PLACE, *STARTS, "max_offsets", *_READING)
LEDGER_OPTIONS = ("what", "config", "mirror", "topic", "window")
_SPARK_NAMES = {
    "subscribe": "topic",
    "startingOffsets": "start",
    "endingOffsets": "end",
    "maxOffsetsPerTrigger": "max_offsets",
}
"""What spark-sql-kafka calls options that have another name here."""
_SPARK_NAME_OF = {ours: theirs for theirs, ours in _SPARK_NAMES.items()}
_ALL = dict.fromkeys((*BATCH_OPTIONS, *STREAM_OPTIONS, *_SPARK_NAMES))
_CANONICAL = {name.lower(): name for name in _ALL}
_KINDS = ("records", "ledger")


def our_names(options: Mapping[str, str]) -> dict[str, str]:
    """Return the options by our names; Spark has converted them to lower case.

    Raises:
        ConfigError: one is given by both names.
    """
    by_our_name: dict[str, str] = {}
    for key, value in options.items():
        name = _CANONICAL.get(key.lower(), key)
        ours = _SPARK_NAMES.get(name, name)
        if ours in by_our_name:
            raise ConfigError(
                f"options {ours} and {_SPARK_NAME_OF[ours]} mean the same",
                remedy="give one of them",
            )
        by_our_name[ours] = value
    return by_our_name


def refuse_unknown(options: Iterable[str], known: Sequence[str], subject: str) -> None:
    """Refuse options that there are not, or not in this kind of reading.

    Raises:
        ConfigError: it names the nearest one.
    """
    for key in options:
        if key in known:
            continue
        named = [*known, *(_SPARK_NAME_OF[name] for name in known if name in _SPARK_NAME_OF)]
        if key in _ALL:
            remedy = f"leave it out; valid options: {', '.join(known)}"
        elif key.startswith("kafka."):
            remedy = "leave it out: relay.yaml says how to connect"
        else:
            remedy = nearest(key, named, "options")
        raise ConfigError(f"{subject} has no option {key!r}", remedy=remedy)


def only_one(options: Mapping[str, str], *names: str) -> str:
    """Return which one of several options is given; empty for none.

    Raises:
        ConfigError: several are given, of which one would have no effect.
    """
    given = [name for name in names if name in options]
    if len(given) > 1:
        raise ConfigError(
            f"options {' and '.join(given[:2])} exclude each other", remedy="give one of them"
        )
    return given[0] if given else ""


def kind_of(options: Mapping[str, str]) -> str:
    """Return what is read: `records` or `ledger`."""
    kind = options.get("what", "records")
    if kind not in _KINDS:
        raise ConfigError(
            f"option what: {kind!r} is neither records nor ledger",
            remedy=nearest(kind, _KINDS, "values"),
        )
    return kind


def is_true(options: Mapping[str, str], option: str) -> bool:
    """Return the value of an option that is `true` or `false`, the default."""
    text = options.get(option, "false")
    if text.lower() not in {"true", "false"}:
        raise ConfigError(
            f"option {option}: {text!r} is neither true nor false",
            remedy="leave it out for false",
        )
    return text.lower() == "true"


def count_of(options: Mapping[str, str], option: str) -> int | None:
    """Return the value of an option that is a number above 0; None if it is not given."""
    text = options.get(option)
    if text is None:
        return None
    if not (text.isascii() and text.isdecimal() and 0 < int(text) < 1 << 63):
        raise ConfigError(
            f"option {option}: {text!r} is not a number above 0",
            remedy="write a number such as 1000, or leave it out",
        )
    return int(text)
