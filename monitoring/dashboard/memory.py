"""The dashboard's row about memory QoS."""

from typing import Final

from grafana_foundation_sdk.models import units

from monitoring.dashboard.panels import (
    AGENTS,
    POD,
    WINDOW,
    Panel,
    Query,
    Row,
    fleet,
    largest,
    of_node,
    of_nodes,
    rate_of_node,
)

_THROTTLED: Final = rate_of_node("swapwarden_pod_memory_events_total", "pod_uid", matchers='event="high"')
_PROTECTED: Final = "swapwarden_node_memory_protected_bytes"

MEMORY: Final = Row(
    "Memory QoS",
    (
        Panel(
            "Protected memory",
            "Memory that is protected for all pods of a node, as a share of the node's: memory.low and memory.min"
            " together. The ten nodes with the largest share.",
            units.PercentUnit,
            (
                Query(
                    f"topk(10, sum by (cluster, node) (max by (cluster, node, file) ({_PROTECTED}{{{AGENTS}}}))"
                    f" / max by (cluster, node) (swapwarden_node_memory_total_bytes{{{AGENTS}}} > 0) > 0)",
                    "{{node}}",
                ),
            ),
        ),
        Panel(
            "Protected memory on $node",
            "Memory that is protected for all pods of the node, by file, and the node's memory.",
            units.BytesIEC,
            (
                Query(of_node(_PROTECTED, "file"), "{{file}}"),
                Query(of_node("swapwarden_node_memory_total_bytes"), "the node's memory"),
            ),
        ),
        Panel(
            "Protection that falls short",
            "Nodes whose pods ask for more protected memory than the node has (ProtectionOvercommitted), or where a"
            " cgroup above all pods takes their protection away (ProtectionIneffective).",
            units.Short,
            (
                Query(
                    "max by (cluster, node) (swapwarden_controller_node_problem"
                    f'{{{AGENTS},problem="ProtectionOvercommitted"}})',
                ),
                Query(
                    "max by (cluster, node, type) (swapwarden_agent_condition"
                    f'{{{AGENTS},type="ProtectionIneffective",status="True"}})',
                ),
            ),
            "table",
        ),
        Panel(
            "Throttled pods of $node",
            "How often a second the kernel throttled a pod at its memory.high, or at that of one of its containers.",
            units.OpsPerSecond,
            (Query(largest(_THROTTLED), POD),),
        ),
        Panel(
            "Trips of the guard",
            "Pods and containers that stood still at memory.high, by cause and what the guard made of it. In the last"
            " hour.",
            units.Short,
            (
                Query(
                    f"sum by (cause, phase) (increase(swapwarden_agent_throttle_trips_total{{{AGENTS}}}[1h]) > 0)",
                    "{{cause}}: {{phase}}",
                ),
            ),
            "stacked",
        ),
        Panel(
            "Eased cgroups",
            "Pods and containers whose memory.high the guard holds above the plan, and the time a second for which such"
            " ones stalled before the guard acted.",
            units.Short,
            (
                Query(f"{fleet('swapwarden_agent_throttle_eased_cgroups')}", "eased"),
                Query(of_nodes("swapwarden_agent_throttle_stalled_seconds_total"), "stalled seconds a second"),
            ),
        ),
        Panel(
            "Repairs of memory files",
            "Files of memory QoS that systemd or a kubelet reset and that were repaired, a second.",
            units.OpsPerSecond,
            (Query(f"sum by (file) (rate(swapwarden_agent_memory_repairs_total{{{AGENTS}}}[{WINDOW}]))", "{{file}}"),),
            "stacked",
        ),
    ),
)
