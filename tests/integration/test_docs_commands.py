"""All commands and Python of README.md and docs run, once in the folder that pages share."""

import contextlib
import io
import os
import re
import shlex
import signal
import subprocess
import sys
import time
from contextlib import redirect_stderr, redirect_stdout
from dataclasses import dataclass, field
from pathlib import Path

import psutil
import pytest

from relay_pipelines.cli import main
from relay_pipelines.local_kafka import LocalCluster
from relay_pipelines.model import TopicPartition
from relay_pipelines.spark.defaults import SMALL_JVM
from tests.conftest import LocalSpark
from tests.support.commands import environment, ran
from tests.support.doc_blocks import NOT_RUN, Block, blocks
from tests.support.independent import CREATE_TIME, Record, create, until, write

TOPIC = "orders.new"
PAGES = sorted(
    {block.page for block in blocks("console") if block.title != NOT_RUN},
    key=lambda page: (page != "README.md", page),
)
_FILE = re.compile(r"[\w-]+\.\w+")
_QUICK_SPARK = f"spark.driver.extraJavaOptions {SMALL_JVM}\nspark.sql.shuffle.partitions 2\n"
# what cannot run here, and why
_NO_SCRIPTS = {
    "docs/security.md": "aws-msk-iam-sasl-signer-python is not installed",
    "docs/api.md": "test_api.py runs its programs, with the expectations that they need",
}
# who calls what a page only defines
_CALLS = {
    "docs/records.md": """
from types import SimpleNamespace
records = [SimpleNamespace(value='{"country":"%s"}' % name) for name in ("de", "fr")]
kept = [OnlyCountry("de").keep(record) for record in records]
batch = pa.RecordBatch.from_pydict({"value": [b"1234 5678"]})
print(kept, Masked("[0-9]{4}").transform(batch).column("value"))
""",
    "docs/dagster.md": """
import relay_pipelines
print(with_freshness(relay_pipelines.definitions("relay.yaml")).resolve_asset_graph())
""",
}
_OUTPUTS = {
    "docs/records.md": re.escape('[True, False] [\n  "*** ***"\n]'),
    "docs/dataframe.md": r"\n[1-9]\d* records have no copy",
    "docs/api.md": "records",
}


@dataclass
class Reader:
    """Somebody who follows a page, and remembers what has been done in the shared folder."""

    root: Path
    brokers: dict[str, str]
    done: set[str] = field(default_factory=set)

    def follow(self, page: str) -> None:
        """Write the page's files and run its commands."""
        own = [block for block in blocks() if block.page == page and _FILE.fullmatch(block.title)]
        alone = page != "README.md" and any(block.title == "relay.yaml" for block in own)
        folder = self.folder(page if alone else "")
        for block in own:
            self.write(folder, block)
        for block in blocks("console"):
            if block.page == page and block.title != NOT_RUN:
                for command in block.commands:
                    self.run(folder, block, command)

    def folder(self, page: str) -> Path:
        folder = self.root / (re.sub(r"\W+", "-", page) or "shared")
        if not folder.exists():
            folder.mkdir()
            (folder / ".venv").symlink_to(Path(sys.executable).parents[1])
        return folder

    def write(self, folder: Path, block: Block) -> None:
        """Write a block with a file's name, with the brokers of the tests."""
        text = block.text
        for name, address in self.brokers.items():
            text = text.replace(name, address)
        (folder / block.title).write_text(text)

    def run(self, folder: Path, block: Block, command: str) -> None:
        """Run it once in its folder, the README's in a shell; Ctrl-C ends what never ends."""
        command = command.partition("  #")[0].strip().replace(".venv/bin/relay", "relay")
        if folder == self.folder(""):
            if command in self.done:
                return
            self.done.add(command)
        is_here = block.page != "README.md" and command.startswith("relay ")
        run = self.here if is_here else self._in_a_shell
        code, output = run(folder, command)
        expected = 130 if " --every" in command else 0
        assert code == expected, f"{block}: {command}\n{output}"

    def here(self, folder: Path, command: str) -> tuple[int, str]:
        output = io.StringIO()
        with contextlib.chdir(folder), redirect_stdout(output), redirect_stderr(output):
            return main(shlex.split(command)[1:]), output.getvalue()

    def _in_a_shell(self, folder: Path, command: str) -> tuple[int, str]:
        process = subprocess.Popen(
            ["bash", "-ec", f"exec {command}" if " --every" in command else command],
            cwd=folder,
            env=environment() | self.variables,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        if " --every" in command:
            rounds = psutil.Process(process.pid)
            until(rounds.net_connections, "a round")
            process.send_signal(signal.SIGINT)
        output, _ = process.communicate(timeout=240)
        return process.returncode, output

    @property
    def variables(self) -> dict[str, str]:
        return {
            "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
            "SOURCE": self.brokers["kafka-a:9092"],
            "DESTINATION": self.brokers["kafka-b:9092"],
        }

    def run_script(self, text: str) -> str:
        """Run a Python file in the shared folder, and return its output; it must succeed."""
        folder = self.folder("")
        (folder / "example.py").write_text(text)
        (folder / "spark-defaults.conf").write_text(_QUICK_SPARK)
        own = environment() | {
            "PATH": "/usr/local/bin:/usr/bin:/bin",
            "SPARK_CONF_DIR": str(folder),
        }
        done = ran(
            sys.executable,
            "example.py",
            cwd=folder,
            env={key: value for key, value in own.items() if not key.startswith("PYSPARK")},
            input="\n",
        )
        assert done.returncode == 0, f"{text}\n{done.stdout}\n{done.stderr}"
        return done.stdout


@pytest.fixture(scope="module")
def reader(
    source_cluster: LocalCluster,
    destination_cluster: LocalCluster,
    local_spark: LocalSpark,
    tmp_path_factory: pytest.TempPathFactory,
) -> Reader:
    """A reader whose shared mirror has copied a topic."""
    source, destination = source_cluster.cluster(), destination_cluster.cluster()
    create(source, TOPIC, 2)
    for cluster in (source, destination):  # of docs/how-to/both-directions.md
        create(cluster, "shop.orders")
    now = (CREATE_TIME, time.time_ns() // 1_000_000)
    write(source, TopicPartition(TOPIC, 0), [Record(b"k", b"v", (), now)] * 100)
    addresses = {
        "kafka-a:9092": source.bootstrap_servers[0],
        "kafka-b:9092": destination.bootstrap_servers[0],
        "kafka-c:9092": source.bootstrap_servers[0],
    }
    made = Reader(tmp_path_factory.mktemp("reader"), addresses)
    readme = next(block for block in blocks("yaml") if block.page == "README.md" and block.title)
    made.write(made.folder(""), readme)
    local_spark.session()
    code, output = made.here(made.folder(""), "relay run")
    assert code == 0, output
    return made


def scripts() -> dict[str, str]:
    """Return the Python of each page in one file: later examples use what earlier ones define."""
    found: dict[str, str] = {}
    for block in blocks("python"):
        if not block.title and block.page not in _NO_SCRIPTS:
            text = block.text.replace('"payments"', f'"{TOPIC}"')  # the topic that is there
            found[block.page] = found.get(block.page, "") + text
    return {page: text + _CALLS.get(page, "") for page, text in found.items()}


@pytest.mark.parametrize("page", scripts())
def test_the_python_of_a_page_runs(reader: Reader, source_cluster: LocalCluster, page: str) -> None:
    """As a file, with the environment's Python, which is not the first one on PATH."""
    now = (CREATE_TIME, time.time_ns() // 1_000_000)
    record = Record(page.encode(), b"new", (), now)
    write(source_cluster.cluster(), TopicPartition(TOPIC, 0), [record])
    output = reader.run_script(scripts()[page])
    assert re.search(_OUTPUTS.get(page, ""), output)


def test_the_clusters_of_the_tutorial_start(reader: Reader) -> None:
    """They end with Enter."""
    (block,) = [block for block in blocks("python") if block.title == "clusters.py"]
    assert "export DESTINATION=127.0.0.1:" in reader.run_script(block.text)


@pytest.mark.usefixtures("local_session")
@pytest.mark.parametrize("page", PAGES)
def test_the_commands_of_a_page_work(
    reader: Reader, page: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in reader.variables.items():
        monkeypatch.setenv(name, value)
    reader.follow(page)
