"""Who makes the series that alerts and dashboards read."""

from __future__ import annotations

import re

from swapwarden.agent import main as agent
from swapwarden.controller import main as controller
from swapwarden.telemetry import metrics
from swapwarden.webhook import main as webhook

from monitoring import promql

PARTS = (agent, controller, webhook)
"""A module that imports all modules that count."""
TARGET = {"cluster", "namespace", "pod", "job", "instance", "node"}
"""Labels that Prometheus gives to all series of a target."""
OTHERS = {
    "ALERTS": {"alertname", "alertstate", "severity"},
    "kube_node_status_condition": {"node", "condition", "status"},
    "kube_pod_info": {"namespace", "pod", "uid", "node"},
    "apiserver_admission_webhook_rejection_count": {"name", "operation", "type", "error_type", "rejection_code"},
    "apiserver_admission_webhook_fail_open_count": {"name", "type"},
}
"""Metrics of Prometheus itself, of kube-state-metrics and of the API server, with their labels."""


def labels_of(metric: str) -> set[str] | None:
    """The labels of a series that somebody makes; None where nobody does."""
    if metric in OTHERS:
        return OTHERS[metric]
    for each in metrics.REGISTRY:
        if each.kind == "histogram" and metric in {f"{each.name}_{part}" for part in ("bucket", "sum", "count")}:
            return {*each.label_names, *({"le"} if metric.endswith("_bucket") else ())}
        if each.kind != "histogram" and metric == each.name:
            return set(each.label_names)
    return None


def unknown(expression: str) -> list[str]:
    """Series in the expression that nobody makes."""
    assert PARTS
    found, every = [], set(TARGET)
    for selector in promql.selectors(expression):
        labels = labels_of(selector.metric)
        if labels is None:
            found.append(selector.metric)
            continue
        every |= labels
        found += [f"{selector.metric}{{{label}}}" for label, _, _ in selector.matchers if label not in labels | TARGET]
    made = set(re.findall(r'label_replace\([^"]*"([a-z_]+)"', expression))
    return found + sorted(promql.grouped(expression) - every - made)
