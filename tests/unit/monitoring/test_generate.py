"""Alerts fit the code that makes their metrics, the chart's values and the runbooks."""

from __future__ import annotations

import re

import pytest
import yaml
from swapwarden.api import names
from swapwarden.api.conditions import DIAGNOSTICS

from hack.docs import commands
from hack.generate import chart
from monitoring import alerts, generate, promql
from testbed.base import paths
from tests.unit.monitoring.series import labels_of, unknown

SECTIONS = ["Meaning", "Impact", "How to look", "How to mend", "When it is a false alarm", "Silence"]
RUNBOOKS = sorted(path.stem for path in generate.RUNBOOKS.glob("*.md"))


@pytest.mark.parametrize("alert", alerts.ALERTS, ids=lambda alert: alert.name)
def test_what_an_alert_rests_on_is_made_by_somebody(alert: alerts.Alert) -> None:
    assert list(promql.selectors(alert.expression))
    assert unknown(alert.expression) == []


def test_a_series_that_nobody_makes_is_found() -> None:
    assert unknown("swapwarden_no_such_metric") == ["swapwarden_no_such_metric"]
    assert unknown('swapwarden_agent_condition{kind="x"}') == ["swapwarden_agent_condition{kind}"]
    assert unknown("sum by (colour) (swapwarden_leader)") == ["colour"]
    assert unknown("swapwarden_agent_repair_seconds") == ["swapwarden_agent_repair_seconds"]
    assert unknown("sum by (le, node) (rate(swapwarden_agent_repair_seconds_bucket[5m]))") == []


def test_values_of_labels_are_words_that_the_code_has() -> None:
    known = {
        "cause": {cause.value for cause in names.Cause},
        "type": {*DIAGNOSTICS, "Degraded", "Drifted", "anon", "file"},
    }
    used = {
        (label, value)
        for alert in alerts.ALERTS
        for selector in promql.selectors(alert.expression)
        if selector.metric.startswith("swapwarden_")
        for label, _, value in selector.matchers
        if label in known
    }
    assert len(used) > 2
    assert {(label, value) for label, value in used if value not in known[label]} == set()


def test_each_alert_has_its_runbook_and_each_runbook_its_alert() -> None:
    assert sorted(alert.name for alert in alerts.ALERTS) == RUNBOOKS


@pytest.mark.parametrize("name", RUNBOOKS)
def test_a_runbook_says_all_that_one_should(name: str) -> None:
    text = (generate.RUNBOOKS / f"{name}.md").read_text(encoding="utf-8")
    assert text.startswith(f"# {name}\n")
    assert re.findall(r"(?m)^## (.*)$", text) == SECTIONS
    assert f'alertname="{name}"' in text


@pytest.mark.parametrize("name", RUNBOOKS)
def test_what_a_runbook_looks_at_is_made_by_somebody(name: str) -> None:
    page = f"docs/runbooks/{name}.md"
    text = (paths.ROOT / page).read_text(encoding="utf-8")
    mentioned = set(re.findall(r"`(swapwarden_[a-z_]+)", text))
    assert {metric for metric in mentioned if labels_of(metric) is None} == set()
    queries = [block.text for block in commands.blocks(page) if block.language == "promql"]
    assert [said for query in queries for said in unknown(query)] == []


def test_values_that_a_runbook_names_exist() -> None:
    keys = {path for path, _, _ in chart.entries((paths.CHART / "values.yaml").read_text(encoding="utf-8"))}
    for name in RUNBOOKS:
        text = (generate.RUNBOOKS / f"{name}.md").read_text(encoding="utf-8")
        named = set(re.findall(r"`((?:prometheusRule|podMonitor|networkPolicy|admission|webhook|agent)\.[\w.]+)", text))
        assert {each for each in named if each not in keys} == set(), name


def test_generated_files_are_up_to_date() -> None:
    made = generate.generated()
    assert {path.name for path in made if path.read_text(encoding="utf-8") != made[path]} == set()


def test_rules_have_all_that_a_rule_should() -> None:
    (group,) = yaml.safe_load(generate.rules())["groups"]
    assert len(group["rules"]) == len(alerts.ALERTS) >= 10
    for rule in group["rules"]:
        assert rule["labels"]["severity"] in {"critical", "warning", "info"}
        assert rule["annotations"].keys() == {"summary", "description", "runbook_url"}
        assert rule["for"]
        assert "<" not in rule["annotations"]["description"]


def test_a_threshold_without_an_alert_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(alerts, "ALERTS", alerts.ALERTS[:1])
    with pytest.raises(generate.MonitoringError, match="swapFullRatio"):
        generate.rules()


def test_the_template_keeps_the_placeholders_of_prometheus() -> None:
    text = generate.template()
    assert "{{`{{`}} $labels.node }}" in text
    assert "{{ $labels" not in text
    assert "<swapFullRatio>" not in text
