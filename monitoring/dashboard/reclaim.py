"""The dashboard's row about idle memory that is moved to swap."""

from typing import Final

from grafana_foundation_sdk.models import units

from monitoring.dashboard.panels import AGENTS, WINDOW, Panel, Query, Row, of_nodes, rate_of_node

_MOVED: Final = "swapwarden_agent_reclaim_moved_bytes_total"
_REFAULTED: Final = "swapwarden_agent_reclaim_refaulted_bytes_total"

RECLAIM: Final = Row(
    "Idle memory to swap",
    (
        Panel(
            "Idle memory moved to swap",
            "Swap that pods took while their idle memory was moved there, memory in use that became less by it, and"
            " swapped memory that these pods soon needed again. Of all nodes.",
            units.BytesPerSecondIEC,
            (
                Query(of_nodes(_MOVED), "moved"),
                Query(of_nodes("swapwarden_agent_reclaim_freed_bytes_total"), "freed"),
                Query(of_nodes(_REFAULTED), "needed again"),
            ),
        ),
        Panel(
            "Looks at idle pods",
            "Looks at pods whose idle memory may be moved, by result: Step, or why there was none. A second, of all"
            " nodes.",
            units.OpsPerSecond,
            (
                Query(
                    f"sum by (result) (rate(swapwarden_agent_reclaim_looks_total{{{AGENTS}}}[{WINDOW}])) > 0",
                    "{{result}}",
                ),
            ),
            "stacked",
        ),
        Panel(
            "Time to move idle memory",
            "Time a second for which the kernel moved idle memory, of all nodes.",
            units.Seconds,
            (Query(of_nodes("swapwarden_agent_reclaim_seconds_total"), "seconds a second"),),
        ),
        Panel(
            "Idle memory moved on $node",
            "Moved to swap, and needed again soon.",
            units.BytesPerSecondIEC,
            (
                Query(rate_of_node(_MOVED), "moved"),
                Query(rate_of_node(_REFAULTED), "needed again"),
            ),
        ),
    ),
)
