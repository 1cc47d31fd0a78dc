"""The code blocks of README.md and docs, for the tests that run and check them."""

import re
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[2]
NOT_RUN = "not run in tests"
# how a command begins that no test can run, and why
CANNOT_RUN = {
    "git clone ": "it needs the network",
    "uv ": "the same",
    "relay demo": "tests/integration/test_demo.py runs it",
    "make ": "the tests of the demo and of the UI run the same code",
    "docker ": "Docker is not there",
    "docker-compose ": "Docker is not there",
    "kubectl ": "Kubernetes is not there",
    "helm ": "Kubernetes is not there",
    "hdfs ": "Hadoop is not there; tests/integration/test_yarn.py downloads it",
    "spark-submit ": "the same",
    "tar ": "the archive is for the same",
    ".venv/bin/python -m zipfile ": "the archive is for the same",
    "dg ": "tests/orchestration/test_project.py has such a project",
    "relay exporter ": "tests/integration/test_exporter.py starts it",
    "relay replay ": "the clusters have no such offsets, dates and windows",
    ".venv/bin/dagster dev": "tests/orchestration starts it",
    ".venv/bin/python clusters.py": "it waits for Enter; the tests have clusters",
    "kafka-consumer-groups.sh ": "Kafka's scripts are not there, only its jars",
    "kafka-topics.sh ": "the same; tests/integration/test_state_topics.py compares the topics",
    "relay upstreams --clear ": "no upstream is in quarantine",
    "relay offsets ": "no group has committed anything",
    "relay schemas ": "there is no schema registry",
    "relay move ": "producers and consumers would move",
    "relay acls": "the brokers have no authorizer; tests/integration/test_acls.py has some",
    "relay expectations ": "relay.yaml has none; tests/integration/test_expectations.py runs it",
    "export PYSPARK_PYTHON": "tests/integration/test_connect_server.py starts one",
    "sbin=": "the same",
    '"$sbin/': "the same",
    "relay compare ": "nothing has copied there; tests/integration/test_compare.py runs it",
    "relay reset ": "every copy is where relay.yaml wants it",
}
_FENCE = re.compile(
    r'^```(?P<language>\w*)(?: title="(?P<title>[^"]*)")?\n(?P<text>.*?)^```$',
    re.MULTILINE | re.DOTALL,
)


@dataclass(frozen=True, slots=True)
class Block:
    """A block between fences; its title is a file's name, `NOT_RUN`, or empty."""

    page: str
    line: int
    language: str
    title: str
    text: str

    def __str__(self) -> str:
        return f"{self.page}:{self.line}"

    @property
    def commands(self) -> list[str]:
        """What follows each `$`, with continued lines; other lines are output."""
        joined = self.text.replace("\\\n", " ")
        return [line[2:].strip() for line in joined.splitlines() if line.startswith("$ ")]


def blocks(*languages: str) -> list[Block]:
    found = []
    for path in (ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))):
        text = path.read_text(encoding="utf-8")
        for each in _FENCE.finditer(text):
            if not languages or each["language"] in languages:
                line = text.count("\n", 0, each.start()) + 1
                page = str(path.relative_to(ROOT))
                found.append(Block(page, line, each["language"], each["title"] or "", each["text"]))
    return found
