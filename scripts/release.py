"""Builds wheel and sdist of the last commit into dist/, and checks them: `make release`.

Nothing is published from here. What is built depends on the commit alone: it is built twice, from
copies of the commit in different folders, with the time of the commit as that of all files.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from hashlib import sha256
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).parents[1]
DIST = ROOT / "dist"
UV = Path(sys.executable).with_name("uv")
ENVIRONMENT = ("HOME", "LANG", "TMPDIR", "XDG_CACHE_HOME")
"""The variables of who runs the demo: none leads to this checkout, to a Java or another program."""
RESOLUTIONS = ("lowest-direct", "highest")
"""The oldest dependencies that pyproject.toml allows, and the newest."""


class Release(NamedTuple):
    """What is built of a commit."""

    sdist: Path
    wheel: Path

    @property
    def digests(self) -> list[str]:
        """The SHA-256 of each file."""
        return [sha256(file.read_bytes()).hexdigest() for file in self]


class NotReproducibleError(Exception):
    """Two builds of one commit differ."""


def run(*command: str | Path, cwd: Path = ROOT, **variables: str) -> None:
    """Run a program, which must succeed, with further variables."""
    subprocess.run(command, cwd=cwd, env=os.environ | variables, check=True)


def built(folder: Path, commit: str = "HEAD") -> Release:
    """Build a commit in a folder, whatever lies in the work tree.

    The wheel is built from the sdist, as by who installs that.
    """
    git = ["git", "-C", str(ROOT)]
    moment = subprocess.check_output([*git, "log", "-1", "--format=%ct", commit], text=True).strip()
    run(*git, "archive", "--prefix=commit/", "--output", folder / "commit.tar", commit)
    _unpack(folder / "commit.tar")
    build = [sys.executable, "-m", "hatchling", "build", "-d", str(folder)]
    run(*build, "-t", "sdist", cwd=folder / "commit", SOURCE_DATE_EPOCH=moment)
    (sdist,) = folder.glob("*.tar.gz")
    _unpack(sdist)
    inside = folder / sdist.name.removesuffix(".tar.gz")
    run(*build, "-t", "wheel", cwd=inside, SOURCE_DATE_EPOCH=moment)
    (wheel,) = folder.glob("*.whl")
    return Release(sdist, wheel)


def _unpack(archive: Path) -> None:
    """Unpack an archive beside it; Python's own way is another one in each version."""
    run("tar", "--extract", "--file", archive, "--directory", archive.parent)


def built_twice(folder: Path, commit: str = "HEAD") -> Release:
    """Build a commit twice, and return one of them.

    Raises:
        NotReproducibleError: a file of them has other bytes.
    """
    builds = []
    for name, umask in (("first", 0o022), ("another", 0o077)):
        (folder / name).mkdir()
        before = os.umask(umask)
        try:
            builds.append(built(folder / name, commit))
        finally:
            os.umask(before)
    first, second = (build.digests for build in builds)
    if first != second:
        raise NotReproducibleError(f"two builds of {commit} differ: {first} and {second}")
    return builds[0]


def installed(archive: Path, folder: Path, resolution: str, extras: str = "java") -> Path:
    """Install an archive into an empty environment, and return the folder of its programs."""
    run(UV, "venv", "--quiet", "--python", sys.executable, folder)
    python = folder / "bin" / "python"
    with_extras = f"relay-pipelines[{extras}] @ {archive.absolute().as_uri()}"
    run(UV, "pip", "install", "-q", "--python", python, "--resolution", resolution, with_extras)
    run(UV, "pip", "check", "-q", "--python", python)
    return python.parent


def write_bill(release: Release, folder: Path, to: Path) -> None:
    """Write what the package needs as a CycloneDX document (an SBOM), as requirements.lock has it.

    That is what the image installs, and what the tests run with.
    """
    run(UV, "venv", "--quiet", "--python", sys.executable, folder)
    python = folder / "bin" / "python"
    install = [UV, "pip", "install", "--quiet", "--python", python, "--constraint"]
    wheel = f"relay-pipelines[expectations,java,postgres] @ {release.wheel.as_uri()}"
    run(*install, ROOT / "requirements.lock", wheel)
    run(
        *(tools() / "cyclonedx-py", "environment", python, "--pyproject", ROOT / "pyproject.toml"),
        *("--output-reproducible", "--output-format", "JSON", "--output-file", to),
    )


def tools() -> Path:
    """Return the folder of the programs that only a release needs: scripts/release.lock."""
    folder = ROOT / ".venv" / "release"
    if not folder.exists():
        run(UV, "venv", "--quiet", "--python", sys.executable, folder)
    wanted = ROOT / "scripts" / "release.lock"
    sync = [UV, "pip", "sync", "--quiet", "--require-hashes", "--python", folder / "bin" / "python"]
    run(*sync, wanted)
    return folder / "bin"


def main() -> None:
    """Build, check, and run the demo from what was installed."""
    with tempfile.TemporaryDirectory(prefix="relay-release-") as name:
        folder = Path(name)
        found = built_twice(folder)
        run(tools() / "twine", "check", "--strict", *found)
        bill = folder / f"{found.wheel.name.rpartition('-py3')[0]}.cdx.json"
        write_bill(found, folder / "bill", bill)
        for archive, resolution in zip(found[::-1], RESOLUTIONS, strict=True):
            programs = installed(archive, folder / resolution, resolution)
            elsewhere = folder / f"demo-{resolution}"
            elsewhere.mkdir()
            own = {name: os.environ[name] for name in ENVIRONMENT if name in os.environ}
            demo = [programs / "relay", "demo"]
            subprocess.run(demo, cwd=elsewhere, env=own | {"PATH": str(programs)}, check=True)
        DIST.mkdir(exist_ok=True)
        for file in (*found, bill):
            (DIST / file.name).write_bytes(file.read_bytes())
            print(sha256(file.read_bytes()).hexdigest(), f"dist/{file.name}")


if __name__ == "__main__":
    main()
