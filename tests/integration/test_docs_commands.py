"""Every command in README.md and docs runs, in the order of its page.

Pages without a `relay.yaml` of their own share the mirror of README.md and a folder; a command that
several of them have runs once.
"""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from relay_pipelines.embedded import EmbeddedCluster
from relay_pipelines.model import TopicPartition
from tests.support.commands import environment
from tests.support.doc_blocks import NOT_RUN, Block, blocks
from tests.support.independent import CREATE_TIME, Record, create, write

TOPIC = "orders.new"
PAGES = sorted(
    {block.page for block in blocks("console") if block.title != NOT_RUN},
    key=lambda page: (page != "README.md", page),
)
_FILE = re.compile(r"[\w-]+\.\w+")
_ROUNDS_SECONDS = 3.0


@dataclass
class Reader:
    """Somebody who follows a page.

    Args:
        brokers: by the names that the pages use.
        done: the commands that have run in the shared folder.
    """

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
        """Return the folder of a page, or the shared one."""
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
        """Run a command; it must succeed, or stop at Ctrl-C if it never ends."""
        command = command.partition("  #")[0].strip().replace(".venv/bin/relay", "relay")
        if folder == self.folder(""):
            if command in self.done:
                return
            self.done.add(command)
        process = subprocess.Popen(
            ["bash", "-ec", f"exec {command}" if " --every" in command else command],
            cwd=folder,
            env=environment()
            | {
                "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
                "SOURCE": self.brokers["kafka-a:9092"],
                "DESTINATION": self.brokers["kafka-b:9092"],
            },
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        if " --every" in command:
            time.sleep(_ROUNDS_SECONDS)
            process.send_signal(signal.SIGINT)
        output, _ = process.communicate(timeout=120)
        expected = 130 if " --every" in command else 0
        assert process.returncode == expected, f"{block}: {command}\n{output}"


@pytest.fixture(scope="module")
def reader(
    source_cluster: EmbeddedCluster,
    destination_cluster: EmbeddedCluster,
    tmp_path_factory: pytest.TempPathFactory,
) -> Reader:
    """A reader whose shared mirror has copied a topic."""
    source, destination = source_cluster.cluster(), destination_cluster.cluster()
    create(source, TOPIC, 2)
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
    made.run(made.folder(""), readme, "relay run")
    made.done.clear()
    return made


@pytest.mark.parametrize("page", PAGES)
def test_the_commands_of_a_page_work(reader: Reader, page: str) -> None:
    reader.follow(page)
