"""The steps of the image and the commands of containers, run here; and Python alone."""

import os
import re
import socket
import subprocess
import sys
import tarfile
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import psutil
import pytest
from confluent_kafka.admin import AdminClient

from relay_pipelines.local_kafka import guardian
from relay_pipelines.local_kafka.jars import broker_classpath
from relay_pipelines.local_kafka.ports import free_ports
from scripts import release
from tests.chaos.harness import Mirror, kill
from tests.integration.spark_client import Request
from tests.integration.spark_driver import ON_LOOPBACK, Client, statuses
from tests.support.commands import ran
from tests.support.deployment import DEPLOY, Image, compose, installed_image
from tests.support.independent import until
from tests.support.wheel import ROOT

DRIVER_VARIABLES = {
    # those that Spark gives to an executor's pod
    "SPARK_EXECUTOR_ID": "1",
    "SPARK_EXECUTOR_CORES": "1",
    "SPARK_EXECUTOR_MEMORY": "512m",
    "SPARK_EXECUTOR_POD_IP": "127.0.0.1",
    "SPARK_EXECUTOR_POD_NAME": "relay-exec-1",
    "SPARK_APPLICATION_ID": "spark-1",
    "SPARK_RESOURCE_PROFILE_ID": "0",
    "SPARK_JAVA_OPT_0": "-Dspark.relay=with spaces",
    "SPARK_JAVA_OPT_1": "--add-opens=java.base/java.lang=ALL-UNNAMED",
    "SPARK_JAVA_OPT_2": "--add-opens=java.base/java.nio=ALL-UNNAMED",
    "SPARK_JAVA_OPT_3": "--add-opens=java.base/java.util=ALL-UNNAMED",
    "SPARK_JAVA_OPT_4": "--add-opens=java.base/sun.nio.ch=ALL-UNNAMED",
    "SPARK_LOCAL_IP": "127.0.0.1",
}


@contextmanager
def running(
    command: list[str], folder: Path, environment: Mapping[str, str]
) -> Iterator[subprocess.Popen[bytes]]:
    watched = [sys.executable, "-I", "-S", guardian.__file__, str(os.getpid()), *command]
    with (folder / "log").open("wb") as log:
        process = subprocess.Popen(
            watched,
            cwd=folder,
            env=dict(environment),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=log,
        )
    try:
        yield process
    finally:
        alive = process.poll() is None
        below = psutil.Process(process.pid).children(recursive=True) if alive else []
        process.terminate()
        process.communicate(timeout=150)
        kill(below)


def answers(port: int) -> bool:
    with socket.socket() as tried:
        return not tried.connect_ex(("127.0.0.1", port))


@pytest.mark.long(downloads=True)
def test_the_image_is_an_executor_of_spark(
    client: Client, standalone_master: str, mirror: Mirror, tmp_path: Path
) -> None:
    """Its entry point, called as Kubernetes does, registers with a driver and runs its tasks."""
    image = installed_image(tmp_path / "image")
    (port,) = free_ports(1)
    conf = ON_LOOPBACK | {"spark.driver.port": str(port), "spark.executor.memory": "512g"}
    job, ranges = mirror.job()
    # the worker of the cluster has no 512 GiB: there is no other executor
    wait = client.start(Request(standalone_master, None, conf, job, [ranges]))
    until(lambda: answers(port), "the driver", 60, 0.1)
    address = {"SPARK_DRIVER_URL": f"spark://CoarseGrainedScheduler@127.0.0.1:{port}"}
    entrypoint = image.path("/opt/relay/entrypoint.sh")
    with running(
        [entrypoint, "executor"], tmp_path, image.variables | DRIVER_VARIABLES | address
    ) as executor:
        assert statuses(wait()) == ["done", "done"], (tmp_path / "log").read_text()[-2000:]
        # it ends with its driver
        assert executor.wait(150) is not None
    mirror.assert_all_arrived()


@pytest.mark.skipif(os.getuid() != 0, reason="only root can be another user")
def test_a_user_id_without_a_name_gets_one() -> None:
    """As OpenShift chooses it. Java and Hadoop then find the name by the library in the image."""
    nobody = ["setpriv", "--reuid=54321", "--regid=0", "--clear-groups"]
    look = 'echo "$LD_PRELOAD"; cat "$NSS_WRAPPER_PASSWD"; rm "$NSS_WRAPPER_PASSWD"'
    done = subprocess.run(
        [*nobody, "sh", "-s", "sh", "-c", look],
        input=(DEPLOY / "docker" / "entrypoint.sh").read_text(),
        capture_output=True,
        text=True,
        check=True,
    )
    library, entry = done.stdout.splitlines()
    assert library == "libnss_wrapper.so"
    assert entry == "relay:x:54321:0::/var/lib/relay:/usr/sbin/nologin"
    assert "libnss-wrapper" in (DEPLOY / "docker" / "Dockerfile").read_text()


def test_the_variables_of_a_broker_start_one(tmp_path: Path) -> None:
    """Kafka's own program for its image makes a configuration of them, and formats the disk."""
    inside, controller, outside = free_ports(3)
    folders = {kind: tmp_path / kind for kind in ("default", "mounted", "final")}
    for folder in folders.values():
        folder.mkdir()
    for file in ("server.properties", "log4j2.yaml", "tools-log4j2.yaml"):
        (folders["default"] / file).write_text("")
    variables = {
        key: on_loopback(str(value), {"9092": inside, "9093": controller, "9094": outside})
        for key, value in compose()["services"]["source"]["environment"].items()
    } | {"KAFKA_LOG_DIRS": str(tmp_path / "data")}
    java = ["java", "-Xmx512m", "-cp", broker_classpath()]
    given = [word for kind, folder in folders.items() for word in (f"--{kind}-configs-dir", folder)]
    subprocess.run(
        [*java, "kafka.docker.KafkaDockerWrapper", "setup", *given],
        env=os.environ | variables,
        check=True,
    )
    properties = folders["final"] / "server.properties"
    with running([*java, "kafka.Kafka", str(properties)], tmp_path, os.environ):
        until(lambda: answers(inside), f"the broker, see {tmp_path}/log", 60, 0.1)
        for port in (inside, outside):
            admin = AdminClient({"bootstrap.servers": f"127.0.0.1:{port}"})
            found: Any = admin.describe_cluster(request_timeout=20).result()
            assert found.cluster_id == variables["CLUSTER_ID"]
            assert len(found.nodes) == 1


def on_loopback(text: str, ports: Mapping[str, int]) -> str:
    """Replace ports, and names of containers by 127.0.0.1."""
    for port, own in ports.items():
        text = re.sub(rf"\b{port}\b", str(own), text)
    return re.sub(r"(?<=://)[a-z]*(?=:)|(?<=@)localhost", "127.0.0.1", text)


@pytest.mark.skipif(os.getuid() != 0, reason="only root can be another user")
@pytest.mark.long(downloads=True, minutes=8)
@pytest.mark.timeout(1800)
def test_every_step_of_the_image_runs(capsys: pytest.CaptureFixture[str]) -> None:
    """All but what needs a container is run, with all downloads: `make deploy-check`.

    Its commands run as a user id that the image does not know, whose group is root's; also the
    demo, with its brokers and Spark.
    """
    # not in tmp_path, which no other user may enter
    with tempfile.TemporaryDirectory(prefix="relay-image-", dir="/var/tmp") as name:
        Path(name).chmod(0o755)
        image = Image(Path(name))
        image.build()
        assert list(Path(image.path("/opt/cache")).rglob("*.jsa"))
        nobody = ["setpriv", "--reuid=54321", "--regid=0", "--clear-groups"]
        environment = image.variables | {"HOME": "/", "LD_LIBRARY_PATH": nss_wrapper(Path(name))}
        for command in ("relay --help", "dagster --version", "pip check", "relay demo"):
            done = ran(
                *[*nobody, image.path("/opt/relay/entrypoint.sh"), *command.split()],
                cwd=image.path("/var/lib/relay"),
                env=environment,
                stdin=subprocess.DEVNULL,
                timeout=900,
            )
            assert done.returncode == 0, done.stdout + done.stderr
        assert "Nothing lost, nothing duplicated" in done.stdout
    with capsys.disabled():
        sys.stdout.write("".join(f"not run: {step}\n" for step in image.not_run))


def nss_wrapper(folder: Path) -> str:
    """Unpack Debian's package of it, which the image installs; return where the library is."""
    subprocess.run(["apt-get", "download", "libnss-wrapper"], cwd=folder, check=True)
    (package,) = folder.glob("libnss-wrapper_*.deb")
    subprocess.run(["dpkg-deb", "--extract", package, folder / "nss"], check=True)
    (library,) = (folder / "nss").rglob("libnss_wrapper.so")
    return str(library.parent)


def test_two_builds_of_a_commit_are_the_same(tmp_path: Path) -> None:
    """In other folders, and with other rights for new files; the wheel comes from the sdist."""
    built = release.built_twice(tmp_path)
    with tarfile.open(built.sdist) as files:
        names = {name.partition("/")[2] for name in files.getnames()}
    assert {"LICENSE", "requirements.lock", "tests/integration/test_image.py"} <= names
    assert not [name for name in names if re.match(r"\.venv|var/|dist/|\.git/", name)]


ENVIRONMENT = {"HOME", "LANG", "TMPDIR", "UV_CACHE_DIR", "XDG_CACHE_HOME"}


@pytest.mark.long(downloads=True)
@pytest.mark.timeout(1200)
def test_the_demo_runs_without_a_jdk(tmp_path: Path) -> None:
    """No Java, no shell and no other program is on the path."""
    build = [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(tmp_path)]
    subprocess.run(build, cwd=ROOT, check=True, capture_output=True)
    (wheel,) = tmp_path.glob("*.whl")
    subprocess.run([sys.executable, "-m", "venv", tmp_path / "venv"], check=True)
    programs = tmp_path / "venv" / "bin"
    install = [str(Path(sys.executable).with_name("uv")), "pip", "install", "--quiet"]
    install += ["--python", str(programs / "python"), "--require-hashes"]
    install += ["--constraint", "requirements.lock", "--requirements", "pyproject.toml"]
    subprocess.run([*install, "--extra", "java"], cwd=ROOT, check=True)
    subprocess.run([*install[:6], "--no-deps", wheel], check=True)
    environment = {name: value for name, value in os.environ.items() if name in ENVIRONMENT}
    done = ran(
        programs / "relay",
        "demo",
        cwd=tmp_path,
        env=environment | {"PATH": str(programs), "TMPDIR": str(tmp_path)},
        stdin=subprocess.DEVNULL,
        timeout=900,  # it also makes the archives of classes for another Java
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "Nothing lost, nothing duplicated" in done.stdout
