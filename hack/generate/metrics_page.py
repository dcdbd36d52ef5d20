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
The chart's NetworkPolicies admit nobody to these ports but those that `networkPolicy.metricsFrom` names
([installation](install.md#network-policies)). Times are in seconds, sizes in bytes. Which node an agent's metrics are
about is said by the labels of the target.

- Metrics that are called like the kubelet's (`node_swap_usage_bytes`, `container_swap_limit_bytes`, ...) with
  `swapwarden_` in front mean the same. But limits are those in effect: the kubelet reports a container's own, which
  means little below a pod that may have less.
- What the kernel counts is read when somebody asks, at most once a second. Where a file is not there (an older
  kernel, no PSI), its metric is left out; it is never 0 instead.
- An agent lists the pods that use most swap, 50 by default (`agent.metrics.topPods`, `--metrics-top-pods`), and sums
  what the others use as `pod_uid="other"`. Limits and counters have no such sum: it would fall whenever a pod leaves
  it. The events of all pods together are metrics of their own. A pod's series end with its cgroup.
- Of the pods that were found above their limit (`swapwarden_agent_pod_exposures_total` and the like), it lists as many:
  those that took most swap meanwhile, and then those that were so the longest. The sums by cause have all of them.
- `pod_uid` is the UID that the pod's cgroup carries. Of a static pod that is not the UID of its mirror pod, but the
  mirror pod's annotation `kubernetes.io/config.hash`.
- How long pods were above their limit has three sums: by pod, by pod and cause (a second later, when the cause is
  told), and by cause over all pods of the node, also those that are gone. The node's status names each pod's causes,
  the longest first, without their times: it is kept short, for it is written to etcd whenever one changes. The agent's
  log has exposures by themselves, with beginning and end: at level `info` those in which swap was taken, 60 a minute
  at most, and at level `debug` each one.
- The controller and the webhook also publish what Prometheus' client for Python says of every process (`process_*`,
  `python_*`).
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
