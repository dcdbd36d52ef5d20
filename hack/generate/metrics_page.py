"""docs/metrics.md, made from the metrics of each part.

A module makes its metrics when it is imported, so a part publishes the metrics that its import registers: each part is
imported in a process of its own.
"""

import json
import sys
from collections.abc import Iterable, Mapping
from typing import NamedTuple

from hack.generate import files
from testbed.base import paths, process

PARTS = ("agent", "controller", "webhook")

_DUMP = """
import importlib, json, sys
importlib.import_module(sys.argv[1])
from swapwarden.telemetry import metrics
print(json.dumps([[each.name, each.kind, list(each.label_names), each.help_text] for each in metrics.REGISTRY]))
"""

_HEAD = """<!-- Made by `make generate` from the code; do not edit. -->
# Metrics

Each part serves its metrics in the Prometheus text format at `/metrics` of its `--metrics-address`: the agent on port
8082, the controller on 8083, the webhook on 8081. With `podMonitor.enabled` the chart installs a PodMonitor for each.
The chart's NetworkPolicies admit only the clients that `networkPolicy.metricsFrom` names
([installation](install.md#network-policies)). Times are in seconds, sizes in bytes. The labels of the target name the
node of an agent's metrics.

- A metric with the kubelet's name (`node_swap_usage_bytes`, `container_swap_limit_bytes`, ...) after `swapwarden_` has
  the same meaning. But limits are those in effect: the kubelet reports a container's own, which means little if its pod
  may have less.
- The kernel's counters are read on each scrape, at most once a second. If a file does not exist (an older kernel, no
  PSI), its metric is left out; it is never 0 instead.
- An agent lists the pods with the most swap, 50 by default (`agent.metrics.topPods`, `--metrics-top-pods`), and sums
  the use of the others as `pod_uid="other"`. Limits and counters have no such sum: it would fall whenever a pod leaves
  it. The events of all pods together are metrics of their own. A pod's series end with its cgroup.
- An agent lists as many of the pods that exceeded their limit (`swapwarden_agent_pod_exposures_total` and the like):
  those that took the most swap meanwhile, then those with the longest time. The sums by cause include all pods.
- `pod_uid` is the UID in the name of the pod's cgroup. For a static pod this is the annotation
  `kubernetes.io/config.hash` of its mirror pod, and not the mirror pod's UID.
- The time that pods exceeded their limit has three sums: by pod, by pod and cause (a second later, when the cause is
  known), and by cause over all pods of the node, including deleted ones. The node's status names each pod's causes, the
  longest first, without their times: it is short because each change is written to etcd. The agent's log has each
  exposure with its beginning and end: at level `info` those in which swap was taken, at most 60 a minute, and at level
  `debug` all.
- The controller and the webhook also publish the metrics of Prometheus' client for Python (`process_*`, `python_*`).
"""


class Metric(NamedTuple):
    """A metric of a part."""

    name: str
    kind: str
    labels: tuple[str, ...]
    help_text: str


def of_part(part: str) -> list[Metric]:
    """Return the metrics of `swapwarden PART`; the product must be installed, or its folder on PYTHONPATH."""
    said = process.run([sys.executable, "-c", _DUMP, f"swapwarden.{part}.main"], timeout=60).stdout
    return [Metric(name, kind, tuple(labels), text) for name, kind, labels, text in json.loads(said)]


def page(parts: Mapping[str, Iterable[Metric]]) -> str:
    """Return the page, from the metrics of each part by its name."""
    having: dict[Metric, list[str]] = {}
    for part, found in parts.items():
        for metric in found:
            having.setdefault(metric, []).append(part)
    own = (
        f"\n## The {part}\n\n" + _table({each: had for each, had in having.items() if had == [part]}) for part in parts
    )
    shared = {each: had for each, had in having.items() if len(had) > 1}
    return "".join([_HEAD, *own, "\n## Several parts\n\n", _table(shared, whose=True)])


def _table(metrics: Mapping[Metric, list[str]], *, whose: bool = False) -> str:
    columns = ["metric", "type", "labels", *(["parts"] if whose else []), ""]
    lines = [f"| {' | '.join(columns)} |\n", f"|{'---|' * len(columns)}\n"]
    for each, parts in sorted(metrics.items()):
        labels = ", ".join(f"`{label}`" for label in each.labels)
        cells = [f"`{each.name}`", each.kind, labels, *([", ".join(parts)] if whose else []), _escaped(each.help_text)]
        lines.append("| " + " | ".join(cells) + " |\n")
    return "".join(lines)


def _escaped(text: str) -> str:
    """Return Markdown for a table: names with underscores and the like are no markup."""
    return "".join(f"\\{char}" if char in "\\`*_<>|[]" else char for char in text)


def generated() -> files.Made:
    """Return the page."""
    return {paths.DOCS / "metrics.md": page({part: of_part(part) for part in PARTS})}
