"""The alerts as Prometheus evaluates them: on what they fire, and on what that looks like it they do not.

Each file in `alerts` is about one alert, and can be given to `promtool test rules` by hand after `make manifests`.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from hack.docs import commands
from hack.generate import files
from monitoring import alerts, generate
from monitoring.dashboard import rows
from testbed.base import process
from testbed.controlplane import programs

FOLDER = Path(__file__).parent / "alerts"
NAMES = [alert.name for alert in alerts.ALERTS]


@pytest.fixture(scope="module")
def promtool() -> Path:
    return programs.promtool()


@pytest.fixture(scope="module", autouse=True)
def _rules() -> None:
    """The files in `alerts` name this file."""
    files.write({generate.RULES: generate.rules()})


def cases(name: str) -> Iterator[dict[str, Any]]:
    for test in yaml.safe_load((FOLDER / f"{name}.yaml").read_text(encoding="utf-8"))["tests"]:
        yield from test["alert_rule_test"]


def test_prometheus_takes_the_rules(promtool: Path) -> None:
    said = process.run([str(promtool), "check", "rules", str(generate.RULES)], timeout=60).stdout
    assert f"{len(NAMES)} rules found" in said


@pytest.mark.parametrize("name", NAMES)
def test_it_fires_on_what_it_is_about_and_on_nothing_that_looks_like_it(name: str, promtool: Path) -> None:
    process.run([str(promtool), "test", "rules", f"{name}.yaml"], cwd=FOLDER, timeout=60)
    expected = [bool(case["exp_alerts"]) for case in cases(name)]
    assert {case["alertname"] for case in cases(name)} == {name}
    assert {True, False} == set(expected)


def test_each_file_of_tests_is_about_an_alert() -> None:
    assert sorted(path.stem for path in FOLDER.iterdir()) == sorted(NAMES)


def test_prometheus_takes_the_queries_of_runbooks(promtool: Path, tmp_path: Path) -> None:
    queries = [block.text for page in commands.pages() for block in commands.blocks(page) if block.language == "promql"]
    assert len(queries) > 3
    rules = [{"record": f"x{number}", "expr": query} for number, query in enumerate(queries)]
    made = tmp_path / "rules.yaml"
    made.write_text(yaml.safe_dump({"groups": [{"name": "x", "rules": rules}]}), encoding="utf-8")
    process.run([str(promtool), "check", "rules", str(made)], timeout=60)


def test_prometheus_takes_the_queries_of_the_dashboard(promtool: Path, tmp_path: Path) -> None:
    expressions = [rows.plain(query.expression) for query in rows.queries()]
    assert len(expressions) > 30
    rules = [{"record": f"x{number}", "expr": expression} for number, expression in enumerate(expressions)]
    made = tmp_path / "rules.yaml"
    made.write_text(yaml.safe_dump({"groups": [{"name": "x", "rules": rules}]}), encoding="utf-8")
    said = process.run([str(promtool), "check", "rules", str(made)], timeout=60).stdout
    assert f"{len(expressions)} rules found" in said


def test_pods_are_named_where_they_can_be_and_have_limits_only_where_there_are_any(
    promtool: Path, tmp_path: Path
) -> None:
    (query,) = [each for each in rows.queries() if "swapwarden_pod_swap_limit_bytes" in each.expression]
    limits = {"unlimited": "+Inf", "named": "5", "nameless": "7"}
    series = [
        {"series": f'swapwarden_pod_swap_limit_bytes{{namespace="x",node="node",pod_uid="{uid}"}}', "values": limit}
        for uid, limit in limits.items()
    ]
    series += [
        {"series": f'kube_pod_info{{namespace="shop",pod="cart",uid="{uid}"}}', "values": "1"}
        for uid in ("unlimited", "named")
    ]
    expected = [
        {"labels": '{namespace="shop",node="node",pod="cart",pod_uid="named"}', "value": 5},
        {"labels": '{namespace="uid",node="node",pod="nameless",pod_uid="nameless"}', "value": 7},
    ]
    test = {"expr": rows.plain(query.expression), "eval_time": "0m", "exp_samples": expected}
    made = tmp_path / "test.yaml"
    made.write_text(
        yaml.safe_dump({"tests": [{"interval": "1m", "input_series": series, "promql_expr_test": [test]}]}),
        encoding="utf-8",
    )
    process.run([str(promtool), "test", "rules", str(made)], timeout=60)


def test_prometheus_takes_the_configuration_that_is_shown(promtool: Path, tmp_path: Path) -> None:
    (shown,) = [block.text for block in commands.blocks("docs/alerts.md") if block.language == "yml"]
    # Debian builds Prometheus without the discovery of pods.
    discovery = "kubernetes_sd_configs: [{role: pod}]"
    assert discovery in shown
    known = shown.replace(discovery, "static_configs: [{targets: [agent]}]")
    made = tmp_path / "prometheus.yml"
    made.write_text(f"rule_files: [{generate.RULES}]\n{known}", encoding="utf-8")
    said = process.run([str(promtool), "check", "config", str(made)], timeout=60).stdout
    assert f"{len(NAMES)} rules found" in said
