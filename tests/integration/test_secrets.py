"""No secret appears in output, logs, files or what Dagster stores."""

import base64
import os
import sqlite3
import sys
import zlib
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from dagster import DagsterInstance

from relay_pipelines.cli import main
from relay_pipelines.local_kafka import Listener, LocalCluster
from relay_pipelines.sensors.tick_ends import TickError
from tests.copying import KEPT, numbered
from tests.integration.guarded import PASSWORD
from tests.orchestration.in_process_environment import InProcessEnvironment, checks, failure, shared
from tests.support import command_lines, independent
from tests.support.certificates import encrypted
from tests.support.commands import ran
from tests.support.independent import TopicPartition
from tests.support.token_endpoint import CLIENT, TokenEndpoint

RELAY = Path(sys.executable).parent / "relay"
KEY_PASSWORD, WRONG = "key-of-the-horse", "wrong-horse-battery"
S3_KEY, SPARK_SECRET = "s3a \\: ä=#horse", "spark-knows-the-horse"
REMOTE_TOKEN = "token-of-the-horse"


class Hunt:
    """A right and a wrong configuration, with secrets in the environment and in a file."""

    def __init__(
        self, folder: Path, guarded: LocalCluster, tokens: TokenEndpoint, topic: str
    ) -> None:
        self.folder, self.guarded, self.tokens, self.topic = folder, guarded, tokens, topic
        self.name = f"m{topic[-8:]}"
        self.config, self.wrong = folder / "relay.yaml", folder / "wrong.yaml"
        self.environment = {
            "THE_PASSWORD": PASSWORD,
            "THE_WRONG_ONE": WRONG,
            "THE_TOKEN": REMOTE_TOKEN,
            "THE_S3_KEY": S3_KEY,
            "THE_SPARK_SECRET": SPARK_SECRET,
        }
        self._kept = folder / "kept"
        self._kept.mkdir()
        (self._kept / "secret.txt").write_text(f"{PASSWORD}\n")
        (self._kept / "key-password.txt").write_text(KEY_PASSWORD)
        security = guarded.cluster(Listener.SASL_SSL, client_certificate=True).security
        key = Path(security.key_location or "")
        encrypted(key, self._kept / "client.key", KEY_PASSWORD)
        self.source = {
            "protocol": "SASL_SSL",
            "mechanism": "SCRAM-SHA-512",
            "username": "owner",
            "password": "${THE_PASSWORD}",
            "ca_location": security.ca_location,
            "certificate_location": security.certificate_location,
            "key_location": "kept/client.key",
            "key_password": "${file:kept/key-password.txt}",
        }
        self.destination = {
            "protocol": "SASL_PLAINTEXT",
            "mechanism": "OAUTHBEARER",
            "token_endpoint": tokens.url,
            "client_id": CLIENT,
            "client_secret": "${file:kept/secret.txt}",
        }
        self.config.write_text(yaml.safe_dump(self.document(self.source, self.destination)))
        wrong_source = self.source | {"password": "${THE_WRONG_ONE}"}
        wrong_destination = self.destination | {"client_secret": "${THE_WRONG_ONE}"}
        self.wrong.write_text(yaml.safe_dump(self.document(wrong_source, wrong_destination)))

    def document(self, source: dict[str, Any], destination: dict[str, Any]) -> dict[str, Any]:
        here, there = (
            {"bootstrap_servers": list(self.guarded.address(listener)), "security": security}
            for listener, security in (
                (Listener.SASL_SSL, source),
                (Listener.SASL_PLAINTEXT, destination),
            )
        )
        mirror = {
            "source": {"upstreams": [{"name": "one"} | here]},
            "destination": there,
            "topics": {"allow": [self.topic], "rename": f"{self.name}.{{topic}}"},
            "window": {"every": "10ms", "session": 0},
        }
        events = {"spark.eventLog.enabled": True, "spark.eventLog.dir": str(self.folder)}
        conf = events | {
            "spark.authenticate": True,
            "spark.authenticate.secret": "${THE_SPARK_SECRET}",
            "spark.hadoop.fs.s3a.secret.key": "${THE_S3_KEY}",
        }
        return {"mirrors": {self.name: mirror}, "spark": {"conf": conf}}

    def assert_nothing_in(self, *texts: str | bytes) -> None:
        """Check that no text holds a secret, plain or in Base64."""
        assert self.tokens.issued
        plain = [PASSWORD, KEY_PASSWORD, WRONG, REMOTE_TOKEN, S3_KEY, SPARK_SECRET]
        plain += self.tokens.issued
        basic = [
            base64.b64encode(f"{CLIENT}:{word}".encode()).decode() for word in (PASSWORD, WRONG)
        ]
        for text in texts:
            content = text if isinstance(text, bytes) else text.encode()
            found = [word for word in (*plain, *basic) if word.encode() in content]
            assert not found, content[max(0, content.index(found[0].encode()) - 300) :][:600]

    def assert_nothing_in_files(self) -> None:
        """Check all files below the folder, including compressed values of databases."""
        files = [
            path
            for path in self.folder.rglob("*")
            if path.is_file() and self._kept not in path.parents
        ]
        assert files
        for file in files:
            self.assert_nothing_in(file.read_bytes())
            if file.suffix == ".db":
                self.assert_nothing_in(*unpacked(file))


def unpacked(database: Path) -> Iterable[bytes]:
    """Return what a SQLite database holds compressed."""
    with sqlite3.connect(database) as connection:
        tables = connection.execute(
            "select name from sqlite_master where type = 'table'"
        ).fetchall()
        values = [
            value
            for (table,) in tables
            for row in connection.execute(f"select * from {table}")
            for value in row
        ]
    connection.close()
    return [
        zlib.decompress(value)
        for value in values
        if isinstance(value, bytes) and value.startswith(b"\x78")
    ]


@pytest.fixture
def hunt(
    guarded: LocalCluster,
    tokens: TokenEndpoint,
    topic_name: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> Hunt:
    """A topic with records, one configuration that can copy it and one that cannot."""
    tokens.subject = "owner"
    independent.create(guarded.cluster(), topic_name, 1, KEPT)
    independent.write(guarded.cluster(), TopicPartition(topic_name, 0), numbered(10))
    found = Hunt(tmp_path, guarded, tokens, topic_name)
    for name, value in found.environment.items():
        monkeypatch.setenv(name, value)
    return found


def test_commands_print_no_secret(
    hunt: Hunt, capfd: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture
) -> None:
    """No command prints a secret, with a right or a wrong configuration, even with --debug."""
    caplog.set_level("DEBUG")
    temporary = hunt.folder / "tmp"
    temporary.mkdir()
    with command_lines.of_children() as lines:
        done = ran(
            RELAY,
            "--debug",
            "run",
            cwd=hunt.folder,
            env=os.environ | {"TMPDIR": str(temporary), "SPARK_LOCAL_DIRS": str(temporary)},
        )
    assert done.returncode == 0, done.stderr
    assert any("SparkSubmit" in line for line in lines)
    hunt.assert_nothing_in(*lines)
    assert not list(temporary.glob("relay-spark-*"))
    assert "10" in done.stdout
    hunt.assert_nothing_in(done.stdout, done.stderr)
    assert list(hunt.folder.glob("*/events_*")) or list(hunt.folder.glob("local-*")), (
        "Spark's log of its events"
    )

    for flags in ([], ["--debug"]):
        for command in ("check", "plan", "status", "upstreams", "ledger"):
            assert main([*flags, "-c", str(hunt.config), command]) == 0, command
        for command in ("check", "plan", "status", "upstreams", "ledger", "run"):
            assert main([*flags, "-c", str(hunt.wrong), command]) == 1, command
    broken = hunt.document(
        hunt.source | {"pasword": PASSWORD, "password": [PASSWORD]},
        hunt.destination | {"scope": WRONG},
    )
    hunt.wrong.write_text(yaml.safe_dump(broken))
    assert main(["--debug", "-c", str(hunt.wrong), "check"]) == 2
    remote = {"spark": {"remote": "sc://127.0.0.1:1/;token=${THE_TOKEN}"}}
    hunt.wrong.write_text(yaml.safe_dump(hunt.document(hunt.source, hunt.destination) | remote))
    independent.write(hunt.guarded.cluster(), TopicPartition(hunt.topic, 0), numbered(10))
    for words in (["run"], ["run", "--json"]):
        assert main(["--debug", "-c", str(hunt.wrong), *words]) == 1, words
    said = capfd.readouterr()
    assert "no Spark answers at sc://127.0.0.1:1: " in said.err
    assert "refused user 'owner'" in said.out + said.err
    assert f"refused client '{CLIENT}'" in said.out + said.err
    hunt.assert_nothing_in(said.out, said.err, caplog.text)
    hunt.assert_nothing_in_files()


@pytest.fixture
def environment(
    hunt: Hunt, guarded: LocalCluster, local_session: Any
) -> Iterator[InProcessEnvironment]:
    """Dagster beside the right configuration."""
    home = hunt.folder / "dagster"
    home.mkdir()
    with DagsterInstance.local_temp(str(home)) as instance, shared(lambda: local_session):
        yield InProcessEnvironment(hunt.folder, hunt.name, guarded, guarded, instance)


def test_dagster_stores_no_secret(
    hunt: Hunt,
    environment: InProcessEnvironment,
    capfd: pytest.CaptureFixture[str],
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Tick, run, checks and a refused run hold no secret in events, metadata and logs."""
    caplog.set_level("DEBUG")
    assert environment.tick().run_requests
    done = environment.copy()
    assert done.success, failure(done)
    assert list(checks(done)) == [hunt.topic]

    monkeypatch.setenv("THE_PASSWORD", WRONG)
    with pytest.raises(TickError, match="refused user 'owner'") as caught:
        environment.tick()
    independent.write(hunt.guarded.cluster(), TopicPartition(hunt.topic, 0), numbered(5))
    refused = environment.materialize(hunt.topic, environment.windows()[0])
    assert not refused.success
    assert "refused user 'owner'" in failure(refused)
    run = environment.instance.get_run_by_id(refused.run_id)
    assert run is not None
    assert run.tags["dagster/max_retries"] == "0"

    for result in (done, refused):
        hunt.assert_nothing_in(
            repr(result.dagster_run), repr(result.dagster_run.run_config), repr(result.all_events)
        )
    said = capfd.readouterr()
    hunt.assert_nothing_in(
        said.out, said.err, caplog.text, str(caught.value), repr(environment.health())
    )
    hunt.config.unlink()
    hunt.assert_nothing_in_files()
