"""A PostgreSQL server for Dagster on 127.0.0.1, from Maven Central, to be killed and started."""

import ctypes
import io
import os
import platform
import shutil
import signal
import subprocess
import sys
import tarfile
import tempfile
import zipfile
from contextlib import closing
from pathlib import Path
from typing import Any

import psycopg2

from relay_pipelines.local_kafka import jars
from relay_pipelines.local_kafka.ports import free_ports
from tests.support.independent import until

VERSION = "17.7"
_NOBODY = 65_534
_SECONDS = 60.0
_PR_SET_PDEATHSIG = 1


class Postgres:
    """One server; `start` after `kill` uses the same port and data. Root runs it as nobody."""

    def __init__(self) -> None:
        self.folder = Path(tempfile.mkdtemp(prefix="relay-postgres-"))
        self.folder.chmod(0o700)
        (self.port,) = free_ports(1)
        self._process: subprocess.Popen[bytes] | None = None
        self._user: dict[str, Any] = {}
        if not os.getuid():
            os.chown(self.folder, _NOBODY, _NOBODY)
            self._user = {"user": _NOBODY, "group": _NOBODY, "extra_groups": []}
        _unpack(self.folder / "programs")
        command = ["initdb", "--pgdata", "data", "--username", "dagster", "--auth", "trust"]
        made = self._start(*command, "--encoding", "UTF8", "--no-locale", "--no-sync")
        assert made.wait(_SECONDS) == 0, self._log()
        self.start()
        with closing(self.connect()) as connection:
            connection.autocommit = True
            connection.cursor().execute("CREATE DATABASE dagster")

    def start(self) -> None:
        where = ["-D", "data", "-h", "127.0.0.1", "-p", str(self.port)]
        self._process = self._start("postgres", *where, "-c", "unix_socket_directories=")
        until(self._answers, "the start of PostgreSQL", _SECONDS, 0.1)

    def kill(self) -> None:
        if self._process is not None:
            os.killpg(self._process.pid, signal.SIGKILL)
            self._process.wait()
            self._process = None

    def take_writes(self, *, takes: bool) -> None:
        """Answer, and take writes or refuse them, as a standby does."""
        connection = self.connect()
        connection.autocommit = True  # ALTER SYSTEM is not for transactions
        with connection.cursor() as cursor:
            cursor.execute("SET default_transaction_read_only = off")
            value = "off" if takes else "on"
            cursor.execute(f"ALTER SYSTEM SET default_transaction_read_only = {value}")
            cursor.execute("SELECT pg_reload_conf()")
        connection.close()

    def storage(self, database: str) -> dict[str, Any]:
        """Make a database, and return the settings of a Dagster instance that uses it."""
        with closing(self.connect()) as connection:
            connection.autocommit = True
            connection.cursor().execute(f"CREATE DATABASE {database}")
        url = f"postgresql+psycopg2://dagster@127.0.0.1:{self.port}/{database}"
        return {"storage": {"postgres": {"postgres_url": url}}}

    def close(self) -> None:
        self.kill()
        shutil.rmtree(self.folder)

    def _start(self, program: str, *arguments: str) -> subprocess.Popen[bytes]:
        with (self.folder / "log").open("ab") as log:
            return subprocess.Popen(
                [self.folder / "programs" / "bin" / program, *arguments],
                cwd=self.folder,
                env={"LC_ALL": "C", "PATH": os.environ["PATH"]},
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
                preexec_fn=_die_with_parent,  # noqa: PLW1509 - it takes no lock
                **self._user,
            )

    def _log(self) -> str:
        return (self.folder / "log").read_text()[-2000:]

    def _answers(self) -> bool:
        assert self._process is not None
        assert self._process.poll() is None, self._log()
        try:
            self.connect().close()
        except psycopg2.OperationalError:
            return False
        return True

    def connect(self) -> Any:
        """Connect to the server, not to Dagster's database in it."""
        return psycopg2.connect(host="127.0.0.1", port=self.port, user="dagster", dbname="postgres")


def _unpack(folder: Path) -> None:
    system = {"Linux": "linux", "Darwin": "darwin"}[platform.system()]
    machine = {"aarch64": "arm64v8", "arm64": "arm64v8"}.get(platform.machine(), "amd64")
    name = f"embedded-postgres-binaries-{system}-{machine}"
    found = jars.resolve([f"io.zonky.test.postgres:{name}:{VERSION}.0"], f"postgres-{VERSION}")
    with zipfile.ZipFile(found) as jar:
        (packed,) = [entry for entry in jar.namelist() if entry.endswith(".txz")]
        with tarfile.open(fileobj=io.BytesIO(jar.read(packed))) as archive:
            archive.extractall(folder, filter="data")
    folder.chmod(0o755)


def _die_with_parent() -> None:
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
