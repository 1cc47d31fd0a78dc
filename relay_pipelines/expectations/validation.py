"""Runs the expectations of a topic over a window, on the driver.

First, all expectations of a side run in one suite that only says which of them fail: Great
Expectations makes their aggregates one Spark job. Those that fail run again, for counts and a
sample.
"""

from __future__ import annotations

import os
import re
import uuid
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any

from relay_pipelines.errors import ConfigError, RelayError
from relay_pipelines.expectations import suite
from relay_pipelines.expectations.topic_window import TopicWindow
from relay_pipelines.model import Cluster, Side
from relay_pipelines.output.formatting import seconds
from relay_pipelines.plan.topic_selection import Target, renamed_target
from relay_pipelines.protocol.admin import is_compacted
from relay_pipelines.settings.expectations import HELPER_COLUMNS, Expectation, SampleSettings
from relay_pipelines.sides import Sides
from relay_pipelines.spark.answering import within

DEADLINE_SECONDS = 300.0
"""How long the expectations of a topic and window may take in a run that copies."""
_STATISTICS = "GX_ANALYTICS_ENABLED"
_SHOWN_CHARACTERS = 80
_LINE_CHARACTERS = 300
_OURS = re.compile(r"relay_pipelines\.errors\.\w+: (.+)")
_OF_JAVA = re.compile(r"Caused by: [\w.$]*?(\w+(?:Exception|Error): .+)")
_ERROR_CLASS = re.compile(r"\[[A-Z_.]+\]|\w+(?:Exception|Error)\b")
INDEX = ("partition", "offset")
COUNT = -1
"""The number of the expectation that the records seen are as many as the ledger has."""


@dataclass(frozen=True, slots=True)
class Result:
    """What one expectation found in a window.

    Args:
        what: one line.
        failing: how many do not meet it; None if it is not about single records, or has no result.
        sample: some of them: partition and offset, and unless hidden what they have in the columns
            of the expectation.
        late: whether it is not known because the deadline has passed.
    """

    expectation: Expectation
    passed: bool
    what: str
    failing: int | None = None
    sample: tuple[Mapping[str, str | int], ...] = ()
    late: bool = False

    @property
    def columns(self) -> list[str]:
        """Those of the sample."""
        return list(dict.fromkeys(name for row in self.sample for name in row))


def validate(
    session: Callable[[], Any],
    config: Path,
    sides: Sides,
    window: TopicWindow,
    *,
    deadline_seconds: float | None = None,
    beside_copy: bool = False,
) -> list[Result]:
    """Run the expectations of a topic, and return their results in the order of the settings.

    An expectation that cannot run fails; nothing raises.

    Args:
        session: returns the Spark session; called only if there is something to read.
        config: path of relay.yaml.
        deadline_seconds: when those that have no result yet are given up. Their tasks may go on:
            see `free_slots`.
        beside_copy: whether to leave one of Spark's slots to a copy.
    """
    expectations = sides.mirror.expectations_of(window.topic)
    results: dict[str, Result] = {}
    if expectations:
        session = started(session)  # its start is not for threads

    def run() -> None:
        for side in Side:
            of_side = [expectation for expectation in expectations if expectation.side is side]
            if of_side:
                some = SideRun(session, config, sides, window, side, beside_copy).results(of_side)
                results.update({each.expectation.name: each for each in some})

    ended: Mapping[str, Result] = results
    if deadline_seconds is None:
        run()
    else:
        ended = _until(deadline_seconds, session, run, results)
    return [
        ended.get(expectation.name) or _late(expectation, deadline_seconds or 0.0, window.name)
        for expectation in expectations
    ]


def started(session: Callable[[], Any]) -> Callable[[], Any]:
    """Call `session`; return what returns its result, or raises its error."""
    try:
        spark = session()
    except RelayError as error:
        failed = error  # Python deletes `error`

        def fail() -> Any:
            raise failed

        return fail
    return lambda: spark


def _until(
    deadline_seconds: float,
    session: Callable[[], Any],
    run: Callable[[], None],
    results: Mapping[str, Result],
) -> Mapping[str, Result]:
    """Call `run` on a thread, and return the results that it has at the deadline."""
    # Arrow and Spark are slow to import, and Dagster loads this module
    from relay_pipelines.spark.job import cancel_group, name_group

    group = f"relay-expectations-{uuid.uuid4()}"

    def named() -> None:
        with suppress(Exception):  # without a session, each expectation says so
            name_group(session(), group)
        run()

    try:
        within(deadline_seconds, named)
    except TimeoutError:
        ended = dict(results)  # those that follow only say that they are cancelled
        with suppress(Exception):
            cancel_group(session(), group)
        return ended
    return results


@cache
def great_expectations() -> Any:
    """Return the package, which sends no statistics.

    Raises:
        ConfigError: it is not installed.
    """
    before = os.environ.get(_STATISTICS)
    os.environ[_STATISTICS] = "false"  # it is read at the import
    try:
        with quiet():
            import great_expectations as gx
            import great_expectations.expectations
    except ImportError as error:
        raise ConfigError(
            "Great Expectations is not installed, and relay.yaml has expectations",
            remedy="install the extra: pip install 'relay-pipelines[expectations]'",
        ) from error
    finally:
        if before is None:
            del os.environ[_STATISTICS]
        else:
            os.environ[_STATISTICS] = before
    return gx


def new_context() -> Any:
    """Return a context that writes no files, sends no statistics and shows no progress."""
    context = great_expectations().get_context(mode="ephemeral")
    context.enable_analytics(enable=False)
    context.variables.progress_bars = {"globally": False}
    return context


def batch_definition(context: Any) -> Any:
    """Return the definition of a batch: a whole DataFrame, which Great Expectations must not keep.

    It would persist every one of them, and release none.
    """
    source = context.data_sources.add_spark("relay", persist=False)
    return source.add_dataframe_asset("window").add_batch_definition_whole_dataframe("whole")


@dataclass(frozen=True, slots=True)
class SideRun:
    """The expectations of one side."""

    session: Callable[[], Any]
    config: Path
    sides: Sides
    window: TopicWindow
    side: Side
    beside_copy: bool = False

    @property
    def _sample(self) -> SampleSettings:
        return self.sides.mirror.expectation_sample_of(self.window.topic)

    def results(self, expectations: Sequence[Expectation]) -> list[Result]:
        """Run them in one suite, and those that fail in another one; nothing raises."""
        try:
            return self._results(expectations)
        except RelayError as error:
            why = str(error)
        except Exception as error:  # noqa: BLE001 - of py4j, gRPC or the JVM, among others
            why = _shown_error(_words(str(error)), self._sample)
        return [_unknown(expectation, why) for expectation in expectations]

    def suite_of(self, expectations: Sequence[Expectation]) -> Suite:
        """Make the expectations, and that the records seen are as many as the ledger has."""
        records = self.window.expected(self.side)
        return Suite.of(expectations, self.window.copied_at_ms, records)

    def _results(self, expectations: Sequence[Expectation]) -> list[Result]:
        sample = self._sample
        with quiet():
            built = self.suite_of(expectations)
            data = self.data(expectations, built)
            by_number = built.run(data, [COUNT, *range(len(expectations))], "BOOLEAN_ONLY")
            problem, note = self._missing(built, data, by_number.pop(COUNT, None))
            failed = [
                number
                for number, each in by_number.items()
                if not each.success and not _error(each)
            ]
            if failed and not problem:
                shown = _shown(sample, data.columns)
                more = built.run(data, failed, details(sample, shown))
                # that it fails is known, even if the details are not
                by_number |= {number: each for number, each in more.items() if not _error(each)}
        if problem:
            return [_unknown(expectation, problem) for expectation in expectations]
        results = [
            self._result(expectation, by_number.get(number), built.problems.get(number, ""))
            for number, expectation in enumerate(expectations)
        ]
        return [replace(each, what=f"{each.what}{note}") for each in results]

    def _result(self, expectation: Expectation, ran: Any, problem: str) -> Result:
        """Return a result of ours.

        Args:
            ran: the result of Great Expectations; None if it could not run.
            problem: why it could not.
        """
        sample = self._sample
        if ran is None:
            return _unknown(expectation, problem or "it has no result")
        if error := _error(ran):
            return _unknown(expectation, _shown_error(error, sample))
        if ran.success:
            return Result(expectation, passed=True, what="met")
        details = ran.result
        failing = details.get("unexpected_count")
        # what it looks for must not be in the result
        values = sample.values and expectation.kind != "no_pii"
        if failing is None:
            observed = details.get("observed_value") if values else None
            what = "not met" if observed is None else f"not met; observed: {_cut(observed)}"
            return _failed(expectation, what)
        total = details.get("element_count") or self.window.records
        what = f"{failing:,} of {total:,} records do not meet it"
        rows = details.get("partial_unexpected_index_list") or ()
        shown = tuple(_row(row, values=values) for row in rows[: sample.rows])
        return _failed(expectation, what, failing=failing, sample=shown)

    def _missing(self, built: Suite, data: Any, ran: Any) -> tuple[str, str]:
        """Compare the records that were read with the ledger's.

        Args:
            ran: whether they are as many; None if there was nothing to run.

        Returns:
            why the expectations did not see the window, and what they say beside their results;
            both empty if they saw it.
        """
        if ran is None or ran.success:
            return "", ""
        # alone, because what fails beside it may have taken it along
        ran = built.run(data, [COUNT], "SUMMARY")[COUNT]
        if error := _error(ran):
            return _shown_error(error, self._sample), ""
        expected, seen = self.window.expected(self.side), int(ran.result["observed_value"])
        if seen == expected:
            return "", ""
        what = f"the {self.side} holds {seen:,} of the {expected:,} records of the chunks"
        if seen < expected and self._is_compacted():
            return "", f"; {what}, as it is compacted"
        return f"{what} that the ledger has for {self.window.name}", ""

    def _is_compacted(self) -> bool:
        if self.side is Side.SOURCE:
            topic, asked = self.window.topic, self.sides.source(self.upstream, "expectations")
        else:
            topic, asked = self._target.topic, self.sides.destination("expectations")
        with asked as client:
            return is_compacted(client, topic)

    @property
    def _target(self) -> Target:
        return renamed_target(self.window.topic, self.sides.mirror.topics.rename)

    @property
    def upstream(self) -> Cluster:
        """The upstream that was read last, whose offsets the window has; else the first one."""
        upstreams = self.sides.mirror.upstreams
        return next(
            (upstream for upstream in upstreams if upstream.name == self.window.upstream),
            upstreams[0],
        )

    def data(self, expectations: Sequence[Expectation], built: Suite) -> Any:
        """Return the DataFrame of the side, with the columns that these expectations need.

        Raises:
            ConfigError: records of other topics may lie between those of the topic.
        """
        # Arrow and Spark are slow to import, and Dagster loads this module
        from pyspark.logger import PySparkLogger

        from relay_pipelines.spark.session import slots_beside_copy

        if self.side is Side.DESTINATION and self._target.partition is not None:
            raise ConfigError(
                f"other topics may share {self._target}, to which {self.window.topic} is copied",
                remedy="write side: source beside the expectation",
            )
        # it logs the values on which an expression fails
        PySparkLogger.getLogger("DataFrameQueryContextLogger").disabled = True
        fields = suite.schema(self.sides.mirror.expectations_of(self.window.topic))
        columns = suite.columns(built.arguments, fields)
        if suite.schema(expectations):
            columns.add("fits_schema")
        session = self.session()
        data = suite.frame(
            *(session, self.config, self.sides.name, self.window, self.side, columns, fields),
            self.upstream.name if self.side is Side.SOURCE else "",
        )
        return data.coalesce(slots_beside_copy(session)) if self.beside_copy else data


@dataclass(frozen=True, slots=True)
class Suite:
    """Expectations of Great Expectations by their number, and why others could not be made.

    One more, number `COUNT`, is met if as many records are seen as there should be: Great
    Expectations counts in the same Spark job.
    """

    arguments: Sequence[Mapping[str, Any]]
    expectations: Mapping[int, Any]
    problems: Mapping[int, str]

    @staticmethod
    def of(expectations: Sequence[Expectation], copied_at_ms: int, records: int) -> Suite:
        """Make them from settings."""
        great_expectations()
        given = [suite.arguments(expectation, copied_at_ms) for expectation in expectations]
        made, problems = {}, {}
        for number, (kind, arguments) in enumerate(given):
            try:
                made[number] = suite.build(kind, arguments, number)
            except Exception as error:  # noqa: BLE001 - of pydantic, or of the expectation itself
                problems[number] = f"{kind}: {_refusal(error)}"
        if made:
            kind = "expect_table_row_count_to_equal"
            made[COUNT] = suite.build(kind, {"value": records}, COUNT)
        return Suite([arguments for _, arguments in given], made, problems)

    def chosen(self, numbers: Iterable[int]) -> Any:
        """Return a suite of Great Expectations with some of them."""
        some = [self.expectations[number] for number in numbers if number in self.expectations]
        return great_expectations().ExpectationSuite(name="relay", expectations=some)

    def run(self, data: Any, numbers: Iterable[int], result_format: Any) -> dict[int, Any]:
        """Validate some of them, and return the results by number."""
        chosen = self.chosen(numbers)
        if not chosen.expectations:
            return {}
        batch = batch_definition(new_context()).get_batch({"dataframe": data})
        validated = batch.validate(chosen, result_format=result_format)
        return {result.expectation_config.meta["relay"]: result for result in validated.results}


@contextmanager
def quiet() -> Iterator[None]:
    """Keep the warnings of Great Expectations from people, who can change nothing about them."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield


def details(sample: SampleSettings, index: Sequence[str]) -> dict[str, Any]:
    """Return the result format that counts what fails, and shows some of it.

    Args:
        index: the columns to show.
    """
    return {
        "result_format": "SUMMARY",
        "partial_unexpected_count": sample.rows,
        "unexpected_index_column_names": list(index),
    }


def _shown(sample: SampleSettings, columns: Sequence[str]) -> list[str]:
    more = [name for name in ("key", "value") if sample.values and name in columns]
    return [*INDEX, *more]


def _failed(expectation: Expectation, what: str, **more: Any) -> Result:
    return Result(expectation, passed=False, what=_one_line(what), **more)


def _unknown(expectation: Expectation, why: str) -> Result:
    return _failed(expectation, f"not known: {why}")


def _late(expectation: Expectation, after_seconds: float, window: str) -> Result:
    what = (
        f"not known: no result within {seconds(after_seconds)}; simplify the topic's regular"
        f" expressions, or run `relay expectations run --window {window}`, which has no limit"
    )
    return Result(expectation, passed=False, what=what, late=True)


def _shown_error(error: str, sample: SampleSettings) -> str:
    """Return the line of an error, which may quote records, without its text if they are hidden."""
    if sample.values:
        return error
    kinds = " ".join(dict.fromkeys(_ERROR_CLASS.findall(error))) or "an error"
    return f"{kinds}; its text may quote records, which the settings hide"


def _row(row: Mapping[str, Any], *, values: bool) -> dict[str, str | int]:
    """Return the row of a record that fails, its values cut."""
    place: dict[str, str | int] = {name: int(row[name]) for name in INDEX}
    hidden = {*INDEX, *HELPER_COLUMNS} if values else row.keys()
    return place | {key: _cut(value) for key, value in row.items() if key not in hidden}


def _cut(value: Any) -> str:
    text = "null" if value is None else str(value)
    return text if len(text) <= _SHOWN_CHARACTERS else f"{text[:_SHOWN_CHARACTERS]}..."


def _error(ran: Any) -> str:
    """Return why an expectation could not run, in one line; empty if it ran."""
    info = ran.exception_info or {}
    # one per metric, or one alone
    for each in [info, *(value for value in info.values() if isinstance(value, dict))]:
        if each.get("raised_exception"):
            return _words(str(each.get("exception_message")), str(each.get("exception_traceback")))
    return ""


def _refusal(error: Exception) -> str:
    """Return why an expectation cannot be made: its arguments, as pydantic refuses them."""
    refused: list[Any] = getattr(error, "errors", list)()
    wrong = (f"{'.'.join(map(str, each['loc']))}: {each['msg']}" for each in refused)
    return _one_line("; ".join(wrong) or str(error))


def _words(message: str, trace: str = "") -> str:
    """Return the line of an error that says what is wrong."""
    for pattern in (_OURS, _OF_JAVA):
        if match := pattern.search(f"{message}\n{trace}"):
            return _one_line(match[1])
    lines = [line.strip() for line in message.splitlines() if line.strip()]
    return _one_line(" ".join(lines[:3])).removeprefix("Error: ")


def _one_line(text: str) -> str:
    line = " ".join(text.split())
    return line if len(line) <= _LINE_CHARACTERS else f"{line[:_LINE_CHARACTERS]}..."
