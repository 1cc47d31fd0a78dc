"""The JVM of a driver, started without Spark's scripts. Runs on the driver.

Spark's own launcher says by which command the JVM starts. Its last answers are in the cache folder,
so that another start with the same settings needs neither bash nor a JVM for the launcher.

relay_pipelines/spark-classes/<installation>.command    the last answers, and what was asked
"""

from __future__ import annotations

import hashlib
import json
import os
import pwd
import resource
import shlex
import signal
import struct
import subprocess
import tempfile
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from signal import Signals
from typing import Any

from relay_pipelines import java
from relay_pipelines.class_archive import ClassArchive
from relay_pipelines.java import Java
from relay_pipelines.spark import settings_file, yarn
from relay_pipelines.spark.defaults import SMALL_JVM

_SUBMIT = "org.apache.spark.deploy.SparkSubmit"
_USAGE_ERROR = "--usage-error"
_ADD_MODULES = "--add-modules="
_POLL_SECONDS = 0.01
_LAUNCHER_SECONDS = 60
_END_SECONDS = 5.0
_LAST_WORDS_SECONDS = 1.0
_LAST_BYTES = 32 << 10
_FEW_FILES = 1024
# that of a session, that of one without an archive of classes, and those of other settings
_ANSWERS = 8
_ASKED_OF_LAUNCHER = ("SPARK_", "HADOOP_CONF_DIR", "YARN_CONF_DIR", "LD_LIBRARY_PATH")
_USER_OPTIONS = "SPARK_SUBMIT_OPTS"
_ADDRESS, _SECRET = "PYSPARK_GATEWAY_PORT", "PYSPARK_GATEWAY_SECRET"


def start(settings: Mapping[str, str], *, verbose: bool) -> Any:
    """Start a JVM and return PySpark's gateway to it, whose `proc` is its process.

    The gateway's `stderr` is what it prints there; None if it is shown. The JVM ends when its stdin
    does, and so with this process. Ctrl-C does not reach it. What the user has in
    PYSPARK_SUBMIT_ARGS, spark-env.sh and spark-defaults.conf stays in force.

    Args:
        settings: Spark's configuration; the JVM reads it from a file, which is then deleted.
        verbose: whether to show what it prints on stderr.

    Raises:
        ConfigError: it is to run on YARN, and nothing says where that is.
        RelayError: there is no Java.
        RuntimeError: the JVM does not start.
    """
    environment = _environment()
    if settings.get("spark.master") == yarn.MASTER:
        yarn.require_configuration(environment)
    words = shlex.split(os.environ.get("PYSPARK_SUBMIT_ARGS", "pyspark-shell"))
    with tempfile.TemporaryDirectory(prefix="relay-spark-") as folder:  # mode 700
        address = Path(folder, "address")
        words = settings_file.write_beside(Path(folder, "spark.conf"), settings, words)
        line = [*command(words, environment), *words]
        stderr = None if verbose else LastWords()
        try:
            process = subprocess.Popen(  # noqa: S603 - Spark itself
                line,
                env={**environment, "_PYSPARK_DRIVER_CONN_INFO_PATH": str(address)},
                stdin=subprocess.PIPE,
                stderr=stderr.sink if stderr else None,
                preexec_fn=_ignore_interrupts,  # noqa: PLW1509 - as PySpark does
            )
        finally:
            if stderr:
                os.close(stderr.sink)  # the JVM and its workers have it
        try:
            return _connected(address, process, stderr)
        except BaseException:
            end(process)
            raise


class LastWords:
    """The end of what a JVM and its workers print to a pipe, read on a thread; they never wait.

    A file would grow for as long as a session lives.
    """

    def __init__(self) -> None:
        source, self.sink = os.pipe()
        self._last = b""
        self._thread = threading.Thread(
            target=self._read, args=(source,), name="spark-stderr", daemon=True
        )
        self._thread.start()

    def errors(self) -> str:
        """Return the errors among them, in one line; what has ended may still be read."""
        self._thread.join(_LAST_WORDS_SECONDS)
        return java.errors_in(self._last.decode(errors="replace"))

    def _read(self, source: int) -> None:
        with open(source, "rb", buffering=0) as pipe:
            while some := pipe.read(_LAST_BYTES):
                self._last = (self._last + some)[-_LAST_BYTES:]


def end(process: subprocess.Popen[bytes]) -> None:
    """End a JVM, which removes its folders if it answers."""
    with suppress(OSError, subprocess.TimeoutExpired):
        process.communicate(timeout=_END_SECONDS)  # it ends with its stdin
    process.kill()
    process.communicate()  # closes its pipe, too


def why_ended(process: subprocess.Popen[bytes], stderr: LastWords | None) -> str:
    """Return why a JVM that has ended has done so, as it says itself."""
    code = process.returncode
    how = f"was killed by {Signals(-code).name}" if code < 0 else f"ended with exit code {code}"
    said = f": {errors}" if stderr and (errors := stderr.errors()) else ""
    files, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    few = f"; ulimit -n is {files}, and Spark needs more" if files < _FEW_FILES else ""
    return f"its JVM {how}{said}{few}"


def jars() -> Iterator[Path]:
    """Return the jars of Spark."""
    return Path(home(), "jars").iterdir()


CLASSES = ClassArchive("spark", jars, "relay_pipelines.spark.class_archive")
"""The archive of Spark's classes for a driver's JVM."""


def command(words: Sequence[str], environment: Mapping[str, str]) -> list[str]:
    """Return the command that starts the JVM, up to the main class.

    Args:
        words: the arguments of the main class, with a properties file.
        environment: that of the JVM.
    """
    runtime = java.find(environment)
    # the launcher sees no variable but these, and reads no file but those of `_question`
    variables = {
        name: value for name, value in environment.items() if name.startswith(_ASKED_OF_LAUNCHER)
    }
    question = _question(words, variables)
    kept = CLASSES.folder / f"{CLASSES.installation(runtime)}.command"
    answers: dict[str, list[str]] = {}
    with suppress(OSError, TypeError, ValueError):
        answers = dict(json.loads(kept.read_text()))
        if question in answers:
            return answers[question]
    launched = _launcher(runtime, words, variables)
    newest = dict([(question, launched), *answers.items()][:_ANSWERS])
    with suppress(OSError):
        kept.parent.mkdir(parents=True, exist_ok=True)
        _write_whole(kept, json.dumps(newest))
    return launched


def _launcher(runtime: Java, words: Sequence[str], variables: Mapping[str, str]) -> list[str]:
    """Ask Spark's launcher for the command; leave out modules that this Java does not have."""
    (jar,) = _launcher_jars()
    asked = [runtime.executable, *SMALL_JVM.split(), "-cp", str(jar)]
    done = subprocess.run(  # noqa: S603 - Spark itself
        [*asked, "org.apache.spark.launcher.Main", _SUBMIT, *words],
        env=variables,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        timeout=_LAUNCHER_SECONDS,
        check=False,
    )
    answer = [os.fsdecode(word) for word in done.stdout.partition(b"\0\n")[2].split(b"\0")]
    if done.returncode or _USAGE_ERROR in answer:
        raise RuntimeError(done.stderr.decode(errors="replace").removeprefix("Error: "))
    return [
        word
        for word in answer[: answer.index(_SUBMIT) + 1]
        if not word.startswith(_ADD_MODULES)
        or not runtime.modules
        or runtime.modules.issuperset(word.removeprefix(_ADD_MODULES).split(","))
    ]


def _question(words: Sequence[str], variables: Mapping[str, str]) -> str:
    """Return a digest of all that the launcher's answer depends on, besides the installation."""
    conf = Path(variables["SPARK_CONF_DIR"])
    option, properties, *others = words
    files = [Path(properties), conf / "spark-defaults.conf", conf / "java-opts"]
    contents = [file.read_text() if file.exists() else None for file in files]
    seen = json.dumps([option, others, contents, sorted(variables.items())])
    return hashlib.sha256(seen.encode(errors="surrogatepass")).hexdigest()


def _environment() -> dict[str, str]:
    """Return the variables of the JVM, as Spark's scripts set them."""
    environment = {**os.environ, "SPARK_HOME": home()}
    environment.setdefault("SPARK_CONF_DIR", str(Path(home(), "conf")))
    own = Path(environment["SPARK_CONF_DIR"], "spark-env.sh")
    if "SPARK_ENV_LOADED" not in environment and own.exists():
        said = subprocess.run(  # noqa: S603 - the user's own script
            ["bash", "-c", 'set -a; . "$0" >&2; env -0', str(own)],  # noqa: S607
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            check=True,
        ).stdout
        pairs = (os.fsdecode(pair).partition("=") for pair in said.split(b"\0") if pair)
        environment = {name: value for name, _, value in pairs}
    if environment.get("LC_ALL") in {"C", "POSIX"}:  # a JVM could not name files beyond ASCII
        environment["LC_ALL"] = "C.UTF-8"  # as Python does for itself
    return (
        environment
        | _user_variables(environment)
        | {
            "PYTHONHASHSEED": "0",
            "SPARK_CONNECT_MODE": "0",
            "SPARK_ENV_LOADED": "1",
            "SPARK_SCALA_VERSION": scala_version(),
        }
    )


def _user_variables(environment: Mapping[str, str]) -> dict[str, str]:
    """Return what Spark needs where the user id has no name, as in OpenShift's containers.

    Java then takes "?" as the user's name and folder: Ivy refuses such a folder, and Hadoop the
    user. Where it has one, nothing is needed.
    """
    number = os.getuid()
    try:
        pwd.getpwuid(number)
    except KeyError:
        name = environment.get("SPARK_USER") or environment.get("HADOOP_USER_NAME") or str(number)
        user_home = environment.get("HOME") or tempfile.gettempdir()
        own = shlex.join([f"-Duser.name={name}", f"-Duser.home={user_home}"])
        # Java takes the last one
        options = f"{own} {environment.get(_USER_OPTIONS, '')}".strip()
        return {"SPARK_USER": name, _USER_OPTIONS: options}
    return {}


def class_path() -> str:
    """Return the class path of Spark's own launcher, without which its archive is of no use."""
    jars = Path(home(), "jars")
    first = sorted(map(str, jars.glob("slf4j-api-*.jar")))
    return ":".join([f"{home()}/conf", *first, f"{jars}/*"])


def home() -> str:
    """Return the folder of Spark."""
    from pyspark.find_spark_home import _find_spark_home

    return str(_find_spark_home())


def scala_version() -> str:
    """Return the version of Scala that Spark was built with, such as 2.13."""
    (jar,) = _launcher_jars()
    return jar.name.split("_")[1].split("-")[0]


def _launcher_jars() -> list[Path]:
    return list(Path(home(), "jars").glob("spark-launcher_*.jar"))


def _ignore_interrupts() -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)


def _connected(address: Path, process: subprocess.Popen[bytes], stderr: LastWords | None) -> Any:
    """Wait until the JVM has written its address, and connect PySpark to it."""
    from pyspark.java_gateway import launch_gateway

    while not address.exists():
        if process.poll() is not None:
            raise RuntimeError(why_ended(process, stderr))
        time.sleep(_POLL_SECONDS)
    # two numbers of four bytes: the port, and the length of the secret
    content = address.read_bytes()
    port, length = struct.unpack_from("!ii", content)
    os.environ |= {_ADDRESS: str(port), _SECRET: content[8 : 8 + length].decode()}
    try:
        gateway = launch_gateway()
    finally:
        del os.environ[_ADDRESS], os.environ[_SECRET]
    gateway.proc, gateway.stderr = process, stderr
    return gateway


def _write_whole(path: Path, text: str) -> None:
    """Write a file that only this user may read, whole or not at all."""
    descriptor, name = tempfile.mkstemp(dir=path.parent, prefix=path.name)
    try:
        with os.fdopen(descriptor, "w") as file:
            file.write(text)
        Path(name).replace(path)
    except OSError:
        Path(name).unlink()
        raise
