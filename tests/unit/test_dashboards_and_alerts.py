"""The dashboards and alerts: real promtool, and names and labels that the metrics have."""

import json
import os
import re
from collections.abc import Iterator
from itertools import combinations
from pathlib import Path
from typing import Any

import pytest
import yaml

from relay_pipelines import errors
from relay_pipelines.metrics import METRICS, PREFIX
from relay_pipelines.page.held import State
from tests.support.commands import ran

ROOT = Path(__file__).parents[2]
PROMETHEUS = ROOT / "deploy" / "prometheus"
RULES = yaml.safe_load((PROMETHEUS / "alerts.yaml").read_text())["groups"][0]["rules"]
UNIT_TESTS = Path(__file__).with_name("alerts.test.yaml")
DASHBOARDS = {
    path.stem: json.loads(path.read_text())
    for path in sorted((ROOT / "deploy" / "grafana").glob("*.json"))
}
LABELS = {PREFIX + metric.name: set(metric.labels) for metric in METRICS}
HISTOGRAMS = [metric for metric in METRICS if metric.kind == "histogram"]
LABELS |= {f"{PREFIX}{metric.name}_bucket": {*metric.labels, "le"} for metric in HISTOGRAMS}
SERIES = {"mirror": "m", "topic": "t", "source_topic": "t", "le": "+Inf"}
"""The values of labels that dashboards choose by their variables; others get one of all."""
EVERY = {"state": ["healthy", "behind", "unavailable", "quarantined", *State]}


@pytest.fixture(scope="session")
def promtool() -> str:
    done = ran(ROOT / "scripts" / "promtool.sh", timeout=240)
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def run(promtool: str, *arguments: str | Path) -> None:
    done = ran(promtool, *arguments, timeout=60)
    assert done.returncode == 0, done.stdout + done.stderr


def expressions() -> Iterator[tuple[str, str]]:
    for rule in RULES:
        yield rule["alert"], rule["expr"]
    for name, dashboard in DASHBOARDS.items():
        for panel in dashboard["panels"]:
            for target in panel["targets"]:
                yield f"{name}: {panel['title']}", target["expr"]


def queries() -> Iterator[str]:
    """The expressions of all panels, as Grafana sends them."""
    for where, expression in expressions():
        if ":" in where:
            chosen = expression.replace("$mirror", "m").replace("$topic", "t")
            yield chosen.replace("$__rate_interval", "5m")


class TestAlerts:
    """deploy/prometheus."""

    def test_prometheus_loads_them(self, promtool: str) -> None:
        run(promtool, "check", "config", PROMETHEUS / "prometheus.yaml")

    def test_each_fires_when_it_should(self, promtool: str) -> None:
        """Their unit tests expect each alert once, and once none."""
        run(promtool, "test", "rules", UNIT_TESTS)
        tests = yaml.safe_load(UNIT_TESTS.read_text())["tests"]
        cases = [case for test in tests for case in test["alert_rule_test"]]
        alerts = {rule["alert"] for rule in RULES}
        assert {case["alertname"] for case in cases if case["exp_alerts"]} == alerts
        assert {case["alertname"] for case in cases if not case["exp_alerts"]} == alerts

    @pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule["alert"])
    def test_each_has_a_runbook(self, rule: dict[str, Any]) -> None:
        """It says what it means, what to look at and what to do; there are no others."""
        annotations = rule["annotations"]
        named = errors.page(rule["alert"])  # a URL once the documentation has one
        key = "runbook_url" if "://" in named else "runbook"
        assert set(annotations) == {"summary", "description", key}
        assert annotations[key] == named
        page = (ROOT / "docs" / "runbooks" / f"{rule['alert']}.md").read_text()
        parts = [f"# {rule['alert']}", "## What it means", "## Look at", "## Do"]
        assert re.findall(r"^(##? .*)$", page, re.MULTILINE) == parts
        assert rule["labels"]["severity"] in {"warning", "critical"}
        pages = {page.stem for page in (ROOT / "docs" / "runbooks").glob("*.md")}
        assert pages == {rule["alert"] for rule in RULES}


@pytest.mark.parametrize(("where", "expression"), list(expressions()), ids=lambda text: text[:40])
def test_names_and_labels_are_those_of_the_metrics(where: str, expression: str) -> None:
    """A selector has labels of its metric, and a `by` or `on` those of a metric beside it."""
    plain = re.sub(r'"[^"]*"', '""', expression)
    names = re.findall(rf"{PREFIX}\w+", plain)
    assert names, where
    assert set(names) <= LABELS.keys()
    for name, selector in re.findall(rf"({PREFIX}\w+)\{{([^}}]*)\}}", plain):
        assert set(re.findall(r"(\w+)\s*[!=]", selector)) <= LABELS[name]
    known = set().union(*(LABELS[name] for name in names))
    for grouped in re.findall(r"\b(?:by|on|without|ignoring|group_\w+)\s*\(([^)]*)\)", plain):
        assert {label.strip() for label in grouped.split(",")} <= known


def test_every_query_of_a_dashboard_returns_data(promtool: str, tmp_path: Path) -> None:
    """Prometheus evaluates each one over series with the names and labels of the catalogue."""
    rows = []
    for name, labels in LABELS.items():
        for state in EVERY["state"] if "state" in labels else [""]:
            text = ", ".join(
                f'{label}="{state if label == "state" else SERIES.get(label, "x")}"'
                for label in sorted(labels)
            )
            start = 1 if name.endswith(("up", "read", "failed", "relay_state")) else 10
            growth = {"source_end_offset": 1, "checkpoint_offset": 5}.get(
                name.removeprefix(PREFIX), 2 if name.endswith(("_total", "_bucket")) else 0
            )
            rows.append({"series": f"{name}{{{text}}}", "values": f"{start}+{growth}x60"})
    expected = {"eval_time": "30m", "exp_samples": [{"labels": "{}", "value": 1}]}
    cases = [{"expr": f"clamp_max(count({query}), 1)", **expected} for query in queries()]
    rules = tmp_path / "queries.yaml"
    tests = [{"interval": "1m", "input_series": rows, "promql_expr_test": cases}]
    rules.write_text(yaml.safe_dump({"rule_files": [], "tests": tests}))
    assert len(cases) > 40
    run(promtool, "test", "rules", rules)


class TestDashboards:
    """deploy/grafana."""

    @pytest.mark.parametrize("name", list(DASHBOARDS))
    def test_grafana_can_load_it(self, name: str) -> None:
        """Ids, units, places and data sources; its variables ask for labels that exist."""
        assert list(DASHBOARDS) == ["mirror", "overview", "topic", "upstreams"]
        assert len({each["uid"] for each in DASHBOARDS.values()}) == 4
        dashboard = DASHBOARDS[name]
        panels = dashboard["panels"]
        assert len({panel["id"] for panel in panels}) == len(panels)
        chosen = {"type": "prometheus", "uid": "${datasource}"}
        variables = {variable["name"]: variable for variable in dashboard["templating"]["list"]}
        assert variables["datasource"]["type"] == "datasource"
        for panel in panels:
            assert panel["title"]
            assert panel["description"]
            assert panel["datasource"] == chosen
            assert panel["fieldConfig"]["defaults"]["unit"]
            assert all(target["datasource"] == chosen for target in panel["targets"])
            place = panel["gridPos"]
            assert 0 <= place["x"] <= 24 - place["w"]
            for target in panel["targets"]:
                used = set(re.findall(r"\$(\w+)", target["expr"])) - {"__rate_interval"}
                assert used <= variables.keys()
        for one, other in combinations([panel["gridPos"] for panel in panels], 2):
            assert not (
                one["x"] < other["x"] + other["w"]
                and other["x"] < one["x"] + one["w"]
                and one["y"] < other["y"] + other["h"]
                and other["y"] < one["y"] + one["h"]
            ), (one, other)
        for variable in variables.values():
            if variable["type"] == "query":
                query = variable["query"]["query"]
                found = re.fullmatch(rf"label_values\(({PREFIX}\w+)(?:\{{.*\}})?, (\w+)\)", query)
                assert found is not None
                assert found[2] in LABELS[found[1]]


def test_promtool_that_cannot_be_had_is_one_line(tmp_path: Path) -> None:
    """The line says what happened and what to do."""
    nowhere = {"PATH": os.environ["PATH"], "PROMTOOL": str(tmp_path / "none")}
    done = ran(ROOT / "scripts" / "promtool.sh", env=nowhere)
    assert done.returncode == 2
    assert re.fullmatch(r"error: PROMTOOL=.* is no program; name another one\n", done.stderr)
