"""The files in deploy/, read as Docker reads them, and carried out in a folder of this machine.

There is no Docker here: paths of the image become paths below a folder, names of containers become
127.0.0.1, and ports become free ones. The rest of a command is run as it is written.
"""

import json
import os
import re
import shlex
import shutil
import subprocess
import sys
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psutil
import yaml

from relay_pipelines.local_kafka.ports import free_ports
from tests.chaos.harness import kill
from tests.support.commands import ran
from tests.support.independent import until

ROOT = Path(__file__).parents[2]
DEPLOY = ROOT / "deploy"
IMAGE = "relay-pipelines"
NEEDS_A_CONTAINER = re.compile(r"\b(apt-get|useradd)\b" + (r"|--owner" if os.getuid() else ""))
"""Commands that change the system they run on, or that only root can run: not run here."""
_INSTALLS = re.compile(r"\bpip install\b")
_OWN_PATH = re.compile(r"(?<![\w./:-])/(opt|build|etc/relay|var/lib/relay|tmp)\b")
_VARIABLE = re.compile(r"\$\{(?P<name>\w+)(:-(?P<default>[^}]*))?\}")
_START_SECONDS = 120.0


@dataclass(frozen=True)
class Instruction:
    """One line of a Dockerfile, with its continuations."""

    name: str
    text: str
    options: Mapping[str, str]

    @property
    def words(self) -> list[str]:
        found = json.loads(self.text) if self.text.startswith("[") else shlex.split(self.text)
        return [str(word) for word in found]


def instructions(dockerfile: Path) -> list[Instruction]:
    lines = [line for line in dockerfile.read_text().splitlines() if not line.startswith("#")]
    whole = "\n".join(lines).replace("\\\n", "")
    found = []
    for line in filter(str.strip, whole.splitlines()):
        name, _, text = line.partition(" ")
        options = dict(re.findall(r"--([a-z]+)=(\S+) ", text)) if name == "COPY" else {}
        text = re.sub(r"^(--[a-z]+=\S+ )+", "", text) if options else text
        found.append(Instruction(name, text.strip(), options))
    return found


@dataclass
class Image:
    """What the steps of a Dockerfile make, below a folder: all its stages share the folder.

    Args:
        root: stands for `/`.
        installed: an environment in which everything is installed, in place of the steps that
            install; without it, they are run.
    """

    root: Path
    installed: Path | None = None
    environment: dict[str, str] = field(default_factory=dict)
    not_run: list[str] = field(default_factory=list)
    _folder: Path = Path("/")
    _as_user: tuple[str, ...] = ()

    def build(self, dockerfile: Path = DEPLOY / "docker" / "Dockerfile") -> None:
        programs = self.root / "usr" / "bin"
        programs.mkdir(parents=True)
        base = Path(sys.base_prefix) / "bin" / f"python3.{sys.version_info.minor}"
        (programs / "python").symlink_to(base)
        self.environment = {"PATH": f"{programs}:{os.environ['PATH']}"}
        for step in instructions(dockerfile):
            getattr(self, f"_{step.name.lower()}", self._nothing)(step)

    def path(self, text: str) -> str:
        """Replace the paths of the image in a text."""
        return _OWN_PATH.sub(lambda match: f"{self.root}{match[0]}", text)

    @property
    def variables(self) -> dict[str, str]:
        """The environment of its processes: that of the tests, and its own."""
        return {**os.environ, **self.environment}

    def _nothing(self, step: Instruction) -> None:
        """Skip what only describes the image."""

    def _workdir(self, step: Instruction) -> None:
        self._folder = Path(self.path(step.text))
        self._folder.mkdir(parents=True, exist_ok=True)

    def _user(self, step: Instruction) -> None:
        user, _, group = step.text.partition(":")
        self._as_user = ("setpriv", f"--reuid={user}", f"--regid={group}", "--clear-groups")

    def _env(self, step: Instruction) -> None:
        for word in step.words:
            name, _, value = word.partition("=")
            value = self.path(value).replace("$PATH", self.environment["PATH"])
            self.environment[name] = value
        if self.installed:  # it has the archive of Spark's classes, which takes half a minute
            self.environment.pop("XDG_CACHE_HOME", None)

    def _copy(self, step: Instruction) -> None:
        *sources, target = step.words
        if "from" in step.options:
            assert sources == [target], "all stages share one folder"
            return
        to = self._folder / self.path(target)
        for source in sources:
            copied = to / source if target.endswith("/") else to
            copied.parent.mkdir(parents=True, exist_ok=True)
            if (ROOT / source).is_dir():
                shutil.copytree(ROOT / source, copied, symlinks=True)
            else:
                shutil.copy(ROOT / source, copied)
            if "chmod" in step.options:
                copied.chmod(int(step.options["chmod"], 8))

    def _run(self, step: Instruction) -> None:
        if NEEDS_A_CONTAINER.search(step.text):
            self.not_run.append(step.text)
            return
        if self.installed and (_INSTALLS.search(step.text) or "class_archive" in step.text):
            self._link()
            return
        command = [*self._as_user, "/bin/sh", "-euc", self.path(step.text)]
        subprocess.run(command, cwd=self._folder, env=self.variables, check=True)

    def _link(self) -> None:
        target = self.root / "opt" / "relay"
        if self.installed and not target.exists():
            target.mkdir(parents=True)
            for entry in self.installed.iterdir():
                (target / entry.name).symlink_to(entry)


def installed_image(root: Path) -> Image:
    """Return the image with what is installed here, in place of what its build installs."""
    image = Image(root, Path(sys.prefix))
    image.build()
    return image


class Compose:
    """The containers of our image in compose.yaml, as processes that are restarted as there."""

    def __init__(self, image: Image, variables: Mapping[str, str]) -> None:
        self._image = image
        self._variables = variables
        every = compose()["services"].items()
        own_image = {name: each for name, each in every if each["image"].startswith(IMAGE)}
        self.services: dict[str, Any] = own_image
        published = ("3000", "4000", "9465", "15002")
        own = map(str, free_ports(len(published)))
        self._ports = dict(zip(published, own, strict=True))
        self._stopping = threading.Event()
        self.processes: dict[str, subprocess.Popen[bytes]] = {}
        self.starts: dict[str, int] = {}

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self._ports['3000']}"

    @contextmanager
    def up(self) -> Iterator[None]:
        """Run all containers, each when those that it depends on are healthy."""
        supervisors, awaited = [], set(self.services)  # a check takes seconds of the processor
        try:
            for name, service in self.services.items():
                for other in service.get("depends_on", {}).keys() & awaited:
                    self.wait_until_healthy(other)
                    awaited.remove(other)
                self._mount(service)
                self._start(name)
                supervisors.append(threading.Thread(target=self._supervise, args=(name,)))
                supervisors[-1].start()
            for name in awaited:
                self.wait_until_healthy(name)
            yield
        finally:
            self._stopping.set()
            for name in self.processes:
                self.kill(name)
            for supervisor in supervisors:
                supervisor.join()

    def wait_until_healthy(self, name: str) -> None:
        """Wait until the check of a container succeeds."""
        kind, *command = self.services[name]["healthcheck"]["test"]
        assert kind == "CMD"

        def healthy() -> bool:
            words, own = self._translated(command), self._environment(name)
            done = ran(*words, env=own, cwd=self._image.root)
            return done.returncode == 0

        until(healthy, f"the health of {name}, see {self.log(name)}", _START_SECONDS, 3.0)

    def kill(self, name: str) -> None:
        process = self.processes[name]
        if process.poll() is None:
            below = psutil.Process(process.pid).children(recursive=True)
            process.kill()
            kill(below)
            process.wait()

    def log(self, name: str) -> Path:
        """What a container has printed."""
        return self._image.root / f"{name}.log"

    def _supervise(self, name: str) -> None:
        restarts = self.services[name]["restart"] == "unless-stopped"
        while restarts and not self._stopping.wait(1.0):
            if self.processes[name].poll() is not None:
                self._start(name)

    def _start(self, name: str) -> None:
        entrypoint = ["tini", "--", self._image.path("/opt/relay/entrypoint.sh")]
        command = self._translated(self.services[name]["command"])
        with self.log(name).open("ab") as log:
            self.processes[name] = subprocess.Popen(
                [*entrypoint[2:], *command],
                cwd=self._image.path("/var/lib/relay"),
                env=self._environment(name),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )
        self.starts[name] = self.starts.get(name, 0) + 1

    def _mount(self, service: Mapping[str, Any]) -> None:
        for volume in service.get("volumes", []):
            source, target, *_ = volume.split(":")
            to = Path(self._image.path(target))
            if source.startswith("."):
                to.parent.mkdir(parents=True, exist_ok=True)
                to.write_text(self._on_this_machine((DEPLOY / source).read_text()))
            else:
                to.mkdir(parents=True, exist_ok=True)

    def _environment(self, name: str) -> dict[str, str]:
        own = self.services[name].get("environment", {})
        values = {key: self._interpolated(str(value)) for key, value in own.items()}
        own = {key: self._on_this_machine(value) for key, value in values.items()}
        return self._image.variables | own

    def _translated(self, command: Sequence[str]) -> list[str]:
        program, *arguments = (self._on_this_machine(self._interpolated(word)) for word in command)
        found = shutil.which(program, path=self._image.environment["PATH"])
        assert found, f"the image has no {program}"
        return [found, *arguments]

    def _interpolated(self, text: str) -> str:
        return _VARIABLE.sub(lambda m: self._variables.get(m["name"]) or m["default"] or "", text)

    def _on_this_machine(self, text: str) -> str:
        text = self._image.path(text)
        for port, own in self._ports.items():
            text = re.sub(rf"\b{port}\b", own, text)
        names = "|".join([*self.services, "localhost", r"0\.0\.0\.0"])
        pattern = rf"(?<=sc://)({names})|(?<=host: )({names})|\b(localhost|0\.0\.0\.0)\b"
        return re.sub(pattern, "127.0.0.1", text)


def compose() -> dict[str, Any]:
    found: dict[str, Any] = yaml.safe_load((DEPLOY / "compose.yaml").read_text())
    return found
