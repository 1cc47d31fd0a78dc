"""The Spark session: on this machine, on a cluster, or through Spark Connect. On the driver."""

from __future__ import annotations

import logging
import math
import os
import re
import shlex
import subprocess
import sys
import threading
import warnings
from collections.abc import Iterator, Mapping
from contextlib import suppress
from typing import Any, NamedTuple
from weakref import WeakSet

from relay_pipelines.errors import ConfigError, RelayError, RetriableError
from relay_pipelines.spark import (
    answering,
    connect_channel,
    jvm,
    package_archive,
    task_python,
    without_pandas,
    yarn,
)
from relay_pipelines.spark.answering import ANSWER_SECONDS, within
from relay_pipelines.spark.defaults import DEFAULTS, LOCAL_DEFAULTS, TASK_ATTEMPTS

_UNKNOWN_SLOTS = 4
# these come before the user's own, in spark.driver.extraJavaOptions
_JAVA_OPTIONS = "spark.driver.defaultJavaOptions"
# a server that does not answer for ten seconds has lost its sessions; by default, the client would
# wait for ten minutes
_RETRIES = {"max_retries": 7, "max_backoff": 2_000}
_SERVER_STARTS_SECONDS = 120.0
_END_SECONDS = 20.0
_DIES_SECONDS = 0.5
_CALL = "An error occurred while calling"
_WAITING_TIME = "spark.scheduler.maxRegisteredResourcesWaitingTime"
_AT_START = (
    *("spark.driver.", "spark.executor.", "spark.executorEnv.", "spark.local.dir"),
    *("spark.kubernetes.", "spark.yarn."),
)
_REMEDY = "check spark.master or spark.remote, and spark.conf; --debug shows what Spark prints"
_LOGGERS_OF_ERRORS = ("DataFrameQueryContextLogger", "SQLQueryContextLogger")
_LOG = logging.getLogger(__name__)
# sessions whose Spark another process has started, such as the program that calls us
_borrowed: WeakSet[Any] = WeakSet()
_starting = threading.Lock()
_LOCAL = re.compile(r"local(\[([^,\]]+)\])?")


def connect(
    master: str | None = None,
    remote: str | None = None,
    conf: Mapping[str, str] | None = None,
    *,
    purpose: str = "",
    verbose: bool = False,
) -> Any:
    """Return a Spark session of our own; of the Spark of this process if it has one already.

    Args:
        master: any Spark master. A local one also retries failed tasks, unlike Spark's default.
        remote: a Spark Connect server, `sc://host:port`; then `master` is None.
        conf: the user's Spark configuration, which overrides our defaults.
        purpose: what it is for, such as the mirror; in the name that a cluster shows.
        verbose: whether to show the output of Spark.

    Raises:
        ConfigError: speculation is on, so that a second copy of a task would fence the first.
        RelayError: Spark cannot be reached or does not start.
    """
    # tasks must run this Python, not whichever comes first on an executor's PATH; PySpark reads no
    # setting
    if chosen := (conf or {}).get("spark.pyspark.python"):
        os.environ["PYSPARK_PYTHON"] = chosen
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    try:
        answering.check(remote or master or "")
        session = (
            within(_SERVER_STARTS_SECONDS, lambda: _remote(remote, conf or {}))
            if remote
            else _classic(master or "local[*]", conf or {}, purpose, verbose=verbose)
        )
    except RelayError:
        raise
    except Exception as error:  # py4j, gRPC and the JVM raise many kinds
        if remote:
            _leave_connect_mode()
        where = answering.without_parameters(remote or master or "local[*]")
        raise RelayError(
            f"Spark at {where} does not start a session: {first_line(error)}",
            remedy=connect_channel.remedy_of_proxy(remote or "") or _REMEDY,
        ) from error
    if not verbose and session not in _borrowed:
        _silence_errors()
    _refuse_speculation(session)
    return session


def _silence_errors() -> None:
    """Do not print an error that is raised, too: it is kilobytes of JSON with two stack traces."""
    from pyspark.logger import PySparkLogger

    for name in _LOGGERS_OF_ERRORS:
        PySparkLogger.getLogger(name).setLevel(logging.CRITICAL)


def end(session: Any) -> None:
    """Stop a session, and with it the Python workers of a local one.

    A worker would survive its cancelled task for seconds. The Spark of others goes on.
    """
    if session in _borrowed:
        return
    context = context_of(session)

    def stop() -> None:
        _end_accumulators(context)
        if context is None:
            session.client.set_retry_policies([])  # the server may have died
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", RuntimeWarning)  # so may the JVM, by the same signal
            session.stop()

    try:
        within(_END_SECONDS, stop)
    except TimeoutError:
        kill(session)
    except Exception:  # noqa: BLE001 - it has ended already
        _LOG.debug("Spark has ended already", exc_info=True)
    if context is None:
        _leave_connect_mode()
    else:
        _forget_dead_jvm()
        jvm.CLASSES.make_in_background()  # the next run starts with it


def kill(session: Any) -> None:
    """End a session that does not answer: our JVM, or our connection to a Spark Connect server.

    Whoever waits for its answer gets an error. The Spark of others goes on.
    """
    if session in _borrowed:
        return
    context = context_of(session)
    if context is None:
        with suppress(Exception):  # gRPC and PySpark raise many kinds
            session.client.close()
        _leave_connect_mode()
    else:
        _end_accumulators(context)
        kill_jvm()
        with suppress(Exception):  # there is no JVM any more, and now the session knows it
            session.stop()


def kill_jvm() -> None:
    """Kill the JVM that this process has started, if there is one."""
    from pyspark import SparkContext

    process = getattr(SparkContext._gateway, "proc", None)  # noqa: SLF001 - no other way to know
    if process is not None:
        process.kill()
        process.communicate()  # closes its pipe, too
        _forget_dead_jvm()


def _end_failed_jvm(error: Exception, *, is_local: bool) -> str:
    """End a JVM of ours in which no session starts; return why, if nobody but the JVM knows.

    Of a cluster, the error may say no more than that; the JVM has printed its cause.
    """
    from py4j.protocol import Py4JJavaError
    from pyspark import SparkContext

    # the text of an error of the JVM is still there
    said = first_line(error) if isinstance(error, Py4JJavaError) else ""
    gateway = SparkContext._gateway  # noqa: SLF001 - no other way to know
    jvm.end(gateway.proc)
    _forget_dead_jvm()
    if _is_of_connection(error):
        return jvm.why_ended(gateway.proc, gateway.stderr)
    if not said or is_local or gateway.stderr is None:
        return said
    printed = gateway.stderr.errors().split(" | ")
    return " | ".join([said, *(line for line in printed if line and said not in line)])


def why_jvm_ended(error: Exception) -> str:
    """Return why the JVM that this process has started has ended; empty if it runs, or is none.

    Args:
        error: of a call of it.
    """
    from pyspark import SparkContext

    gateway = SparkContext._gateway  # noqa: SLF001 - no other way to know
    if not hasattr(gateway, "stderr"):  # of the program's own Spark
        return ""
    with suppress(subprocess.TimeoutExpired):
        gateway.proc.wait(_DIES_SECONDS if _is_of_connection(error) else 0)
    return jvm.why_ended(gateway.proc, gateway.stderr) if _jvm_is_dead() else ""


def _is_of_connection(error: Exception) -> bool:
    """Whether an error of PySpark is none that the JVM has answered with."""
    from py4j.protocol import Py4JError, Py4JJavaError

    return isinstance(error, Py4JError | OSError) and not isinstance(error, Py4JJavaError)


def _leave_connect_mode() -> None:
    """Let the next session of this process, or of one that it starts, be a classic one.

    PySpark leaves it on, also after a session that did not start. It stays if the program has a
    session of its own.
    """
    connect = sys.modules.get("pyspark.sql.connect.session")
    if connect is None or connect.SparkSession._get_default_session() is None:  # noqa: SLF001
        os.environ.pop("SPARK_CONNECT_MODE_ENABLED", None)


def _end_accumulators(context: Any) -> None:
    """End PySpark's server of accumulators on a thread: it takes a second, and we use none."""
    server = getattr(context, "_accumulatorServer", None)
    if server is not None:
        context._accumulatorServer = None  # noqa: SLF001 - `stop` would wait for it
        threading.Thread(target=server.shutdown, daemon=True).start()


def _forget_dead_jvm() -> None:
    """Let the next session of this process start another JVM if this one was killed."""
    from pyspark import SparkContext
    from pyspark.sql import SparkSession

    if _jvm_is_dead():  # pyspark would go on to call it
        SparkContext._gateway = SparkContext._jvm = None  # noqa: SLF001
        SparkContext._active_spark_context = None  # noqa: SLF001
        SparkSession._instantiatedSession = None  # noqa: SLF001


def _jvm_is_dead() -> bool:
    from pyspark import SparkContext

    process = getattr(SparkContext._gateway, "proc", None)  # noqa: SLF001 - no other way to know
    return process is not None and process.poll() is not None


def is_alive(session: Any, remote: str | None) -> bool:
    """Whether the session still answers; it does not if its JVM or its server was killed.

    Args:
        remote: the address of the Spark Connect server, if the session is one of it.
    """
    if remote is None and _jvm_is_dead():
        return False
    try:
        answering.check(remote or "")  # the client of a server that is away retries for minutes
        slots(session)
    except RelayError as error:
        if isinstance(error.__cause__, TimeoutError):
            kill(session)  # it would not end either
        return False
    return True


class Slots(NamedTuple):
    """How many tasks of a session run at once.

    Args:
        now: on the executors that have registered; a cluster starts them as tasks wait.
        most: once all executors have; None if unknown.
    """

    now: int
    most: int | None


def slots(session: Any) -> Slots:
    """Return how many tasks run at once, now and with all executors that may come.

    Spark Connect does not say; there it is spark.default.parallelism or 4, and any number to come.

    Raises:
        RelayError: the session has ended.
    """
    context = context_of(session)
    try:
        return within(ANSWER_SECONDS, lambda: _slots(session, context))
    except Exception as error:  # py4j, gRPC and the JVM raise many kinds
        where = f" at {server}" if (server := server_of(session)) else ""
        raise RelayError(
            f"Spark{where} no longer answers: {why_jvm_ended(error) or first_line(error)}",
            remedy="check whether its JVM or server was killed, then run again",
        ) from error


def _slots(session: Any, context: Any) -> Slots:
    if context is None:
        now = session.conf.get("spark.default.parallelism", str(_UNKNOWN_SLOTS))
        return Slots(max(1, int(now)), None)
    now = max(1, int(context.defaultParallelism))
    spark = context._jsc.sc()  # noqa: SLF001 - PySpark has no other way to it
    return Slots(
        now, now if spark.isLocal() else _most_slots(dict(context.getConf().getAll()), now)
    )


def _most_slots(conf: Mapping[str, str], now: int) -> int | None:
    """Return how many slots a cluster may give this application; None if its settings do not say.

    Args:
        conf: the application's.
        now: the slots of the executors that have registered.
    """
    if "spark.cores.max" in conf:
        cores = int(conf["spark.cores.max"])
    else:
        grows = conf.get("spark.dynamicAllocation.enabled") == "true"
        key = "spark.dynamicAllocation.maxExecutors" if grows else "spark.executor.instances"
        if key not in conf or "spark.executor.cores" not in conf:
            return None
        cores = int(conf[key]) * int(conf["spark.executor.cores"])
    return max(now, cores // int(conf.get("spark.task.cpus", "1")))


class Executors(NamedTuple):
    """The executors of a session: how many there are, and have been; and how far its stages are.

    One and one on this machine, and with Spark Connect, which does not say how far its stages are.
    """

    alive: int = 1
    known: int = 1
    ended_tasks: tuple[tuple[int, int], ...] = ()
    """Of each active stage: its number, and how many of its tasks have ended."""


def executors(session: Any) -> Executors:
    """Ask Spark for the executors of a session; waits for the answer without a limit."""
    context = context_of(session)
    try:
        if context is None:
            session.conf.get("spark.default.parallelism", "")  # whether it answers
            return Executors()
        ended = tuple(_ended_tasks(context))
        spark = context._jsc.sc()  # noqa: SLF001 - PySpark has no other way to it
        if spark.isLocal():
            return Executors(ended_tasks=ended)
        store = spark.statusStore()
        alive, known = (store.executorList(only_alive).size() for only_alive in (True, False))
    except Exception:  # noqa: BLE001 - the session has ended, and the job says why
        return Executors()
    return Executors(max(0, alive - 1), max(0, known - 1), ended)  # the driver is one of them


def _ended_tasks(context: Any) -> Iterator[tuple[int, int]]:
    tracker = context.statusTracker()
    for stage in tracker.getActiveStageIds():
        if (stage_info := tracker.getStageInfo(stage)) is not None:
            yield stage, stage_info.numCompletedTasks + stage_info.numFailedTasks


def application(session: Any) -> str:
    """Return a cluster's name of a session, and the address of its page; empty elsewhere."""
    context = context_of(session)
    if context is None or context.master.startswith("local"):
        return ""
    with suppress(Exception):  # it has ended, and the job says why
        page = yarn.page(dict(context.getConf().getAll())) or context.uiWebUrl
        return f"{context.applicationId}{f' at {page}' if page else ''}"
    return ""


class ClusterSize(NamedTuple):
    """The executors that have registered; all zero if Spark does not say."""

    executors: int
    cores: int
    memory_bytes: int


def cluster_size(session: Any) -> ClusterSize:
    """Return what a session has now; Spark Connect does not say."""
    context = context_of(session)
    if context is None:
        return ClusterSize(0, 0, 0)
    listed = context._jsc.sc().statusStore().executorList(True)  # noqa: FBT003, SLF001
    executors = [listed.apply(number) for number in range(listed.size())]
    others = [executor for executor in executors if executor.id() != "driver"]
    return ClusterSize(
        len(others),
        sum(other.totalCores() for other in others),
        sum(other.maxMemory() for other in others),
    )


def first_executor_seconds(session: Any) -> float:
    """Return how long a classic session may wait for its first executor, by Spark's own setting."""
    try:
        conf = context_of(session)._jsc.sc().getConf()  # noqa: SLF001 - PySpark parses no durations
        return float(conf.getTimeAsSeconds(_WAITING_TIME, "30s"))
    except Exception:  # noqa: BLE001 - the session has ended, and the job says why
        return math.inf


def slots_beside_copy(session: Any) -> int:
    """Return how many slots other jobs may take, so that a copy always finds one.

    Spark Connect does not say how many there are, and other sessions share them.
    """
    return 1 if context_of(session) is None else max(1, slots(session).now - 1)


def free_slots(session: Any) -> bool:
    """End Spark, with its JVM, if tasks still run; call it while no process waits for one.

    A task of a cancelled job may never end: Java's regular expressions ignore interruptions.

    Returns:
        False if unknown: a Spark Connect server belongs to others, too.
    """
    context = context_of(session)
    if context is None or session in _borrowed:
        return False
    with suppress(Exception):  # it has died
        if not within(ANSWER_SECONDS, lambda: _running_tasks(context)):
            return True
    kill(session)
    return True


def _running_tasks(context: Any) -> int:
    tracker = context._jsc.sc().statusTracker()  # noqa: SLF001 - PySpark's own lacks it
    return sum(each.numRunningTasks() for each in tracker.getExecutorInfos())


def context_of(session: Any) -> Any:
    """Return the SparkContext; None with Spark Connect, which has none."""
    return getattr(session, "sparkContext", None)


def server_of(session: Any) -> str:
    """Return the address of the Spark Connect server; empty if this process has a SparkContext."""
    if context_of(session) is not None:
        return ""
    return f"sc://{session.client._builder.endpoint}"  # noqa: SLF001 - no other way


def unreachable(session: Any) -> RetriableError | None:
    """Return the error of a Spark Connect server that has died; None if it, or Spark, answers."""
    if not (server := server_of(session)):
        return None
    try:
        answering.check(server)
    except RelayError as error:
        return RetriableError(
            error.what, remedy="start it; what is committed stays, run again to copy the rest"
        )
    return None


def _classic(master: str, conf: Mapping[str, str], purpose: str, *, verbose: bool) -> Any:
    if "SPARK_REMOTE" in os.environ:
        raise ConfigError(
            f"PySpark takes SPARK_REMOTE from the environment instead of {master}",
            remedy="unset it, or set spark.remote",
        )
    from pyspark import SparkContext

    with _starting:  # two threads would start two JVMs
        if SparkContext._active_spark_context is None:  # noqa: SLF001 - no other way to know
            return _own(master, conf, purpose, verbose=verbose)
        return _of_this_process(conf)


def _of_this_process(conf: Mapping[str, str]) -> Any:
    """Return a session beside those of the program: it keeps its settings, views and Spark."""
    from pyspark.sql import SparkSession

    session = SparkSession.builder.getOrCreate().newSession()
    _borrowed.add(session)
    task_python.use_ours(session.sparkContext)
    _warn_of(
        [key for key, value in conf.items() if not _set(session, key, value)],
        "the Spark of this process ignores %s; set this where it is started",
    )
    package_archive.ship(session)
    return session


def _own(master: str, conf: Mapping[str, str], purpose: str, *, verbose: bool) -> Any:
    from pyspark import SparkContext
    from pyspark.sql import SparkSession

    local = _LOCAL.fullmatch(master)
    settings = {
        **DEFAULTS,
        **(LOCAL_DEFAULTS if local else {}),
        "spark.master": f"local[{local[2] or '*'},{TASK_ATTEMPTS}]" if local else master,
        **conf,
    }
    is_ours = _start_jvm(settings, verbose=verbose)
    # not among what the JVM starts with: the launcher is asked again when that changes
    named = {"spark.app.name": f"relay {purpose}".strip(), **settings}
    try:
        if master == yarn.MASTER:
            yarn.check_resource_manager(SparkContext._jvm)  # noqa: SLF001 - no other way to it
        session = SparkSession.builder.config(map=named).getOrCreate()
    except Exception as error:
        if is_ours and (why := _end_failed_jvm(error, is_local=local is not None)):
            raise RuntimeError(why) from error
        raise
    if not verbose:
        # these print tracebacks when the JVM is killed, and a run reports that in one line
        session.sparkContext._accumulatorServer.handle_error = _ignore_error  # noqa: SLF001
        logging.getLogger("py4j").setLevel(logging.CRITICAL)
        logging.getLogger().addFilter(_is_not_of_py4j)
    package_archive.ship(session)
    return session


def _ignore_error(*_: object) -> None:
    """Handle an error of PySpark's server of accumulators."""


def _is_not_of_py4j(record: logging.LogRecord) -> bool:
    """Leave out what py4j logs without a name."""
    return "py4j" not in record.pathname


def _start_jvm(settings: dict[str, str], *, verbose: bool) -> bool:
    """Start the driver's JVM; return False if this process has one. Workers inherit its stderr."""
    from pyspark import SparkContext

    if SparkContext._gateway is not None:  # noqa: SLF001 - there is no other way to know
        return False
    if archive := jvm.CLASSES.jvm_options(verbose=verbose):
        settings[_JAVA_OPTIONS] = f"{shlex.join(archive)} {settings.get(_JAVA_OPTIONS, '')}"
    without_pandas.apply()
    gateway = jvm.start(settings, verbose=verbose)
    SparkContext._ensure_initialized(gateway=gateway)  # noqa: SLF001 - for `getOrCreate`
    return True


def _remote(remote: str, conf: Mapping[str, str]) -> Any:
    # PySpark's own builder takes no options of gRPC, and sets this
    os.environ["SPARK_CONNECT_MODE_ENABLED"] = "1"
    from pyspark.sql.connect.client.retries import DefaultPolicy
    from pyspark.sql.connect.session import SparkSession

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the user cannot change what the client warns about
        # not one that the program has, which may even be one of another server
        session = SparkSession.builder.channelBuilder(connect_channel.builder(remote)).create()
        session.client.set_retry_policies([DefaultPolicy(**_RETRIES)])
        ignored = [key for key, value in conf.items() if not _set(session, key, value)]
        package_archive.ship(session)
    # our own error follows
    warnings.filterwarnings("ignore", re.escape("[RETRIES_EXCEEDED]"))
    _warn_of(
        ignored,
        "the running Spark Connect server ignores %s; set this where the server is started, such as"
        " `start-connect-server.sh --conf`",
    )
    return session


def _warn_of(ignored: list[str], text: str) -> None:
    if ignored:
        _LOG.warning("spark.conf: " + text, ", ".join(ignored))


def _set(session: Any, key: str, value: str) -> bool:
    """Set it, and return False if only the start of the server can and it has another value."""
    try:
        if key.startswith(_AT_START):  # Spark accepts some of them without effect
            return bool(session.conf.get(key, None) == value)
        session.conf.set(key, value)
    except Exception as error:
        if "CANNOT_MODIFY_" not in str(error):
            raise
        return False
    return True


def _refuse_speculation(session: Any) -> None:
    context = context_of(session)
    # a SparkContext knows it without the start of SQL
    conf = session.conf if context is None else context.getConf()
    if str(conf.get("spark.speculation", "false")).lower() == "true":
        raise ConfigError(
            "spark.speculation is on: two tasks would copy the same range and fence each other",
            remedy="set spark.speculation to false for relay",
        )


def first_line(error: BaseException) -> str:
    """Return the first line of an error's message; its class if it has none.

    Of an error of the JVM that is the second, because the first one names the call; of one of gRPC
    what the server says. PySpark wraps that one, and hides it if the server gave no status with it.
    """
    wrapped = error.__cause__ or error.__context__
    for details in (getattr(each, "details", None) for each in (error, wrapped)):
        if callable(details) and (text := details()):
            return first_line(Exception(text))
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    if len(lines) > 1 and lines[0].startswith(_CALL):
        return lines[1].removeprefix(": ")
    return lines[0] if lines else type(error).__name__
