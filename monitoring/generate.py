"""Files made from the alerts and the dashboard: the chart's rules and dashboard, a plain file of rules, a page."""

import json
import re
from collections.abc import Mapping
from typing import Any

import yaml

from hack.generate import chart, files
from monitoring import alerts
from monitoring.dashboard import build
from testbed.base import paths

TEMPLATE = paths.CHART / "templates" / "_alerts.tpl"
DASHBOARD = paths.CHART / "files" / "grafana-dashboard.json"
RULES = paths.BUILD / "prometheus" / "rules.yaml"
PAGE = paths.DOCS / "alerts.md"
RUNBOOKS = paths.DOCS / "runbooks"
GROUP = "swapwarden"

_MADE = "Made by `make generate`; do not edit."
_THRESHOLD = re.compile(r"<([a-zA-Z]+)>")
_RUNBOOK = "(runbook)"
Json = Any


class MonitoringError(Exception):
    """The alerts do not fit the chart's values; the text names the place."""


def values() -> Json:
    """Return the chart's default values about alerts; MonitoringError if a threshold is not used."""
    found = yaml.safe_load((paths.CHART / "values.yaml").read_text(encoding="utf-8"))["prometheusRule"]
    named = {name for alert in alerts.ALERTS for name in _THRESHOLD.findall(alert.expression + alert.description)}
    if differing := named ^ found["thresholds"].keys():
        raise MonitoringError(f"in alerts or in prometheusRule.thresholds, and not in both: {sorted(differing)}")
    return found


def rule(alert: alerts.Alert) -> dict[str, Json]:
    """Return an alerting rule of Prometheus, with thresholds and the runbook's address still to be filled in."""
    return {
        "alert": alert.name,
        "expr": alert.expression,
        "for": alert.lasting,
        "labels": {"severity": alert.severity},
        "annotations": {"summary": alert.summary, "description": alert.description, "runbook_url": _RUNBOOK},
    }


def filled(text: str, thresholds: Mapping[str, object]) -> str:
    """Return text with numbers in place of thresholds."""
    return _THRESHOLD.sub(lambda name: str(thresholds[name[1]]), text)


class _Dumper(yaml.SafeDumper):
    """Write text of several lines as such, and indent lists as deep as their key."""


def _text(dumper: yaml.SafeDumper, text: str) -> yaml.ScalarNode:
    return dumper.represent_scalar("tag:yaml.org,2002:str", text, style="|" if "\n" in text else None)


_Dumper.add_representer(str, _text)


def dumped(content: Json) -> str:
    """Return YAML in its most readable form."""
    return yaml.dump(content, Dumper=_Dumper, sort_keys=False, width=10_000, allow_unicode=True)


def rules() -> str:
    """Return the rules as a file that Prometheus reads, with the chart's defaults."""
    given = values()
    found = [rule(alert) for alert in alerts.ALERTS]
    for each in found:
        each["annotations"]["runbook_url"] = f"docs/runbooks/{each['alert']}.md"
    text = dumped({"groups": [{"name": GROUP, "rules": found}]})
    head = "# Made by `make manifests`; do not edit. The chart's prometheusRule has the same rules.\n"
    return head + filled(text, given["thresholds"])


def template() -> str:
    """Return the rules as a named template of the chart."""
    values()
    parts = ['{{/* Made by `make chart`; do not edit. */}}\n{{- define "swapwarden.alerts" -}}\n']
    for alert in alerts.ALERTS:
        # Helm would take Prometheus' own placeholders for its own.
        text = dumped([rule(alert)]).replace("{{", "{{`{{`}}")
        text = _THRESHOLD.sub(r"{{ $.Values.prometheusRule.thresholds.\1 }}", text)
        address = f'{{{{ . | replace "{{alert}}" "{alert.name}" | quote }}}}'
        line = f"    runbook_url: {_RUNBOOK}\n"
        text = text.replace(line, f"    {{{{- with $.Values.prometheusRule.runbookUrl }}}}\n{line}    {{{{- end }}}}\n")
        wanted = f'not (has "{alert.name}" .Values.prometheusRule.disabled)'
        if alert.webhook:
            wanted = f'and (eq .Values.admission.mode "Webhook") ({wanted})'
        parts.append(f"{{{{- if {wanted} }}}}\n{text.replace(_RUNBOOK, address)}{{{{- end }}}}\n")
    return "".join([*parts, "{{- end -}}\n"])


SCRAPING = """\
scrape_configs:
- job_name: swapwarden
  kubernetes_sd_configs: [{role: pod}]
  relabel_configs:
  - {source_labels: [__meta_kubernetes_pod_label_app_kubernetes_io_name], regex: swapwarden, action: keep}
  - {source_labels: [__meta_kubernetes_pod_container_port_name], regex: metrics, action: keep}
  - {source_labels: [__meta_kubernetes_namespace], target_label: namespace}
  - {source_labels: [__meta_kubernetes_pod_name], target_label: pod}
  # Of agents only: metrics of the controller have a label of that name themselves.
  - source_labels: [__meta_kubernetes_pod_label_app_kubernetes_io_component, __meta_kubernetes_pod_node_name]
    regex: agent;(.+)
    target_label: node
"""
"""Return a configuration of Prometheus that has our metrics with the labels that alerts and dashboard need."""

_HEAD = f"""\
<!-- {_MADE} -->
# Alerts

With the Prometheus operator, `prometheusRule.enabled: true` in the chart makes a PrometheusRule of the alerts, and
`podMonitor.enabled: true` collects the metrics that they need. Without it, run `make manifests` in a clone and give
Prometheus `build/prometheus/rules.yaml`, which has the same rules with the chart's defaults. Its `runbook_url` is the
runbook's path in the repository: put the address of your site before it.

| value of the chart | default | |
|---|---|---|
"""

_FOOT = f"""
## Requirements

- The label `node` on the metrics of agents, with the node's name. Without it, an alert does not name its node. The
  chart's PodMonitor sets it. In a configuration of Prometheus of your own:

```yml
{SCRAPING}```

- The kubelet's configuration: agents know that a kubelet uses LimitedSwap only if the chart's `agent.kubeletConfig`
  names its file (by default it does not). Otherwise `SwapwardenLimitedSwapNotEngaging` stays silent.
- Pressure (PSI): a kernel without it, or with `psi=0`, has no series, and the alerts that need it stay silent.
  `SwapwardenSwapStallsSystem` needs that of `system.slice`: on nodes without systemd it stays silent.
- Metrics of other programs. Without `apiserver_admission_webhook_*` of the API servers, `SwapwardenWebhookFailing`
  stays silent. Without `kube_node_status_condition` of kube-state-metrics, `SwapwardenAgentSilent` also fires for nodes
  that are down. Without its `kube_pod_info`, `SwapwardenSwapHidesMemoryLimit` names a pod by its UID.

`cluster` is kept if a Prometheus has series of several clusters with that label. `promtool test rules` tests each rule:
it fires for its cause, and stays silent for similar events (an update of agents, a full swap without traffic).
"""


def page() -> str:
    """Return the page about all alerts."""
    given = values()
    text = (paths.CHART / "values.yaml").read_text(encoding="utf-8")
    parts = [_HEAD]
    for path, default, comment in chart.entries(text):
        if path.startswith("prometheusRule."):
            parts.append(f"| `{path}` | `{json.dumps(default)}` | {comment} |\n")
    parts.append("\n| alert | severity | for | |\n|---|---|---|---|\n")
    for alert in alerts.ALERTS:
        link = f"[{alert.name}](runbooks/{alert.name}.md)"
        parts.append(f"| {link} | {alert.severity} | {alert.lasting} | {alert.summary} |\n")
    parts.append("\n## Expressions\n\nWith the chart's defaults.\n")
    parts += [
        f"\n### {alert.name}\n\n```promql\n{filled(alert.expression, given['thresholds'])}\n```\n"
        for alert in alerts.ALERTS
    ]
    return "".join([*parts, _FOOT])


def generated() -> files.Made:
    """Return the committed file: its content by path."""
    return {PAGE: page()}


def of_chart() -> files.Made:
    """Return the files of the chart, which are not committed."""
    return {TEMPLATE: template(), DASHBOARD: build.rendered()}
