"""The dashboard's row about memory pressure: nodes, decisions and evictions."""

from typing import Final

from grafana_foundation_sdk.models import units

from monitoring.dashboard.panels import AGENTS, WINDOW, Panel, Query, Row, quantile

PRESSURE: Final = Row(
    "Memory pressure",
    (
        Panel(
            "Nodes under memory pressure",
            "Nodes with a signal of spec.pressure, by signal; held: pods should be evicted, and none is, by reason.",
            units.Short,
            (
                Query(
                    "count by (signal) (max by (cluster, node, signal)"
                    f' (swapwarden_node_memory_pressure{{{AGENTS},scope!="pod"}}) == 1)',
                    "{{signal}}",
                ),
                Query(
                    "count by (reason) (max by (cluster, node, reason)"
                    f" (swapwarden_controller_node_evictions_held{{{AGENTS}}}) == 1)",
                    "held {{reason}}",
                ),
            ),
        ),
        Panel(
            "Evictions",
            "Pods chosen to be evicted from nodes under memory pressure (mode Enforce), by result. In an hour.",
            units.Short,
            (
                Query(
                    f"sum by (result) (increase(swapwarden_controller_evictions_total{{{AGENTS}}}[1h])) > 0",
                    "{{result}}",
                ),
            ),
            "stacked",
        ),
        Panel(
            "Reports without an eviction",
            "Reports of memory pressure after which no pod was evicted, by reason. A second.",
            units.OpsPerSecond,
            (
                Query(
                    f"sum by (reason) (rate(swapwarden_controller_pressure_holds_total{{{AGENTS}}}[{WINDOW}])) > 0",
                    "{{reason}}",
                ),
            ),
            "stacked",
        ),
        Panel(
            "From a report to the eviction",
            "Time from a report to the decision, and to the request for an eviction: the slowest 1 %.",
            units.Seconds,
            (
                Query(quantile(0.99, "swapwarden_controller_pressure_decision_seconds"), "decision"),
                Query(quantile(0.99, "swapwarden_controller_eviction_request_seconds"), "request"),
            ),
        ),
    ),
)
