"""The dashboard's rows: their panels and queries.

Variables: the namespaces that Swapwarden runs in, and a node for the rows that are about one.
"""

from collections.abc import Iterator
from typing import Final

from grafana_foundation_sdk.models import units

from monitoring.dashboard import memory, pressure, reclaim
from monitoring.dashboard.panels import (
    AGENTS,
    POD,
    WINDOW,
    Panel,
    Query,
    Row,
    fleet,
    largest,
    named,
    of_node,
    of_nodes,
    quantile,
    rate_of_node,
)

_HITS: Final = rate_of_node("swapwarden_pod_memory_events_total", "pod_uid", matchers='event="max"')
_LIMITED: Final = f"({of_node('swapwarden_pod_swap_limit_bytes', 'pod_uid')} < +Inf)"

FLEET: Final = Row(
    "Fleet",
    (
        Panel(
            "Nodes",
            "Nodes that a profile governs, by state; and all whose agent has gone silent.",
            units.Short,
            (
                Query(f"max by (state) (swapwarden_nodes{{{AGENTS}}})", "{{state}}"),
                Query(f"max(swapwarden_controller_nodes_silent{{{AGENTS}}})", "silent"),
            ),
            "number",
        ),
        Panel(
            "Alerts",
            "Alerts of Swapwarden that fire.",
            units.Short,
            (Query('count by (alertname, severity) (ALERTS{alertname=~"Swapwarden.+",alertstate="firing"})'),),
            "table",
        ),
        Panel(
            "Conditions",
            "Nodes whose state differs from their profile, or needs attention.",
            units.Short,
            (
                Query(
                    "count by (type, reason) (max by (cluster, node, type, reason) ("
                    f'swapwarden_agent_condition{{{AGENTS},type=~"Applied|Compatible|SettingsApplied|StrictInEffect",'
                    'status!="True"}'
                    " or "
                    f"swapwarden_agent_condition{{{AGENTS},"
                    'type!~"Ready|Applied|Compatible|SettingsApplied|StrictInEffect",status="True"}))'
                ),
                Query("count by (problem) (max by (cluster, node, problem) (swapwarden_controller_node_problem))"),
            ),
            "table",
        ),
        Panel(
            "Swap",
            "Of all nodes together.",
            units.BytesIEC,
            (
                Query(fleet("swapwarden_node_swap_usage_bytes"), "in use"),
                Query(fleet("swapwarden_node_swap_accessible_bytes"), "accessible to pods"),
                Query(fleet("swapwarden_node_swap_total_bytes"), "total"),
            ),
        ),
        Panel(
            "Fullest nodes",
            "Swap in use, as a share of the node's.",
            units.PercentUnit,
            (
                Query(
                    f"topk(10, max by (cluster, node) (swapwarden_node_swap_usage_bytes{{{AGENTS}}})"
                    f" / max by (cluster, node) (swapwarden_node_swap_total_bytes{{{AGENTS}}} > 0))",
                    "{{node}}",
                ),
            ),
        ),
        Panel(
            "Swap traffic",
            "Read from and written to swap devices of all nodes.",
            units.BytesPerSecondIEC,
            (
                Query(of_nodes("swapwarden_node_swap_in_bytes_total"), "in"),
                Query(of_nodes("swapwarden_node_swap_out_bytes_total"), "out"),
            ),
        ),
        Panel(
            "Exposure",
            "Time a second for which running pods were above their value, by cause.",
            units.Seconds,
            (
                Query(
                    f"sum by (cause) (rate(swapwarden_agent_exposed_seconds_total{{{AGENTS}}}[{WINDOW}]))", "{{cause}}"
                ),
            ),
            "stacked",
        ),
        Panel(
            "Repairs by cause",
            "Values that others wrote over and that were repaired, a second.",
            units.OpsPerSecond,
            (
                Query(f"sum by (cause) (rate(swapwarden_agent_rewrites_total{{{AGENTS}}}[{WINDOW}]))", "{{cause}}"),
                Query(f"sum(rate(swapwarden_agent_yields_total{{{AGENTS}}}[{WINDOW}]))", "left to another writer"),
            ),
            "stacked",
        ),
        Panel(
            "Swap held against policy",
            "Swap in use by pods that must have none.",
            units.BytesIEC,
            (
                Query(
                    f"max by (node) (swapwarden_controller_disabled_pods_swap_bytes{{{AGENTS}}})",
                    "{{node}}",
                ),
            ),
        ),
    ),
)

NODE: Final = Row(
    "Node $node",
    (
        Panel(
            "Swap of $node",
            "Accessible is what pods together may have; unassigned, what of that no pod's limit counts on.",
            units.BytesIEC,
            (
                Query(of_node("swapwarden_node_swap_usage_bytes"), "in use"),
                Query(of_node("swapwarden_node_swap_accessible_bytes"), "accessible"),
                Query(of_node("swapwarden_node_swap_unassigned_bytes"), "unassigned"),
                Query(of_node("swapwarden_node_swap_reserved_bytes"), "reserved"),
                Query(of_node("swapwarden_node_swap_total_bytes"), "total"),
            ),
        ),
        Panel(
            "Headroom of $node",
            "Memory that can still be taken before the OOM killer ends processes, with what pods can swap; of the node,"
            " and of all pods below their common limit.",
            units.BytesIEC,
            (
                Query(of_node("swapwarden_node_memory_headroom_bytes", "scope"), "{{scope}}"),
                Query(of_node("swapwarden_node_memory_total_bytes"), "memory"),
            ),
        ),
        Panel(
            "Stalls and signals of memory pressure on $node",
            "Share of the time in which all tasks, of the node and of all pods together, waited for memory at once; and"
            " 1 while a signal of spec.pressure is on. A stall of scope pod is a pod at its own limit.",
            units.PercentUnit,
            (
                Query(of_node("swapwarden_node_memory_stall_ratio", "scope"), "stall {{scope}}"),
                Query(of_node("swapwarden_node_memory_pressure", "signal", "scope"), "signal {{signal}} {{scope}}"),
            ),
        ),
        Panel(
            "Swap traffic of $node",
            "Pages read back, and written out.",
            units.BytesPerSecondIEC,
            (
                Query(rate_of_node("swapwarden_node_swap_in_bytes_total"), "in"),
                Query(rate_of_node("swapwarden_node_swap_out_bytes_total"), "out"),
            ),
        ),
        Panel(
            "Pressure on $node",
            "Share of the time in which some, or all (full), tasks waited for memory or for disks (PSI).",
            units.PercentUnit,
            (
                Query(
                    rate_of_node("swapwarden_node_pressure_stalled_seconds_total", "resource", "kind"),
                    "{{resource}} {{kind}}",
                ),
            ),
        ),
        Panel(
            "Pressure on pods of $node",
            "Share of the time in which some, or all (full), tasks of all pods waited for memory or for disks (PSI).",
            units.PercentUnit,
            (
                Query(
                    rate_of_node("swapwarden_pods_pressure_stalled_seconds_total", "resource", "kind"),
                    "{{resource}} {{kind}}",
                ),
            ),
        ),
        Panel(
            "Refaults on $node",
            "Pages a second that were evicted and soon needed again.",
            units.OpsPerSecond,
            (Query(rate_of_node("swapwarden_node_refaults_total", "type"), "{{type}}"),),
        ),
        Panel(
            "Slices of $node",
            "Swap in use by slices of systemd that hold no pods.",
            units.BytesIEC,
            (Query(of_node("swapwarden_slice_swap_usage_bytes", "slice"), "{{slice}}"),),
        ),
        Panel(
            "Limits met on $node",
            "Events a second of all pods: a memory limit met, a process killed; swap refused, at a limit or otherwise.",
            units.OpsPerSecond,
            (
                Query(rate_of_node("swapwarden_pods_memory_events_total", "event"), "memory {{event}}"),
                Query(rate_of_node("swapwarden_pods_swap_events_total", "event"), "swap {{event}}"),
            ),
        ),
    ),
)

PODS: Final = Row(
    "Pods of $node",
    (
        Panel(
            "Swap of pods",
            "The largest users.",
            units.BytesIEC,
            (Query(largest(of_node("swapwarden_pod_swap_usage_bytes", "pod_uid")), POD),),
            "stacked",
            12,
        ),
        Panel(
            "Limits of pods",
            "The pod's limit in effect: the lowest of its cgroup and those above. Pods without one are left out.",
            units.BytesIEC,
            (Query(named(_LIMITED), POD),),
            width=12,
        ),
        Panel(
            "Memory limits met by pods",
            "How often a second a limit of its memory was met. Pods with much in swap go on only because of that.",
            units.OpsPerSecond,
            (Query(largest(_HITS), POD),),
            width=12,
        ),
        Panel(
            "Exposure of pods",
            "For how long the pod was above its value, in all.",
            units.Seconds,
            (Query(largest(of_node("swapwarden_agent_pod_exposed_seconds_total", "pod_uid")), POD),),
            width=12,
        ),
    ),
)

CONTROL: Final = Row(
    "Control",
    (
        Panel(
            "Leaders",
            "Instances of the controller that lead: one.",
            units.Short,
            (Query(f"sum(swapwarden_leader{{{AGENTS}}})", "leaders"),),
            "number",
            4,
        ),
        Panel(
            "Certificate",
            "Until the webhook's certificate expires.",
            units.Seconds,
            (
                Query(
                    f"min(swapwarden_webhook_certificate_expiry_timestamp_seconds{{{AGENTS}}} > 0) - time()",
                    "left",
                ),
            ),
            "number",
            4,
        ),
        Panel(
            "Versions",
            "Instances by part and version.",
            units.Short,
            (Query(f"count by (component, version) (swapwarden_build_info{{{AGENTS}}})"),),
            "table",
        ),
        Panel(
            "New pods",
            "From an agent's first look at a pod to when its limit holds: 99 of 100 are faster.",
            units.Seconds,
            (Query(quantile(0.99, "swapwarden_agent_pod_enforced_seconds"), "agents"),),
        ),
        Panel(
            "Controller latencies",
            "99 of 100 are faster: to plan a node, and to write an object.",
            units.Seconds,
            (
                Query(quantile(0.99, "swapwarden_controller_plan_seconds"), "plan"),
                Query(quantile(0.99, "swapwarden_controller_write_seconds", "object"), "write {{object}}"),
            ),
        ),
        Panel(
            "Queues",
            "Nodes that wait to be looked at, for how long they were due (99 of 100 less), and events that wait to be"
            " sent.",
            units.Short,
            (
                Query(f"max by (queue) (swapwarden_queue_depth{{{AGENTS}}})", "{{queue}}"),
                Query(quantile(0.99, "swapwarden_queue_wait_seconds", "queue"), "seconds that {{queue}} waited"),
                Query(f"max(swapwarden_events_waiting{{{AGENTS}}})", "events"),
            ),
        ),
        Panel(
            "Lag of watches",
            "How long ago the API server last said something of a resource, to the controller that has heard least."
            " Up to a minute and a half is usual where nothing changes.",
            units.Seconds,
            (
                Query(
                    f"max by (resource) (time() - swapwarden_informer_last_event_timestamp_seconds{{{AGENTS}}})",
                    "{{resource}}",
                ),
            ),
        ),
        Panel(
            "Agents' latencies",
            "99 of 100 are faster: from notice to verified repair, and to bring all cgroups to a new state.",
            units.Seconds,
            (
                Query(quantile(0.99, "swapwarden_agent_repair_seconds"), "repair"),
                Query(quantile(0.99, "swapwarden_agent_apply_seconds"), "apply"),
            ),
        ),
        Panel(
            "Webhook verdicts",
            "Answers a second.",
            units.RequestsPerSecond,
            (
                Query(
                    f"sum by (verdict) (rate(swapwarden_webhook_requests_total{{{AGENTS}}}[{WINDOW}]))",
                    "{{verdict}}",
                ),
                Query(
                    f"sum by (code) (rate(swapwarden_webhook_bad_requests_total{{{AGENTS}}}[{WINDOW}])) > 0",
                    "no request for a pod: {{code}}",
                ),
            ),
            "stacked",
        ),
        Panel(
            "Webhook latencies",
            "From a request's head to its answer.",
            units.Seconds,
            (
                Query(quantile(0.5, "swapwarden_webhook_request_seconds"), "median"),
                Query(quantile(0.99, "swapwarden_webhook_request_seconds"), "99 of 100"),
            ),
        ),
        Panel(
            "Failures",
            "Failures a second: looks at nodes, agents' requests and watches, which are retried; requests of container"
            " runtimes that got no limit.",
            units.OpsPerSecond,
            (
                Query(
                    f"sum by (kind) (rate(swapwarden_controller_failures_total{{{AGENTS}}}[{WINDOW}]))",
                    "controller: {{kind}}",
                ),
                Query(
                    f"sum by (request) (rate(swapwarden_agent_api_errors_total{{{AGENTS}}}[{WINDOW}]))",
                    "agents: {{request}}",
                ),
                Query(
                    f"sum by (node) (rate(swapwarden_agent_nri_errors_total{{{AGENTS}}}[{WINDOW}])) > 0",
                    "NRI: {{node}}",
                ),
                Query(
                    f"sum by (resource, kind) (rate(swapwarden_informer_errors_total{{{AGENTS}}}[{WINDOW}]))",
                    "watch of {{resource}}: {{kind}}",
                ),
            ),
        ),
    ),
)

ROWS: Final = (FLEET, NODE, PODS, memory.MEMORY, pressure.PRESSURE, reclaim.RECLAIM, CONTROL)


def queries() -> Iterator[Query]:
    """Yield all queries of all panels."""
    for row in ROWS:
        for panel in row.panels:
            yield from panel.queries


def plain(expression: str, *, namespace: str = ".*", node: str = "node", window: str = "5m") -> str:
    """Return an expression as Grafana sends it: with values instead of its variables."""
    for name, value in (("$namespace", namespace), ("$node", node), (WINDOW, window)):
        expression = expression.replace(name, value)
    return expression
