"""The dashboard as Grafana imports it, built with the types that Grafana publishes of its own schema."""

import itertools
import json
from collections.abc import Callable
from typing import Final

from grafana_foundation_sdk.builders import common as options
from grafana_foundation_sdk.builders import dashboard as dashboards
from grafana_foundation_sdk.builders import prometheus, stat, table, timeseries
from grafana_foundation_sdk.cog import encoder
from grafana_foundation_sdk.models import common
from grafana_foundation_sdk.models import dashboard as models
from grafana_foundation_sdk.models import prometheus as queried

from monitoring.dashboard.panels import Panel
from monitoring.dashboard.rows import ROWS

UID: Final = "swapwarden"
TITLE: Final = "Swapwarden"
SOURCE: Final = models.DataSourceRef(type_val="prometheus", uid="${datasource}")


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
    """Return the dashboard in Grafana's own types."""
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
        .description("Swap of nodes and pods, and how Swapwarden holds it to policies.")
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
    """Return the dashboard as the JSON that Grafana imports."""
    return json.dumps(json.loads(encoder.JSONEncoder(sort_keys=True, indent=2).encode(build())), indent=2) + "\n"
