"""A Prometheus is told to scrape what its own discovery would find, by the documented rules."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import yaml

from testbed import monitoring, prometheus

AGENT: dict[str, Any] = {
    "metadata": {
        "name": "swapwarden-agent-x",
        "namespace": "swapwarden-system",
        "labels": {"app.kubernetes.io/name": "swapwarden", "app.kubernetes.io/component": "agent"},
    },
    "spec": {"nodeName": "node-1", "containers": [{"ports": [{"name": "metrics", "containerPort": 8082}]}, {}]},
    "status": {"podIP": "10.85.0.9"},
}


def test_pods_are_found_by_the_labels_that_the_documented_rules_read() -> None:
    (target,) = prometheus.discovered([AGENT])
    assert target["targets"] == ["10.85.0.9:8082"]
    assert all(isinstance(value, str) for value in target["labels"].values())
    rules = yaml.safe_load(monitoring.SCRAPING)["scrape_configs"][0]["relabel_configs"]
    read = {label for rule in rules for label in rule["source_labels"]}
    assert read - target["labels"].keys() == set()


def test_the_configuration_is_the_documented_one_but_for_who_finds_pods() -> None:
    made = prometheus.configuration(Path("/targets.json"), "127.0.0.1:1")
    ours, names = made["scrape_configs"]
    documented = yaml.safe_load(monitoring.SCRAPING)["scrape_configs"][0]
    assert ours.pop("file_sd_configs") == [{"files": ["/targets.json"]}]
    assert {**ours, "kubernetes_sd_configs": [{"role": "pod"}]} == documented
    assert names["honor_labels"]
    assert made["rule_files"] == [str(monitoring.RULES)]
