"""Nodes whose agent has gone silent, whatever profile they are under."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Final

from swapwarden.controller import cluster
from swapwarden.telemetry import metrics

SILENT = metrics.gauge(
    "swapwarden_controller_nodes_silent",
    "Nodes whose agent acted on a state once and that have no Ready agent now. Every instance has it.",
)

INTERVAL_SECONDS: Final = 15.0
"""Between two counts. Each looks at all pods, and alerts wait for minutes."""


def count(known: cluster.Cluster) -> int:
    """How many nodes are silent. One that never had an agent may be meant to have none."""
    return sum(_reported(known, name) and not known.has_agent(name) for name in known.nodes)


def _reported(known: cluster.Cluster, name: str) -> bool:
    row = known.report_of(name)
    return row is not None and row.observed > 0


async def watch(known: cluster.Cluster, ready: Callable[[], bool], interval: float = INTERVAL_SECONDS) -> None:
    """Publish the count every `interval` seconds, for ever; nothing while not all is known (`ready`)."""
    while True:
        if ready():
            SILENT.set(count(known))
        await asyncio.sleep(interval)
