"""A Spark Connect server on this machine, which keeps Spark running between runs. On the driver.

Spark's own script starts it, in a process group of its own. The state folder of the user holds

relay_pipelines/spark-<port>/server.pid    the group, the server's name, and a lock that its
                                           processes hold
relay_pipelines/spark-<port>/server.log    what Spark prints
relay_pipelines/spark-<port>/server.conf   its settings, until it has read them
"""

from __future__ import annotations

import fcntl
import os
import signal
import subprocess
import sys
import threading
import time
import uuid
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from relay_pipelines import java
from relay_pipelines.errors import ConfigError, RelayError
from relay_pipelines.spark import answering, connect_channel, jvm, settings_file, unknown_user
from relay_pipelines.spark.defaults import DEFAULTS, TASK_ATTEMPTS
from relay_pipelines.spark.session import first_line

_START_SECONDS = 120.0
_STOP_SECONDS = 30.0
_ANSWER_SECONDS = 10.0
_POLL_SECONDS = 0.2
_NAME = "spark.relay.server"
"""The setting by which a server says that it is the one that was started."""


@dataclass(frozen=True, slots=True)
class ConnectServer:
    """The server at a loopback address.

    Args:
        remote: `spark.remote` of relay.yaml.
    """

    remote: str

    @property
    def address(self) -> str:
        """Its address, without parameters, which may be secret."""
        return answering.without_parameters(self.remote)

    def start(self, conf: Mapping[str, str]) -> bool:
        """Start it and wait until it answers; return False if it runs already.

        Args:
            conf: Spark configuration that overrides ours.

        Raises:
            ConfigError: the address is not one of this machine alone.
            RelayError: it does not start.
        """
        host, port = self._host_and_port()
        name = uuid.uuid4().hex
        settings = {
            **DEFAULTS,
            "spark.master": f"local[*,{TASK_ATTEMPTS}]",
            "spark.driver.host": "127.0.0.1",
            "spark.driver.bindAddress": "127.0.0.1",
            "spark.connect.grpc.binding.address": host,
            "spark.connect.grpc.binding.port": str(port),
            **conf,
            _NAME: name,
        }
        self._folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        with self._pid_file.open("a") as pid_file:
            try:
                fcntl.flock(pid_file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                started = False
            else:
                started = True
                self._refuse_other_server()
                pid_file.truncate(0)
                pid_file.write(f"{self._spawn(settings, pid_file.fileno())} {name}")
        try:
            self._wait_until_it_answers()
        except BaseException:
            if started:
                self.stop()  # it would keep the port
            raise
        finally:
            if started:
                self._conf.unlink(missing_ok=True)  # a server that answers has read it
        return started

    def stop(self) -> bool:
        """Stop it and wait until its processes have ended; return False if it does not run."""
        if not self.runs():
            return False
        group = self.pid
        for number, seconds in ((signal.SIGTERM, _STOP_SECONDS), (signal.SIGKILL, _STOP_SECONDS)):
            os.killpg(group, number)
            if _until(lambda: not self.runs(), seconds):
                return True
        raise RelayError(
            f"the Spark server at {self.address} does not end: process group {group}",
            remedy=f"see {self._log}",
        )

    def runs(self) -> bool:
        """Whether a process of the server that `start` started is alive."""
        try:
            with self._pid_file.open() as pid_file:
                fcntl.flock(pid_file, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except FileNotFoundError:
            return False
        except BlockingIOError:
            return True
        return False

    @property
    def pid(self) -> int:
        """The process group of the server; valid while it runs."""
        return int(self._pid_file.read_text().split()[0])

    @property
    def started(self) -> float:
        """When it was started, in seconds since the Unix epoch; valid while it runs."""
        return self._pid_file.stat().st_mtime

    def version(self) -> str:
        """Ask it for its version.

        Raises:
            RelayError: it does not answer.
        """
        from pyspark.sql.connect.proto import base_pb2

        asked = base_pb2.AnalyzePlanRequest(
            **self._asker, spark_version=base_pb2.AnalyzePlanRequest.SparkVersion()
        )
        return str(self._ask("AnalyzePlan", asked).spark_version.version)

    def is_ours(self) -> bool:
        """Whether the server that answers is the one that `start` started."""
        if not self.runs():
            return False
        from pyspark.sql.connect.proto import base_pb2

        wanted = base_pb2.ConfigRequest.GetOption(keys=[_NAME])
        operation = base_pb2.ConfigRequest.Operation(get_option=wanted)
        asked = base_pb2.ConfigRequest(**self._asker, operation=operation)
        try:
            (found,) = self._ask("Config", asked).pairs
        except RelayError:
            return False
        return found.value in self._pid_file.read_text().split()[1:]

    @property
    def _asker(self) -> dict[str, Any]:
        return {"session_id": str(uuid.uuid4()), "user_context": {"user_id": "relay"}}

    def _ask(self, method: str, asked: Any) -> Any:
        """Call a method of the server, in a session that lasts as long as the call."""
        answering.check(self.address)

        import grpc
        from pyspark.sql.connect.proto import base_pb2, base_pb2_grpc

        builder = connect_channel.builder(self.remote)
        session = {"session_id": asked.session_id, "user_context": asked.user_context}
        with builder.toChannel() as channel:
            server = base_pb2_grpc.SparkConnectServiceStub(channel)
            options: dict[str, Any] = {"timeout": _ANSWER_SECONDS, "metadata": builder.metadata()}
            try:
                answer = getattr(server, method)(asked, **options)
                server.ReleaseSession(base_pb2.ReleaseSessionRequest(**session), **options)
            except grpc.RpcError as error:
                raise RelayError(
                    f"no Spark Connect server answers at {self.address}:"
                    f" {error.code().name}: {first_line(error)}",
                    remedy="correct spark.remote, or see the server's log",
                ) from error
        return answer

    @property
    def _folder(self) -> Path:
        state = Path(os.environ.get("XDG_STATE_HOME") or Path.home() / ".local" / "state")
        return state.absolute() / "relay_pipelines" / f"spark-{self._host_and_port()[1]}"

    @property
    def _pid_file(self) -> Path:
        return self._folder / "server.pid"

    @property
    def _log(self) -> Path:
        return self._folder / "server.log"

    @property
    def _conf(self) -> Path:
        return self._folder / "server.conf"

    def _host_and_port(self) -> tuple[str, int]:
        parts = urlsplit(f"//{self.address.removeprefix('sc://')}")
        if parts.hostname not in connect_channel.LOOPBACK:
            raise ConfigError(
                f"spark.remote is {self.address}: relay starts a server on 127.0.0.1 only",
                remedy="set spark.remote to sc://127.0.0.1:15002, or start that server with"
                " Spark's start-connect-server.sh",
            )
        return parts.hostname or "", parts.port or answering.PORTS["sc"]

    def _refuse_other_server(self) -> None:
        try:
            answering.check(self.address)
        except RelayError:
            return
        raise RelayError(
            f"another process listens at {self.address}",
            remedy="stop it, or choose another port in spark.remote",
        )

    def _spawn(self, settings: Mapping[str, str], lock: int) -> int:
        script = Path(jvm.home(), "sbin", "start-connect-server.sh")
        settings_file.write(self._conf, settings)
        folder = str(self._folder)
        own = {"SPARK_PID_DIR": folder, "SPARK_LOG_DIR": folder}
        with self._log.open("wb") as log:
            # in the foreground of the script, because its daemon needs `ps`
            process = subprocess.Popen(  # noqa: S603 - Spark's own script
                [script, "--wait", *settings_file.options(self._conf)],
                env={
                    "PYSPARK_PYTHON": sys.executable,
                    **os.environ,
                    **unknown_user.variables(os.environ),
                    **own,
                },
                cwd=folder,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
                pass_fds=[lock],
            )
        # a process that lives on must reap it
        threading.Thread(target=process.wait, daemon=True).start()
        return process.pid

    def _wait_until_it_answers(self) -> None:
        def answers() -> bool:
            if not self.runs():
                self._refuse_other_server()
                raise RelayError(
                    f"the Spark server at {self.address} ended while it started{self._errors()}",
                    remedy=f"see {self._log}",
                )
            return self.is_ours()

        if not _until(answers, _START_SECONDS):
            raise RelayError(
                f"the Spark server does not answer at {self.address}", remedy=f"see {self._log}"
            )

    def _errors(self) -> str:
        """Return the last errors in its log."""
        errors = java.errors_in(self._log.read_text(errors="replace"))
        return f": {errors}" if errors else ""


def _until(condition: Callable[[], bool], seconds: float) -> bool:
    deadline = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > deadline:
            return False
        time.sleep(_POLL_SECONDS)
    return True
