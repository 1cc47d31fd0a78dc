"""Writes docs/reference from the code: configuration, commands, metrics, errors, record formats.

Run `.venv/bin/python -m scripts.reference` after a change; a test compares the pages with the code.
"""

from __future__ import annotations

import dataclasses
import inspect
import json
import re
from collections import Counter
from collections.abc import Callable, Iterator
from enum import Enum
from itertools import groupby
from pathlib import Path
from types import NoneType, UnionType
from typing import Any, Union, get_args, get_origin, get_type_hints

import typer.core
import typer.main
from pydantic import BaseModel, SecretStr
from pydantic.fields import FieldInfo

from relay_pipelines import errors, formats, model
from relay_pipelines.cli.app import app
from relay_pipelines.formats import FIRST, FORGOTTEN, Format
from relay_pipelines.ledger import checkpoint, ledger_topic, offset_runs
from relay_pipelines.metrics import METRICS, PREFIX
from relay_pipelines.move.record import MoveRecord
from relay_pipelines.settings import Settings

FOLDER = Path(__file__).parents[1] / "docs" / "reference"
_GENERATED = "<!-- written by scripts/reference.py; change the code, not this page -->\n"
# by the validator that makes the type, see relay_pipelines/settings/config_types.py
_KINDS = {
    "_size_bytes": "size",
    "_duration_ms": "duration",
    "_duration_or_zero_ms": "duration, or 0",
    "_give_up_after_ms": "duration, or -1",
    "_timestamp_ms": "date or time",
    "_whole_number": "whole number",
    "_rename": "template, map or list of rules",
    "_host_port": "host:port",
    "_endpoint": "http or https address",
    "_existing_file": "file that exists",
    "_in_existing_folder": "file in a folder that exists",
    "_split_servers": "list of host:port, or a string with commas",
    "_pattern": "regular expression",
    "_spark_value": "text",
    "_cron": "cron schedule",
    "_share": "share such as `1%`",
}
_PLAIN = {str: "text", bool: "true or false", int: "whole number", float: "number", Any: "anything"}
_UNITS = (("d", 86_400_000), ("h", 3_600_000), ("m", 60_000), ("s", 1_000), ("ms", 1))
_SHARED = 2  # an option of so many commands is described once
_BYTES = (("GiB", 1 << 30), ("MiB", 1 << 20), ("KiB", 1 << 10))


def pages() -> dict[str, str]:
    """Return the text of every page by file name."""
    return {
        name: f"{_GENERATED}{text.strip()}\n"
        for name, text in (
            ("configuration.md", _configuration()),
            ("commands.md", _commands()),
            ("metrics.md", _metrics()),
            ("errors.md", _errors()),
            ("formats.md", _formats()),
        )
    }


def _row(*cells: str) -> str:
    return "| " + " | ".join(cell.replace("\n", " ").replace("|", "\\|") for cell in cells) + " |"


def _table(head: tuple[str, ...], rows: Iterator[tuple[str, ...]]) -> str:
    lines = [_row(*head), "|" + "---|" * len(head), *(_row(*row) for row in rows)]
    return "\n".join(lines)


def _one_line(text: str | None) -> str:
    return re.sub(r"\s+", " ", text or "").strip()


def _configuration() -> str:
    text = """# Every configuration key
The keys of `relay.yaml`, from the models that validate it. A size is `64KiB`, `10MB` or a number of
bytes; a duration is `500ms`, `3s`, `5m`, `2h` or `1d`. Every value may come from [the
environment](../configuration.md#from-the-environment).
[relay.example.yaml](../../relay.example.yaml) shows all keys in place, and
[configuration](../configuration.md) explains how to use them.
"""
    places: dict[type[BaseModel], list[str]] = {}
    _walk(Settings, "", places)
    known: dict[tuple[str, ...], str] = {}
    for section, paths in places.items():
        title = f"`{paths[0]}`" if paths[0] else "The file"
        also = f" Also: {', '.join(f'`{path}`' for path in paths[1:])}." if paths[1:] else ""
        text += f"\n## {title}\n{_one_line(section.__doc__)}{also}\n\n"
        rows = [
            (
                f"`{field.alias or name}`",
                _kind(field.annotation, field.metadata),
                _default(field),
                _one_line(field.description),
            )
            for name, field in section.model_fields.items()
        ]
        for place in dict.fromkeys(known[row] for row in rows if row in known):
            keys = ", ".join(row[0] for row in rows if known.get(row) == place)
            text += f"{keys}: as in {place}.\n\n"
        maps = [row for row in rows if row not in known and row[1:3] == ("map", "")]
        if maps:
            text += f"Sections of its own, below: {', '.join(row[0] for row in maps)}.\n\n"
        new = [row for row in rows if row not in known and row not in maps]
        known |= dict.fromkeys([*maps, *new], title)
        shown = ((key, ", ".join(filter(None, both)), meaning) for key, *both, meaning in new)
        text += _table(("key", "value, default", "meaning"), shown) + "\n" if new else ""
    return text


def _walk(section: type[BaseModel], path: str, places: dict[type[BaseModel], list[str]]) -> None:
    places.setdefault(section, []).append(path)
    for name, field in section.model_fields.items():
        key = field.alias or name
        for below, suffix in _sections(field.annotation):
            _walk(below, f"{path}.{key}".lstrip(".") + suffix, places)


def _sections(annotation: Any, suffix: str = "") -> Iterator[tuple[type[BaseModel], str]]:
    """Yield the models inside an annotation, with `[]` for lists and `.<name>` for mappings."""
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        yield annotation, suffix
        return
    origin, arguments = get_origin(annotation), get_args(annotation)
    if origin is tuple:
        yield from _sections(arguments[0], f"{suffix}[]")
    elif origin is dict:
        yield from _sections(arguments[1], f"{suffix}.<name>")
    elif origin in {UnionType, Union}:
        for argument in arguments:
            yield from _sections(argument, suffix)
    elif arguments:
        yield from _sections(arguments[0], suffix)


def _kind(annotation: Any, metadata: list[Any] | tuple[Any, ...] = ()) -> str:  # noqa: PLR0911 - one line per kind
    named = [_KINDS.get(getattr(getattr(one, "func", None), "__name__", "")) for one in metadata]
    if found := next((name for name in named if name), ""):
        return found
    origin, arguments = get_origin(annotation), get_args(annotation)
    if hasattr(annotation, "__metadata__"):
        return _kind(arguments[0], annotation.__metadata__)
    if origin in {UnionType, Union}:
        return _kind(next(one for one in arguments if one is not NoneType), metadata)
    if origin is tuple:
        return f"list of {_kind(arguments[0])}"
    if origin is dict:
        return f"map to {_kind(arguments[1])}"
    if origin is not None and str(origin).endswith("Literal"):
        return " \\| ".join(f"`{one}`" for one in arguments).replace("\\|", "or")
    if isinstance(annotation, type) and issubclass(annotation, Enum):
        return " or ".join(f"`{one.value}`" for one in annotation)
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return "map"
    return "secret text" if annotation is SecretStr else _PLAIN.get(annotation, "text")


def _default(field: FieldInfo) -> str:
    if field.is_required():
        return "required"
    value, kind = field.default, _kind(field.annotation, field.metadata)
    if value is None or isinstance(value, BaseModel) or value in ({}, (), ""):
        return ""
    if kind.startswith("duration") and value > 0:
        return f"`{_scaled(value, _UNITS)}`"
    if kind == "size":
        return f"`{_scaled(value, _BYTES)}`"
    if kind.startswith("share"):
        return f"`{value:.0%}`"
    if isinstance(value, Enum):
        value = value.value
    return f"`{json.dumps(value)}`" if not isinstance(value, str) else f"`{value}`"


def _scaled(value: int, units: tuple[tuple[str, int], ...]) -> str:
    unit, factor = next((one for one in units if value % one[1] == 0), ("", 1))
    return f"{value // factor}{unit}"


def _commands() -> str:
    text = """# Every command and option
What `--help` says; [commands](../cli.md) has an example of each.
"""
    group = typer.main.get_command(app)
    assert isinstance(group, typer.core.TyperGroup)
    commands = {"": group, **group.commands}
    rows = {name: [_parameter(vars(one)) for one in of.params] for name, of in commands.items()}
    counted = Counter(row for of_command in rows.values() for row in of_command)
    shared = {row for row, times in counted.items() if times >= _SHARED}
    head = ("option or argument", "meaning")
    text += f"\n## Options of several commands\n\n{_table(head, iter(sorted(shared)))}\n"
    for name, command in commands.items():
        text += f"\n## `{f'relay {name}'.strip()}`\n{_one_line(command.help)}\n"
        if also := [row[0].partition(",")[0] for row in rows[name] if row in shared]:
            text += f"\nAlso {', '.join(also)}.\n"
        if own := [row for row in rows[name] if row not in shared]:
            text += f"\n{_table(head, iter(own))}\n"
    return text


def _parameter(of: dict[str, Any]) -> tuple[str, str]:
    """How an option or an argument is written, and its help with values and default."""
    is_option = of["opts"][0].startswith("-")
    spellings = [f"`{one if is_option else one.upper()}`" for one in of["opts"]]
    if is_option and of["metavar"]:
        spellings[0] = f"`{of['opts'][0]} {of['metavar']}`"
    said = [of["help"] or ""]
    kind, default = of["type_descriptor"].annotation, of["default"]
    is_enum = isinstance(kind, type) and issubclass(kind, Enum)
    named = [one.value for one in kind] if is_enum else get_args(kind)
    if values := [f"`{one}`" for one in named if isinstance(one, str)]:
        said.append(f"{', '.join(values)}.")
    if default not in {None, ""} and not isinstance(default, bool | Callable):
        said.append(f"Default: `{default.value if isinstance(default, Enum) else default}`.")
    return ", ".join(spellings), " ".join(said).strip()


def _metrics() -> str:
    head = """# Every metric
[Metrics](../metrics.md) explains how to read and collect them.

"""
    rows = (
        (
            f"`{PREFIX}{metric.name}`",
            metric.kind,
            ", ".join(f"`{label}`" for label in metric.labels),
            metric.by.value,
            metric.meaning,
        )
        for metric in METRICS
    )
    return f"{head}{_table(('name', 'kind', 'labels', 'from', 'meaning'), rows)}\n\n{_IN_DAGSTER}"


_IN_DAGSTER = """\
## In Dagster
Each window of a topic is a materialisation with this metadata. Dagster plots the numbers on the
asset's page, under *Plots*. A number that is unknown is left out.

| key | meaning |
|---|---|
| `summary` | The numbers of the window in words. |
| `records` | Records of the window at the destination, by the ledger. |
| `copied by this run (records)` | Records that this run committed; 0 if they were copied before. |
| `copied by this run (bytes)` | The size of their batches. |
| `copying (seconds)` | Time in which tasks read, wrote and committed them. |
| `copying (records per second)` | The speed of one task. |
| `latency (seconds)` | From the timestamp of the oldest record until its copy was readable. |
| `lag before (records)` | Source offsets that were not copied when the run looked last. |
| `lag after (records)` | Those that were not copied when it ended. |
| `lag after (seconds)` | The age of the oldest of them. |
| `source end (offsets)` | The end offset at the source, summed over all topic-partitions. |
| `source rate (records per second)` | How fast that sum grew since the run looked before. |
| `first record` | The timestamp of the window's oldest record. |
| `last record` | The timestamp of its newest record. |
| `upstream` | The upstreams that were read. |
| `code` | Which content of the files of filters and transforms decided. |
| `topic-partitions` | A table: records by the ledger (*committed*) and at the \
destination (*counted*), the result, source offsets. |
| `topic-partitions, details` | A table: upstream, re-encoded records, offsets without a copy \
by reason, destination offsets. |
| `Spark` | The application on a Spark cluster, and the address of its page. |
| `plan` | The asset with the frozen offsets of the window. |
| `run` | The run that copied it. |
"""


def _errors() -> str:
    head = """# Every error
Outcomes, metrics and logs name an error by its class. [Troubleshooting](../troubleshooting.md) says
what to do about each. *Retried* means that the same process tries again, until `give_up_after`.
*Needs you* means that another run fails in the same way until you change something.

"""
    rows = (
        (
            f"[`{error.__name__}`](../troubleshooting.md#{error.__name__.lower()})",
            str(error.exit_code),
            error.side.value or "either",
            "retried" * error.retryable or "needs you" * error.needs_operator,
            _one_line((error.__doc__ or "").partition("\n")[0]),
        )
        for error in all_errors()
    )
    return head + _table(("error", "exit code", "side", "then", "what happened"), rows)


def all_errors(
    parent: type[errors.RelayError] = errors.RelayError,
) -> list[type[errors.RelayError]]:
    """Return the errors of the error tree, parents first, without the base."""
    found = []
    for child in parent.__subclasses__():
        if child.__module__ == errors.__name__:
            found += [child, *all_errors(child)]
    return found


def _formats() -> str:
    at = model.TopicPartition("orders", 0)
    copy = model.TopicPartition("eu.orders", 0)
    entry = model.LedgerEntry(
        mirror="orders",
        source=model.OffsetRange(at, 0, 1200),
        destination=model.OffsetRange(copy, 0, 1198),
        records=1198,
        size_bytes=310_500,
        batches=12,
        reencoded=0,
        skipped={"control": 2},
        digest="1c291ca3",
        producer_id=4000,
        upstream="kafka-a",
        window="",
        run_id="20260131T120000Z-3f",
        committed_at_ms=1_769_860_800_000,
        codecs={"zstd": 12},
        first_timestamp_ms=1_769_860_799_000,
        max_timestamp_ms=1_769_860_799_950,
        source_runs=offset_runs.encoded(((0, 1198),)),
    )
    begun = model.Checkpoint.initial("orders", at, copy, 0)
    done = dataclasses.replace(
        begun,
        next_offset=1200,
        upstream="kafka-a",
        copies=model.DestinationPosition(copy, 1198, "IXTVh9BBQdKMLtZ0oMZsVg"),
        committed_at_ms=entry.committed_at_ms,
    )
    linked, (key, value, _) = ledger_topic.chained(done, entry)
    mark, state, _ = checkpoint.to_record(linked)
    kinds = "\n\n".join(
        f"### {title}\n{_dataclass(value)}" for title, value in _STATE_RECORDS.items()
    )
    values = "\n\n".join(f"### `{each.__name__}`\n{_dataclass(each)}" for each in _parts())
    runs = _one_line((offset_runs.__doc__ or "").partition("\n\n")[2].partition(" ADR")[0])
    way_back = checkpoint.way_back_name("<mirror>", 0).removesuffix("0")
    newer = FIRST + 3
    try:
        formats.LEDGER.of_fields(model.LedgerEntry, {"version": newer})
    except errors.UnsupportedError as error:
        refused = re.sub(r"this is \S+;", "this is 1.0.0;", str(error))
    return f"""# Records of ledger and checkpoints
Both are topics at the destination with {checkpoint.PARTITIONS} partitions. Key and value are text
in UTF-8, the timestamp is the time of the commit, and there are no headers. The value is JSON:
ASCII without spaces, `version` first and then every field in the order of the tables below, keys
that are numbers as text.

## Versions
A `version` is the number of the release that made the form: {FIRST} is 1.0, 103 would be 1.3. A
relay reads every version from 1.0 to its own, each with all its fields; a writer adds nothing
without a new version ([why](../adr/0049-a-version-is-the-release-that-made-it.md)).

{_versions()}

*Refused* is one line, exit code 1, and nothing is written:
`{refused}`.
If a record of a mirror is newer, that mirror is refused, and what may have its copies; other
mirrors go on. *Forgotten* counts as nothing: it is said or tried again.

Names have no version, and stay the same in 1.x: keys, transactional ids (`relay.<mirror>...`), the
mark beside an offset of a group (`kafka-relay <mirror> <offset> <time in ms>`), assets, partitions,
jobs, sensors and tags of Dagster, columns of DataFrames, metrics, keys of `--json`.

## Keys
The key of a ledger entry and of a checkpoint is `<mirror>/<source topic>/<partition>`. Its
partition is the CRC-32 of the key modulo {checkpoint.PARTITIONS}, also if the topic has more. The
`<mirror>` of a replay is `<mirror>{checkpoint.REPLAY}<id>`, of what is mirrored back
`{way_back}<number of the move's record>`.

## `{ledger_topic.TOPIC}`
{_dataclass(model.LedgerEntry)}

The *hash* of an entry is the SHA-256 of its record's value, byte by byte, in hex. The word before
the first one is `{model.CHAIN_START.hash}`. In a decision's entry (an accepted loss, a reset, a
restore), `records` is 0 and `gap` says what was decided.

The record of a first chunk, with its key `{key.decode()}`:

```json
{json.dumps(json.loads(value), indent=2, separators=(",", ":"))}
```

### `source_runs` and `destination_runs`
{runs} A varint
has seven bits in each byte, the lowest first, and a byte that another one follows has its highest
bit set. No text is longer than {offset_runs.MOST_BYTES >> 10} KiB.

## `{checkpoint.TOPIC}`
The checkpoints:

{_dataclass(model.Checkpoint)}

The checkpoint that is committed with that chunk, with the key `{mark.decode()}`:

```json
{json.dumps(json.loads(state), indent=2, separators=(",", ":"))}
```

The topic has more kinds of records. What is about a source topic-partition stands in the partition
of its checkpoint, any other record in that of its own key. A record under any other key of a mirror
says nothing, unless it is of a newer version, which stops the mirror.

{kinds}

## Values of fields
{values}

## Statements
[`relay attest`](../cli.md#relay-attest) writes JSON lines: a header with `kind`, `version`,
`mirror`, `made_at`, `destination_cluster_id`, `source_cluster_ids`, the record of the `move`, and
how many `entries` and `topic_partitions` follow; then the value of each entry as the ledger holds
it, those of a topic-partition in order; then for each topic-partition its `head` and what its
entries add up to.
"""


_PLACES = {
    "CHECKPOINTS": f"records of `{checkpoint.TOPIC}`",
    "LEDGER": f"records of `{ledger_topic.TOPIC}`",
    "STATEMENT": "statements of `relay attest`",
    "WINDOW": "plans of windows, in the metadata of the plan asset",
    "STREAM": "offsets in the checkpoint folder of a Spark query",
    "PLANNER_CURSOR": "the cursor of a planner in Dagster",
    "HEALTH_CURSOR": "the cursor of a health sensor",
    "OPEN_WINDOW": "the window of a session that is killed, in Dagster's daemon cursors",
    "FAILED_WINDOWS": "which windows failed for a topic, there",
    "CATALOG": "`var/relay/topics.json`",
}


def _versions() -> str:
    found = {name: each for name, each in vars(formats).items() if isinstance(each, Format)}
    rows = (
        (_PLACES[name], str(each.version), "forgotten" if each in FORGOTTEN else "refused")
        for name, each in found.items()
    )
    return _table(("what", "version", "a newer one is"), rows)


_STATE_RECORDS: dict[str, type] = {
    "`<mirror>/<topic>/start`, and `<mirror>/start` when the mirror has begun": (
        checkpoint.StartRecord
    ),
    "`<mirror>/<topic>/<partition>/owner`": checkpoint.OwnerRecord,
    "`<mirror>/<topic>/<partition>/doubt`": checkpoint.DoubtRecord,
    "`<mirror>/<destination topic>/created`": checkpoint.CreatedRecord,
    "`<mirror>/ended`": checkpoint.RunEndsRecord,
    "`<mirror>//<upstream>`": checkpoint.QuarantineRecord,
    "`@move/<mirror>`": MoveRecord,
}


def _dataclass(value: type) -> str:
    """Return what a dataclass is, and a table of its fields."""
    said = inspect.cleandoc(value.__doc__ or "").partition("Args:")[0].partition("\n\nA process")[0]
    return f"{_one_line(said)}\n{_described(value)}"


def _parts() -> list[type]:
    """Return the dataclasses of which fields of records are."""
    found: dict[type, None] = {}

    def add(kind: Any) -> None:
        if dataclasses.is_dataclass(kind) and isinstance(kind, type) and kind not in found:
            found[kind] = None
            add_fields(kind)
        for argument in get_args(kind):
            add(argument)

    def add_fields(kind: type) -> None:
        for each in get_type_hints(kind).values():
            add(each)

    for kind in (model.LedgerEntry, model.Checkpoint, *_STATE_RECORDS.values()):
        add_fields(kind)
    return list(found)


def _described(value: type) -> str:
    said = {
        name.strip(): _one_line(text)
        for names, text in re.findall(
            r"^    (\w+(?:, \w+)*): (.*?)(?=^    \w+(?:, \w+)*: |\Z)",
            inspect.cleandoc(value.__doc__ or "").partition("Args:\n")[2],
            re.MULTILINE | re.DOTALL,
        )
        for name in names.split(",")
    }
    together = groupby(dataclasses.fields(value), key=lambda one: said.get(one.name, ""))
    rows = (
        (", ".join(f"`{one.name}: {one.type}`" for one in fields), meaning)
        for meaning, fields in together
    )
    return "\n" + _table(("field", "meaning"), rows)


def main() -> None:
    """Write the pages."""
    FOLDER.mkdir(exist_ok=True)
    for name, text in pages().items():
        (FOLDER / name).write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
