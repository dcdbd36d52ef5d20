"""The Grafana dashboard: its panels and their queries, built with the types that Grafana publishes of its own schema.

testbed.monitoring writes it into the chart, from where people import it, too. Variables: the data source, the
namespaces that Swapwarden runs in, and a node for the rows that are about one.
"""

import dataclasses
import itertools
import json
from collections.abc import Callable, Iterator
from typing import Final, Literal

from grafana_foundation_sdk.builders import common as options
from grafana_foundation_sdk.builders import dashboard as dashboards
from grafana_foundation_sdk.builders import prometheus, stat, table, timeseries
from grafana_foundation_sdk.cog import encoder
from grafana_foundation_sdk.models import common, units
from grafana_foundation_sdk.models import dashboard as models
from grafana_foundation_sdk.models import prometheus as queried

UID: Final = "swapwarden"
TITLE: Final = "Swapwarden"
SOURCE: Final = models.DataSourceRef(type_val="prometheus", uid="${datasource}")

WINDOW: Final = "$__rate_interval"
_AGENTS: Final = 'namespace=~"$namespace"'
_NODE: Final = 'namespace=~"$namespace",node="$node"'


@dataclasses.dataclass(frozen=True)
class Query:
    """An expression, and how its series are called (Grafana's {{label}})."""

    expression: str
    legend: str = ""


@dataclasses.dataclass(frozen=True)
class Panel:
    """One picture."""

    title: str
    description: str
    unit: str
    queries: tuple[Query, ...]
    kind: Literal["lines", "stacked", "number", "table"] = "lines"
    width: int = 8
    """Of 24."""


@dataclasses.dataclass(frozen=True)
class Row:
    """Panels under one heading."""

    title: str
    panels: tuple[Panel, ...]


def _fleet(metric: str, what: str = _AGENTS) -> str:
    """The sum over nodes, of which two agents may tell during an update."""
    return f"sum(max by (cluster, node) ({metric}{{{what}}}))"


def _of_nodes(metric: str) -> str:
    return f"sum(max by (cluster, node) (rate({metric}{{{_AGENTS}}}[{WINDOW}])))"


def _node(metric: str, *labels: str, matchers: str = "") -> str:
    """What the chosen node's agent tells, whichever pod that is."""
    inner = f"{_NODE},{matchers}" if matchers else _NODE
    return f"max by ({', '.join(('node', *labels))}) ({metric}{{{inner}}})"


def _node_rate(metric: str, *labels: str, matchers: str = "") -> str:
    inner = f"{_NODE},{matchers}" if matchers else _NODE
    return f"max by ({', '.join(('node', *labels))}) (rate({metric}{{{inner}}}[{WINDOW}]))"


def _named(expression: str) -> str:
    """A series of pods of the chosen node, by name where kube-state-metrics tells it, else by UID.

    A pod that is gone keeps its name for as long as something is told of it.
    """
    names = (
        "max by (pod_uid, namespace, pod)"
        f' (label_replace(last_over_time(kube_pod_info[{WINDOW}]), "pod_uid", "$1", "uid", "(.+)"))'
    )
    by_uid = f'label_replace(label_replace({expression}, "pod", "$1", "pod_uid", "(.+)"), "namespace", "uid", "", "")'
    return f"{expression} * on (pod_uid) group_left (namespace, pod) {names} or on (pod_uid) {by_uid}"


def _largest(expression: str) -> str:
    """Of pods, the ten that have most, and none that has nothing."""
    return f"topk(10, {_named(f'({expression} > 0)')})"


def _quantile(share: float, histogram: str, *labels: str, matchers: str = _AGENTS) -> str:
    grouped = ", ".join(("le", *labels))
    return f"histogram_quantile({share}, sum by ({grouped}) (rate({histogram}_bucket{{{matchers}}}[{WINDOW}])))"


_HITS: Final = _node_rate("swapwarden_pod_memory_events_total", "pod_uid", matchers='event="max"')
_LIMITED: Final = f"({_node('swapwarden_pod_swap_limit_bytes', 'pod_uid')} < +Inf)"
_POD: Final = "{{namespace}}/{{pod}}"

FLEET: Final = Row(
    "Fleet",
    (
        Panel(
            "Nodes",
            "Nodes that a profile governs, by state; and all whose agent has gone silent.",
            units.Short,
            (
                Query(f"max by (state) (swapwarden_nodes{{{_AGENTS}}})", "{{state}}"),
                Query(f"max(swapwarden_controller_nodes_silent{{{_AGENTS}}})", "silent"),
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
            "How many nodes' states say what their profile does not ask for, or what somebody should know.",
            units.Short,
            (
                Query(
                    "count by (type, reason) (max by (cluster, node, type, reason) ("
                    f'swapwarden_agent_condition{{{_AGENTS},type=~"Applied|Compatible|NodeSettings|RequirementsMet|Strict",'
                    'status!="True"}'
                    " or "
                    f"swapwarden_agent_condition{{{_AGENTS},"
                    'type!~"Applied|Compatible|NodeSettings|RequirementsMet|Strict",status="True"}))'
                ),
            ),
            "table",
        ),
        Panel(
            "Swap",
            "Of all nodes together.",
            units.BytesIEC,
            (
                Query(_fleet("swapwarden_node_swap_usage_bytes"), "in use"),
                Query(_fleet("swapwarden_node_swap_accessible_bytes"), "accessible to pods"),
                Query(_fleet("swapwarden_node_swap_total_bytes"), "total"),
            ),
        ),
        Panel(
            "Fullest nodes",
            "Swap in use, as a share of the node's.",
            units.PercentUnit,
            (
                Query(
                    f"topk(10, max by (cluster, node) (swapwarden_node_swap_usage_bytes{{{_AGENTS}}})"
                    f" / max by (cluster, node) (swapwarden_node_swap_total_bytes{{{_AGENTS}}} > 0))",
                    "{{node}}",
                ),
            ),
        ),
        Panel(
            "Swap traffic",
            "Read from and written to swap devices of all nodes.",
            units.BytesPerSecondIEC,
            (
                Query(_of_nodes("swapwarden_node_swap_in_bytes_total"), "in"),
                Query(_of_nodes("swapwarden_node_swap_out_bytes_total"), "out"),
            ),
        ),
        Panel(
            "Exposure",
            "Time a second for which running pods were above their value, by cause.",
            units.Seconds,
            (
                Query(
                    f"sum by (cause) (rate(swapwarden_agent_exposed_seconds_total{{{_AGENTS}}}[{WINDOW}]))", "{{cause}}"
                ),
            ),
            "stacked",
        ),
        Panel(
            "Repairs by cause",
            "Values that others wrote over and that were repaired, a second.",
            units.OpsPerSecond,
            (
                Query(f"sum by (cause) (rate(swapwarden_agent_rewrites_total{{{_AGENTS}}}[{WINDOW}]))", "{{cause}}"),
                Query(f"sum(rate(swapwarden_agent_yields_total{{{_AGENTS}}}[{WINDOW}]))", "left to another writer"),
            ),
            "stacked",
        ),
        Panel(
            "Swap held against policy",
            "Swap in use by pods that must have none.",
            units.BytesIEC,
            (
                Query(
                    f"max by (node) (swapwarden_controller_disabled_pods_swap_bytes{{{_AGENTS}}})",
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
                Query(_node("swapwarden_node_swap_usage_bytes"), "in use"),
                Query(_node("swapwarden_node_swap_accessible_bytes"), "accessible"),
                Query(_node("swapwarden_node_swap_unassigned_bytes"), "unassigned"),
                Query(_node("swapwarden_node_swap_reserved_bytes"), "reserved"),
                Query(_node("swapwarden_node_swap_total_bytes"), "total"),
            ),
        ),
        Panel(
            "Swap traffic of $node",
            "Pages read back, and written out.",
            units.BytesPerSecondIEC,
            (
                Query(_node_rate("swapwarden_node_swap_in_bytes_total"), "in"),
                Query(_node_rate("swapwarden_node_swap_out_bytes_total"), "out"),
            ),
        ),
        Panel(
            "Pressure on $node",
            "Share of the time in which some, or all (full), tasks waited for memory or for disks (PSI).",
            units.PercentUnit,
            (
                Query(
                    _node_rate("swapwarden_node_pressure_stalled_seconds_total", "resource", "kind"),
                    "{{resource}} {{kind}}",
                ),
            ),
        ),
        Panel(
            "Refaults on $node",
            "Pages a second that were evicted and soon needed again.",
            units.OpsPerSecond,
            (Query(_node_rate("swapwarden_node_refaults_total", "type"), "{{type}}"),),
        ),
        Panel(
            "Slices of $node",
            "Swap in use by slices of systemd that hold no pods.",
            units.BytesIEC,
            (Query(_node("swapwarden_slice_swap_usage_bytes", "slice"), "{{slice}}"),),
        ),
        Panel(
            "Limits met on $node",
            "Events a second of all pods: a memory limit met, a process killed; swap refused, at a limit or otherwise.",
            units.OpsPerSecond,
            (
                Query(_node_rate("swapwarden_pods_memory_events_total", "event"), "memory {{event}}"),
                Query(_node_rate("swapwarden_pods_swap_events_total", "event"), "swap {{event}}"),
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
            (Query(_largest(_node("swapwarden_pod_swap_usage_bytes", "pod_uid")), _POD),),
            "stacked",
            12,
        ),
        Panel(
            "Limits of pods",
            "What the pod may use: the least limit of its cgroup and those above. Pods without one are left out.",
            units.BytesIEC,
            (Query(_named(_LIMITED), _POD),),
            width=12,
        ),
        Panel(
            "Memory limits met by pods",
            "How often a second a limit of its memory was met. Pods with much in swap go on only because of that.",
            units.OpsPerSecond,
            (Query(_largest(_HITS), _POD),),
            width=12,
        ),
        Panel(
            "Exposure of pods",
            "For how long the pod was above its value, in all.",
            units.Seconds,
            (Query(_largest(_node("swapwarden_agent_pod_exposed_seconds_total", "pod_uid")), _POD),),
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
            (Query(f"sum(swapwarden_leader{{{_AGENTS}}})", "leaders"),),
            "number",
            4,
        ),
        Panel(
            "Certificate",
            "Until the webhook's certificate expires.",
            units.Seconds,
            (
                Query(
                    f"min(swapwarden_webhook_certificate_expiry_timestamp_seconds{{{_AGENTS}}} > 0) - time()",
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
            (Query(f"count by (component, version) (swapwarden_build_info{{{_AGENTS}}})"),),
            "table",
        ),
        Panel(
            "New pods",
            "From when a pod is on its node to when its limit holds: 99 of 100 are faster. As the controller hears of"
            " it, and as agents measure their part.",
            units.Seconds,
            (
                Query(_quantile(0.99, "swapwarden_pod_bind_to_enforced_seconds"), "the controller hears"),
                Query(_quantile(0.99, "swapwarden_agent_pod_enforced_seconds"), "agents"),
            ),
        ),
        Panel(
            "Controller latencies",
            "99 of 100 are faster: to plan a node, and to write an object.",
            units.Seconds,
            (
                Query(_quantile(0.99, "swapwarden_controller_plan_seconds"), "plan"),
                Query(_quantile(0.99, "swapwarden_controller_write_seconds", "object"), "write {{object}}"),
            ),
        ),
        Panel(
            "Queues",
            "Nodes that wait to be looked at, for how long they were due (99 of 100 less), and events that wait to be"
            " sent.",
            units.Short,
            (
                Query(f"max by (queue) (swapwarden_queue_depth{{{_AGENTS}}})", "{{queue}}"),
                Query(_quantile(0.99, "swapwarden_queue_wait_seconds", "queue"), "seconds that {{queue}} waited"),
                Query(f"max(swapwarden_events_waiting{{{_AGENTS}}})", "events"),
            ),
        ),
        Panel(
            "Lag of watches",
            "How long ago the API server last said something of a resource, to the controller that has heard least."
            " Up to a minute and a half is usual where nothing changes.",
            units.Seconds,
            (
                Query(
                    f"max by (resource) (time() - swapwarden_informer_last_event_timestamp_seconds{{{_AGENTS}}})",
                    "{{resource}}",
                ),
            ),
        ),
        Panel(
            "Agents' latencies",
            "99 of 100 are faster: from notice to verified repair, and to bring all cgroups to a new state.",
            units.Seconds,
            (
                Query(_quantile(0.99, "swapwarden_agent_repair_seconds"), "repair"),
                Query(_quantile(0.99, "swapwarden_agent_apply_seconds"), "apply"),
            ),
        ),
        Panel(
            "Webhook verdicts",
            "Answers a second.",
            units.RequestsPerSecond,
            (
                Query(
                    f"sum by (verdict) (rate(swapwarden_webhook_requests_total{{{_AGENTS}}}[{WINDOW}]))",
                    "{{verdict}}",
                ),
                Query(
                    f"sum by (code) (rate(swapwarden_webhook_bad_requests_total{{{_AGENTS}}}[{WINDOW}])) > 0",
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
                Query(_quantile(0.5, "swapwarden_webhook_request_seconds"), "median"),
                Query(_quantile(0.99, "swapwarden_webhook_request_seconds"), "99 of 100"),
            ),
        ),
        Panel(
            "Failures",
            "What failed and is tried again, a second: looks at nodes, agents' requests, watches.",
            units.OpsPerSecond,
            (
                Query(
                    f"sum by (kind) (rate(swapwarden_controller_failures_total{{{_AGENTS}}}[{WINDOW}]))",
                    "controller: {{kind}}",
                ),
                Query(
                    f"sum by (request) (rate(swapwarden_agent_api_errors_total{{{_AGENTS}}}[{WINDOW}]))",
                    "agents: {{request}}",
                ),
                Query(
                    f"sum by (resource, kind) (rate(swapwarden_informer_errors_total{{{_AGENTS}}}[{WINDOW}]))",
                    "watch of {{resource}}: {{kind}}",
                ),
            ),
        ),
    ),
)

ROWS: Final = (FLEET, NODE, PODS, CONTROL)


def queries() -> Iterator[Query]:
    """Yield all queries of all panels."""
    for row in ROWS:
        for panel in row.panels:
            yield from panel.queries


def plain(expression: str, *, namespace: str = ".*", node: str = "node", window: str = "5m") -> str:
    """An expression as Grafana sends it: with values in the place of its variables."""
    for name, value in (("$namespace", namespace), ("$node", node), (WINDOW, window)):
        expression = expression.replace(name, value)
    return expression


def _lines(panel: Panel) -> timeseries.Panel:
    made = (
        timeseries.Panel()
        .legend(
            options.VizLegendOptions()
            .display_mode(common.LegendDisplayMode.LIST)
            .placement(common.LegendPlacement.BOTTOM)
            .show_legend(show_legend=True)
        )
        .tooltip(options.VizTooltipOptions().mode(common.TooltipDisplayMode.MULTI).sort(common.SortOrder.DESCENDING))
        .min(0)
        .fill_opacity(10)
    )
    if panel.kind == "stacked":
        made = made.stacking(options.StackingConfig().mode(common.StackingMode.NORMAL)).fill_opacity(40)
    return made


def _number(_: Panel) -> stat.Panel:
    last = options.ReduceDataOptions().calcs(["lastNotNull"])
    made = stat.Panel().reduce_options(last).text_mode(common.BigValueTextMode.VALUE_AND_NAME)
    return made.color_mode(common.BigValueColorMode.NONE)


def _table(_: Panel) -> table.Panel:
    hidden = models.DataTransformerConfig(id_val="organize", options={"excludeByName": {"Time": True}})
    return table.Panel().align(common.FieldTextAlignment.AUTO).with_transformation(hidden)


_KINDS: Final[dict[str, Callable[[Panel], timeseries.Panel | stat.Panel | table.Panel]]] = {
    "lines": _lines,
    "stacked": _lines,
    "number": _number,
    "table": _table,
}


def _panel(panel: Panel) -> timeseries.Panel | stat.Panel | table.Panel:
    made = _KINDS[panel.kind](panel)
    made.title(panel.title).description(panel.description).unit(panel.unit).datasource(SOURCE)
    made.height(8).span(panel.width)
    for number, query in enumerate(panel.queries):
        target = (
            prometheus.Dataquery().expr(query.expression).legend_format(query.legend).ref_id(chr(ord("A") + number))
        )
        if panel.kind == "table":
            target.instant().format(queried.PromQueryFormat.TABLE)
        made.with_target(target)
    return made


def build() -> models.Dashboard:
    """The dashboard in Grafana's own types."""
    named = dashboards.QueryVariable("namespace").label("Namespace").query("label_values(swapwarden_leader, namespace)")
    node = dashboards.QueryVariable("node").label("Node")
    node.query('label_values(swapwarden_node_swap_total_bytes{namespace=~"$namespace"}, node)')
    for variable in (named, node):
        variable.datasource(SOURCE).refresh(models.VariableRefresh.ON_TIME_RANGE_CHANGED)
        variable.sort(models.VariableSort.ALPHABETICAL_ASC)
    named.include_all(include_all=True).all_value(".*").multi(multi=True)
    made = (
        dashboards.Dashboard(TITLE)
        .uid(UID)
        .description("Swap of nodes and pods, and how Swapwarden holds it to what was asked for.")
        .tags(["swap", "kubernetes"])
        .refresh("1m")
        .time("now-6h", "now")
        .timezone(common.TimeZoneBrowser)
        .tooltip(models.DashboardCursorSync.CROSSHAIR)
        .with_variable(dashboards.DatasourceVariable("datasource").label("Data source").type("prometheus"))
        .with_variable(named)
        .with_variable(node)
    )
    numbers = itertools.count(1)
    for row in ROWS:
        made.with_row(dashboards.Row(row.title).id(next(numbers)))
        for panel in row.panels:
            made.with_panel(_panel(panel).id(next(numbers)))
    return made.build()


def rendered() -> str:
    """The dashboard as the JSON that Grafana imports."""
    return json.dumps(json.loads(encoder.JSONEncoder(sort_keys=True, indent=2).encode(build())), indent=2) + "\n"
