"""The files in deploy/: what can be said about them without Docker and Kubernetes."""

import json
import re
import tomllib
import zipfile
from fnmatch import fnmatch
from pathlib import Path
from typing import Any

import jsonschema
import kubernetes_validate
import pyspark
import pytest
import yaml
from dagster_postgres.utils import get_conn_string
from sqlalchemy import create_engine

from relay_pipelines.local_kafka.jars import KAFKA_VERSION
from relay_pipelines.metrics.run_metrics import HEALTH
from relay_pipelines.settings import load
from tests.support import postgres
from tests.support.deployment import DEPLOY, IMAGE, ROOT, Instruction, compose, instructions
from tests.support.java_calls import calls

DOCKERFILE = DEPLOY / "docker" / "Dockerfile"
IGNORED = DEPLOY / "docker" / "Dockerfile.dockerignore"
KUBERNETES = DEPLOY / "kubernetes"
MANIFESTS = sorted(set(KUBERNETES.glob("*.yaml")) - {KUBERNETES / "helm-values.yaml"})
VERSION = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"]
KUBERNETES_VERSION = "1.34"
PINNED = re.compile(r"[\w./-]+:v?\d+\.\d+(\.\d+)?(-[\w.-]+)?")


@pytest.fixture(scope="module")
def steps() -> list[Instruction]:
    return instructions(DOCKERFILE)


def texts(steps: list[Instruction], name: str) -> list[str]:
    return [step.text for step in steps if step.name == name]


def test_every_file_names_the_version():
    """Also SECURITY.md, whose fixes are for the versions that are released."""
    major = VERSION.partition(".")[0]
    assert f"| {major}.x |" in (ROOT / "SECURITY.md").read_text()
    for name in ("README.md", "docs/tutorial.md"):
        named = re.findall(r"relay_pipelines-(\S+)-py3-none-any.whl", (ROOT / name).read_text())
        assert set(named) == {VERSION}, name


def test_how_the_image_is_built(steps):
    """All is pinned but Debian's packages; not as root, by a number; no shell before commands."""
    images = [text.partition(" AS ")[0] for text in texts(steps, "FROM")]
    assert all(PINNED.fullmatch(image) for image in images)
    assert len(set(images)) == 1, "the environment is copied, so its Python must be the same"
    after_last_stage = [step for step in steps if step.name in {"FROM", "USER", "CMD"}][-2:]
    assert [step.name for step in after_last_stage] == ["USER", "CMD"]
    (user,) = texts(steps, "USER")
    assert re.fullmatch(r"[1-9]\d*:[1-9]\d*", user)
    (apt,) = [run for run in texts(steps, "RUN") if "apt-get" in run]
    assert "--no-install-recommends" in apt
    assert apt.endswith("rm -rf /var/lib/apt/lists/*")
    assert "openjdk-17-jre-headless" in apt
    assert all(text.startswith("[") for text in texts(steps, "ENTRYPOINT") + texts(steps, "CMD"))
    assert not texts(steps, "ADD")
    for run in texts(steps, "RUN"):
        assert not re.search(r"\b(curl|wget|git clone)\b|https?://", run)
        for command in re.findall(r"pip install[^&]*", run):
            from_the_lock_file = re.search(r"(--constraint requirements|-r uv)\.lock\b", command)
            own_wheel = "--no-deps" in command and command.rstrip().endswith("dist/*.whl")
            assert from_the_lock_file or own_wheel, command


def test_what_is_copied_exists_and_is_sent_to_docker(steps):
    """With what links of the package lead to: else a wheel has no files for `relay init`."""
    *rules, _ = IGNORED.read_text().splitlines()
    sent = [rule[1:] for rule in rules if rule.startswith("!")]
    assert rules[0] == "*"
    copies = [step for step in steps if step.name == "COPY"]
    own = [step for step in copies if "from" not in step.options]
    copied = [source for step in own for source in step.words[:-1]]
    assert sorted(copied) == sorted(sent)
    assert all((ROOT / source).exists() for source in copied)
    links = [path for path in (ROOT / "relay_pipelines").rglob("*") if path.is_symlink()]
    targets = {str(link.resolve().relative_to(ROOT)) for link in links}
    assert targets
    assert targets <= {word for step in copies for word in step.words}


def test_prometheus_scrapes_the_exporter_and_loads_the_alerts():
    """With the paths and names that its container has."""
    services = compose()["services"]
    config = yaml.safe_load((DEPLOY / "docker" / "prometheus.yaml").read_text())
    mounts = dict(reversed(v.split(":")[:2]) for v in services["prometheus"]["volumes"])
    (rules,) = config["rule_files"]
    folder, _, name = f"/etc/prometheus/{rules}".rpartition("/")
    assert (DEPLOY / mounts[folder] / name).is_file()
    (job,) = config["scrape_configs"]
    (target,) = job["static_configs"][0]["targets"]
    service, _, port = target.partition(":")
    assert services[service]["command"][-2:] == ["--port", port]
    own = yaml.safe_load((DEPLOY / "prometheus" / "prometheus.yaml").read_text())
    assert job["job_name"] in {each["job_name"] for each in own["scrape_configs"]}


def test_the_compose_file_follows_the_specification_and_pins_what_is_tested():
    schema = json.loads((ROOT / "tests/support/compose_spec/compose-spec.json").read_text())
    checker = jsonschema.validators.validator_for(schema)(schema)
    assert [f"{error.json_path}: {error.message}" for error in checker.iter_errors(compose())] == []
    images = {name: service["image"] for name, service in compose()["services"].items()}
    assert all(PINNED.fullmatch(image) for image in images.values())
    assert images["source"] == images["destination"] == f"apache/kafka:{KAFKA_VERSION}"
    assert images["postgres"].startswith(f"postgres:{postgres.VERSION}")
    assert {image for image in images.values() if image.startswith(IMAGE)} == {f"{IMAGE}:{VERSION}"}


def test_the_instances_of_dagster():
    """The database's driver is the one that Dagster brings; they differ in where data is alone."""
    instance = yaml.safe_load((DEPLOY / "dagster.postgres.yaml").read_text())
    database = instance["storage"]["postgres"]["postgres_db"]
    values = {key: value for key, value in database.items() if isinstance(value, str)}
    unset = dict.fromkeys(database.keys() - values, "5432")
    known: dict[str, Any] = values | unset
    assert create_engine(get_conn_string(**known)).driver == "psycopg2"
    chart = yaml.safe_load((KUBERNETES / "helm-values.yaml").read_text())
    assert chart["postgresql"]["postgresqlScheme"] == values["scheme"]
    places = {"storage", "local_artifact_storage", "compute_logs"}
    with_sqlite, with_postgres = (
        {key: value for key, value in yaml.safe_load(path.read_text()).items() if key not in places}
        for path in (DEPLOY.parent / "dagster.yaml", DEPLOY / "dagster.postgres.yaml")
    )
    assert with_sqlite == with_postgres
    assert with_sqlite["freshness"] == {"enabled": False}


def test_what_compose_publishes_and_mounts():
    """Ports of this machine alone; brokers that differ in their names alone (a test starts one)."""
    ports = [port for one in compose()["services"].values() for port in one.get("ports", [])]
    assert ports
    assert all(re.fullmatch(r"127\.0\.0\.1:\d+:\d+", port) for port in ports)
    source, destination = (compose()["services"][name] for name in ("source", "destination"))
    renamed = json.dumps(source["environment"]).replace("source", "destination").replace("9094", "")
    given = json.dumps(destination["environment"]).replace("9094", "").replace("9095", "")
    identity = source["environment"]["CLUSTER_ID"], destination["environment"]["CLUSTER_ID"]
    assert renamed.replace(*identity) == given
    volumes = compose()["volumes"]
    for service in compose()["services"].values():
        for mounted in service.get("volumes", []):
            source, *_ = mounted.split(":")
            assert source in volumes or Path(source).suffix == "" or (DEPLOY / source).is_file()


LOADED = [(path.name, one) for path in MANIFESTS for one in yaml.safe_load_all(path.read_text())]
DOCUMENTS: list[Any] = [pytest.param(one, id=f"{name}-{one['kind']}") for name, one in LOADED]


@pytest.mark.parametrize("document", DOCUMENTS)
def test_manifests_fit_the_schemas_of_kubernetes(document):
    kubernetes_validate.validate(document, KUBERNETES_VERSION, strict=True)


def manifest(kind: str) -> dict[str, Any]:
    (found,) = [one.values[0] for one in DOCUMENTS if one.values[0]["kind"] == kind]
    return found


# what methods of fabric8's client ask of the API server; a filtered delete is one of a collection
VERBS = {verb: {verb} for verb in ("create", "get", "list", "patch", "update", "watch")}
VERBS |= {
    "createOrReplace": {"create", "update"},
    "delete": {"delete", "deletecollection"},
    "edit": {"get", "patch"},
    "inform": {"list", "watch"},
    "replace": {"update"},
    "serverSideApply": {"patch"},
    "waitUntilReady": {"get", "list", "watch"},
}


def test_the_role_has_what_sparks_driver_asks_for():
    """Services are switched off; other allocators of pods, which we do not use, are left out."""
    (jar,) = (Path(pyspark.__file__).parent / "jars").glob("spark-kubernetes_*.jar")
    with zipfile.ZipFile(jar) as classes:
        found = {
            call
            for name in classes.namelist()
            if re.search(r"/cluster/k8s/(KubernetesCl|ExecutorPods)[^/]*$", name)
            for call in calls(classes.read(name))
            if call.owner.startswith("io/fabric8/kubernetes/client/")
        }
    clients = {method.lower() for owner, method in found if owner.endswith("/KubernetesClient")}
    verbs = set().union(*(VERBS.get(method, set()) for _, method in found))
    (rule,) = manifest("Role")["rules"]
    assert clients - {"close"} == {*rule["resources"], "services"}
    assert verbs == {*rule["verbs"]}
    maps = [one.values[0] for one in DOCUMENTS if one.values[0]["kind"] == "ConfigMap"]
    written = [text for each in maps for text in each["data"].values()]
    relay = next(text for text in written if "spark.kubernetes.driver.pod.name" in text)
    assert 'spark.kubernetes.driver.service.deleteOnTermination: "false"' in relay


def pod() -> dict[str, Any]:
    return manifest("CronJob")["spec"]["jobTemplate"]["spec"]["template"]["spec"]


def exporter() -> dict[str, Any]:
    return manifest("Deployment")["spec"]["template"]


@pytest.mark.parametrize("spec", [pod(), exporter()["spec"]], ids=["run", "exporter"])
def test_pods_run_as_the_image_does(steps, spec):
    (user,) = texts(steps, "USER")
    context = spec["securityContext"]
    assert f"{context['runAsUser']}:{context['runAsGroup']}" == user
    (container,) = spec["containers"]
    assert container["image"] == f"{IMAGE}:{VERSION}"
    assert container["resources"]["requests"]


def test_who_reaches_whom_in_kubernetes():
    """One port of the exporter; the network policy names all that driver and location listen at."""
    (container,) = exporter()["spec"]["containers"]
    (port,) = (each["containerPort"] for each in container["ports"])
    assert container["args"][-2:] == ["--port", str(port)]
    assert container["livenessProbe"]["httpGet"] == {"path": HEALTH, "port": "metrics"}
    assert exporter()["metadata"]["annotations"]["prometheus.io/port"] == str(port)
    (served,) = manifest("Service")["spec"]["ports"]
    assert (served["port"], served["targetPort"]) == (port, container["ports"][0]["name"])
    assert manifest("Service")["spec"]["selector"] == exporter()["metadata"]["labels"]
    policy = manifest("NetworkPolicy")["spec"]
    ports = {port["port"] for rule in policy["ingress"] for port in rule["ports"]}
    (container,) = pod()["containers"]
    values = yaml.safe_load((KUBERNETES / "helm-values.yaml").read_text())
    (location,) = values["dagster-user-deployments"]["deployments"]
    (metrics,) = exporter()["spec"]["containers"]
    served = [port["containerPort"] for port in container["ports"] + metrics["ports"]]
    assert ports == {*served, location["port"]}
    image = location["image"]
    assert fnmatch(f"{image['repository']}:{image['tag']}", container["image"])
    assert policy["podSelector"]["matchLabels"].items() <= location["labels"].items()
    assert "POD_IP" in {variable["name"] for variable in location["env"]}
    assert values["postgresql"]["postgresqlHost"].count(".") == 2, "it is in another namespace"
    anywhere = [rule for rule in policy["egress"] if "to" not in rule]
    assert 5432 in {port["port"] for rule in anywhere for port in rule["ports"]}


def test_the_configurations_load(tmp_path):
    """With the variables that the container gets, with and without Spark in pods of its own."""
    path = tmp_path / "relay.yaml"
    path.write_text((DEPLOY / "docker" / "relay.yaml").read_text())
    mirror = load(path, {"TOPICS": "a, b", "WINDOW_EVERY": "2s"}).mirror("orders")
    assert (mirror.topics.allow, mirror.window.every) == (("a", "b"), 2_000)
    config, spark = (one.values[0] for one in DOCUMENTS if one.values[0]["kind"] == "ConfigMap")
    path.write_text(config["data"]["relay.yaml"])
    variables = {"HOSTNAME": "relay-1-abc", "POD_IP": "10.0.0.7"}
    variables |= manifest("Secret")["stringData"] | config["data"]
    settings = load(path, variables)
    assert settings.spark.master == "local[2]"
    assert settings.mirror("orders").upstreams[0].bootstrap_servers == ("kafka-a.kafka.svc:9093",)
    (container,) = pod()["containers"]
    assert settings.spark.conf["spark.kubernetes.container.image"] == container["image"]
    ports = {str(port["containerPort"]) for port in container["ports"]}
    # executors, too, listen at the latter; with a port by chance, the network policy would block it
    conf = settings.spark.conf
    assert ports == {conf["spark.driver.port"], conf["spark.blockManager.port"]}
    assert conf["spark.driver.host"] == conf["spark.driver.bindAddress"] == "10.0.0.7"
    assert "POD_IP" in {variable["name"] for variable in container["env"]}
    with_spark = load(path, variables | spark["data"])
    assert with_spark.spark.master == "k8s://https://kubernetes.default.svc"
    assert with_spark.spark.conf["spark.kubernetes.namespace"] == "default"
