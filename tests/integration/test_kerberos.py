"""Copies with Kerberos tickets of a real KDC; `make kerberos` runs it."""

import importlib.util
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
from kafka.protocol.metadata import MetadataRequest

from relay_pipelines.copy.task import copy_ranges
from relay_pipelines.errors import ConfigError, PermissionDeniedError, SourceError
from relay_pipelines.local_kafka import Listener, LocalCluster
from relay_pipelines.local_kafka.cluster import JVM_OPTIONS
from relay_pipelines.local_kafka.ports import free_ports
from relay_pipelines.model import Cluster, Security, Status, TopicPartition
from relay_pipelines.protocol.connection import Connection
from tests.copying import Mirror, numbered
from tests.integration import spark_processes
from tests.integration.spark_client import Request
from tests.integration.spark_driver import ON_LOOPBACK, Client, statuses
from tests.support.commands import ran

SBIN = f"{os.environ['PATH']}:/usr/sbin"
MISSING = [
    name for name in ("krb5kdc", "kadmin.local", "kinit") if not shutil.which(name, path=SBIN)
]
pytestmark = [
    pytest.mark.skipif(bool(MISSING), reason=f"needs {', '.join(MISSING)}; see make kerberos"),
    pytest.mark.skipif(
        importlib.util.find_spec("gssapi") is None, reason="needs gssapi; see make kerberos"
    ),
]
REALM = "RELAY.TEST"
SESSION_MS = 1500
SOON_SECONDS = 20.0
FAKE_CLOCK = next(Path("/usr/lib").glob("*/faketime/libfaketime.so.1"), None)


@dataclass(frozen=True)
class Kdc:
    """A realm with its KDC, and the environment that names it."""

    folder: Path
    environment: dict[str, str]
    port: int

    def run(self, *command: str, said: str = "") -> None:
        subprocess.run(
            command, env=self.environment, input=said, text=True, check=True, capture_output=True
        )

    def keytab(self, principal: str) -> Path:
        file = self.folder / f"{principal.replace('/', '-')}.keytab"
        self.run("kadmin.local", "-r", REALM, "addprinc", "-randkey", principal)
        self.run("kadmin.local", "-r", REALM, "ktadd", "-k", str(file), principal)
        return file


@pytest.fixture(scope="module")
def kdc(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Kdc]:
    """A KDC on loopback; this process uses its krb5.conf."""
    folder = tmp_path_factory.mktemp("kdc")
    [port] = free_ports(1)
    (folder / "krb5.conf").write_text(f"""\
[libdefaults]
  default_realm = {REALM}
  dns_lookup_kdc = false
  dns_canonicalize_hostname = false
  rdns = false
  udp_preference_limit = 1
  kdc_timesync = 0
[realms]
  {REALM} = {{
    kdc = 127.0.0.1:{port}
  }}
""")
    (folder / "kdc.conf").write_text(f"""\
[kdcdefaults]
  kdc_listen = 127.0.0.1:{port}
  kdc_tcp_listen = 127.0.0.1:{port}
[realms]
  {REALM} = {{
    database_name = {folder}/principal
    key_stash_file = {folder}/stash
    acl_file = {folder}/acl
  }}
""")
    environment = os.environ | {
        "PATH": SBIN,
        "KRB5_CONFIG": str(folder / "krb5.conf"),
        "KRB5_KDC_PROFILE": str(folder / "kdc.conf"),
        "KRB5CCNAME": f"FILE:{folder}/tickets",
    }
    made = Kdc(folder, environment, port)
    made.run("kdb5_util", "create", "-s", "-r", REALM, "-P", "master")
    process = subprocess.Popen(
        ["krb5kdc", "-n", "-r", REALM],
        env=environment,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    with pytest.MonkeyPatch.context() as patch:
        for key in ("KRB5_CONFIG", "KRB5CCNAME"):
            patch.setenv(key, environment[key])
        yield made
    process.terminate()
    process.wait(10)


@pytest.fixture(scope="module")
def cluster(kdc: Kdc) -> Iterator[LocalCluster]:
    """A broker whose SASL listener offers GSSAPI, and ends its sessions soon."""
    principal = f"kafka/127.0.0.1@{REALM}"
    prefix = "listener.name.sasl_plaintext."
    with LocalCluster(
        "kerberos",
        listeners=[Listener.SASL_PLAINTEXT],
        users={"unused": "unused"},
        config={
            f"{prefix}sasl.enabled.mechanisms": "GSSAPI",
            f"{prefix}gssapi.connections.max.reauth.ms": SESSION_MS,
            f"{prefix}gssapi.sasl.jaas.config": "com.sun.security.auth.module.Krb5LoginModule"
            f' required useKeyTab=true storeKey=true keyTab="{kdc.keytab(principal)}"'
            f' principal="{principal}";',
            "sasl.kerberos.service.name": "kafka",
        },
        jvm_options=[*JVM_OPTIONS, f"-Djava.security.krb5.conf={kdc.folder}/krb5.conf"],
    ) as started:
        yield started


@pytest.fixture(scope="module")
def way(kdc: Kdc, cluster: LocalCluster) -> Cluster:
    """The cluster as a principal with a keytab reaches it."""
    security = Security(
        "SASL_PLAINTEXT", "GSSAPI", principal=f"relay@{REALM}", keytab=str(kdc.keytab("relay"))
    )
    return Cluster("a", cluster.bootstrap_servers, security)


def connect(way: Cluster, **changes: Any) -> Connection:
    host, _, port = way.bootstrap_servers[0].partition(":")
    changed = replace(way, security=replace(way.security, **changes))
    return Connection(changed, (host, int(port)), "test", SourceError, SOON_SECONDS)


@pytest.fixture
def waiting(cluster: LocalCluster, topic_name: str) -> Mirror:
    """Ten records that wait, after a first copy that has created what a driver creates."""
    plain = Cluster("plain", cluster.address(Listener.PLAINTEXT))
    mirror = Mirror(plain, plain, topic_name, to=TopicPartition(f"{topic_name}-copy", 0))
    mirror.write(numbered(10))
    mirror.copy()
    mirror.write(numbered(10, first=10))
    return mirror


def test_a_copy_with_a_keytab(way: Cluster, waiting: Mirror) -> None:
    """Reads and writes as the principal of the keytab, without a ticket cache."""
    job = replace(waiting.job, upstream=way, destination=way)
    (outcome,) = copy_ranges(job, [waiting.range()])
    assert outcome.status is Status.DONE, outcome.error
    assert waiting.copied() == waiting.original()


def test_a_ticket_cache_and_its_end(kdc: Kdc, way: Cluster) -> None:
    """Tickets of kinit serve as long as they last; then one line says so."""
    keytab = str(way.security.keytab)
    own = {"keytab": None, "principal": None}
    kdc.run("kinit", "-l", "5s", "-k", "-t", keytab, "relay")
    connect(way, **own).close()  # the environment's cache
    cache = str(kdc.folder / "tickets")
    connect(way, **own, ticket_cache=cache).close()
    time.sleep(6)
    with pytest.raises(PermissionDeniedError, match=r"Kerberos.*expired.*; run kinit again"):
        connect(way, **own, ticket_cache=cache)


def test_a_connection_outlives_its_sessions_and_tickets(kdc: Kdc, way: Cluster) -> None:
    """Each session after the end of one (KIP-368) has a new ticket from the keytab, if it must."""
    keytab = str(kdc.keytab("short"))
    kdc.run("kadmin.local", "-r", REALM, "modprinc", "-maxlife", "4 seconds", "short")
    connection = connect(way, principal=f"short@{REALM}", keytab=keytab)
    began = time.monotonic()
    while time.monotonic() - began < 10:
        time.sleep(SESSION_MS / 1000)
        assert connection.call(MetadataRequest(topics=[]), 1).brokers
    connection.close()


def test_executors_use_the_keytab(
    client: Client, bare_python: Path, way: Cluster, waiting: Mirror, tmp_path: Path
) -> None:
    """A worker of Spark has krb5.conf and the keytab, and nothing else of Kerberos."""
    job = replace(waiting.job, upstream=way, destination=way)
    with spark_processes.standalone(tmp_path / "spark", bare_python) as spark:
        answer = client.ask(Request(spark.address, None, ON_LOOPBACK, job, [[waiting.range()]]))
    assert statuses(answer) == ["done"]
    assert waiting.copied() == waiting.original()


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"principal": f"nobody@{REALM}"}, "check security.keytab and principal"),
        ({"service_name": "other"}, "check security.service_name"),
        ({"keytab": None, "ticket_cache": "/none"}, "run kinit, or set security.keytab"),
        ({"principal": "relay@ELSEWHERE"}, "check security.keytab and principal"),
    ],
)
def test_what_gets_no_ticket_is_one_line(
    way: Cluster, changes: dict[str, str | None], said: str
) -> None:
    """The line says whose ticket, the library's reason, and the remedy."""
    with pytest.raises(PermissionDeniedError) as caught:
        connect(way, **changes)
    assert "\n" not in str(caught.value)
    assert "a broker 127.0.0.1:" in str(caught.value)
    assert said in str(caught.value)


def test_principals_that_the_kdc_no_longer_knows(kdc: Kdc, way: Cluster) -> None:
    """One that is deleted, and one whose key has changed since its export."""
    for name, undo, said in (
        ("gone", ("delprinc", "-force"), "the KDC does not know it"),
        ("changed", ("cpw", "-randkey"), "export security.keytab again"),
    ):
        keytab = kdc.keytab(name)
        kdc.run("kadmin.local", "-r", REALM, *undo, name)
        with pytest.raises(PermissionDeniedError, match=said):
            connect(way, principal=f"{name}@{REALM}", keytab=str(keytab))


def test_an_unknown_realm_is_one_line(kdc: Kdc, way: Cluster) -> None:
    """Its KDC is neither in krb5.conf nor in the DNS."""
    keytab = kdc.folder / "elsewhere.keytab"
    entry = "addent -password -p relay@ELSEWHERE -k 1 -e aes256-cts"
    kdc.run("ktutil", said=f"{entry}\npassword\nwkt {keytab}\nquit\n")
    with pytest.raises(PermissionDeniedError, match=r"name the realm's KDC in krb5\.conf$"):
        connect(way, principal="relay@ELSEWHERE", keytab=str(keytab))


def test_an_unreachable_kdc_is_retried(
    kdc: Kdc, way: Cluster, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """As a broker that does not answer, and the line names krb5.conf."""
    [nobody] = free_ports(1)
    elsewhere = (kdc.folder / "krb5.conf").read_text().replace(str(kdc.port), str(nobody))
    (tmp_path / "krb5.conf").write_text(elsewhere)
    monkeypatch.setenv("KRB5_CONFIG", str(tmp_path / "krb5.conf"))
    keytab = shutil.copy(str(way.security.keytab), tmp_path / "other.keytab")  # without a ticket
    with pytest.raises(SourceError, match=r"Cannot contact any KDC.*; see whether the KDC"):
        connect(way, keytab=str(keytab))


@pytest.mark.skipif(FAKE_CLOCK is None, reason="needs libfaketime")
def test_a_wrong_clock_is_one_line(kdc: Kdc, way: Cluster) -> None:
    """A process that is an hour late is told to set its clock."""
    code = (
        "from relay_pipelines.protocol.kerberos import Kerberos\n"
        "from relay_pipelines.model import Security\n"
        "from relay_pipelines.errors import SourceError\n"
        f"Kerberos(Security(principal='relay@{REALM}', keytab={way.security.keytab!r}),"
        " '127.0.0.1', 'a', SourceError)"
    )
    run = ran(
        sys.executable,
        "-c",
        code,
        env=kdc.environment | {"LD_PRELOAD": str(FAKE_CLOCK), "FAKETIME": "-1h"},
    )
    assert "set the clocks of this machine and of the KDC" in run.stderr


def test_a_missing_package_is_one_line(way: Cluster, monkeypatch: pytest.MonkeyPatch) -> None:
    """It says what to install, and that tasks need it, too."""
    monkeypatch.setitem(sys.modules, "gssapi", None)
    with pytest.raises(
        ConfigError, match=r"needs the package gssapi .*relay-pipelines\[kerberos\]"
    ):
        connect(way)
