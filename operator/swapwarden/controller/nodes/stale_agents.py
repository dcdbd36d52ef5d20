"""Nodes whose agent has become silent, under any profile."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Final

from swapwarden.policy.fleet.inventory import NodeInventory
from swapwarden.telemetry import metrics

SILENT = metrics.gauge(
    "swapwarden_controller_nodes_silent",
    "Nodes whose agent acted on a state once and that have no Ready agent now. Every instance has it.",
)
BY_NAME = metrics.reading(
    "gauge",
    "swapwarden_controller_node_silent",
    "1 for each node that swapwarden_controller_nodes_silent counts, and nothing for others.",
    labels=("node",),
)

INTERVAL_SECONDS: Final = 15.0
"""Seconds between two checks. Each reads all pods, and alerts wait for minutes."""


def silent(known: NodeInventory) -> list[str]:
    """Return the names of silent nodes. A node that never had an agent may be meant to have none."""
    return [name for name in known.nodes if _reported(known, name) and not known.has_agent(name)]


def _reported(known: NodeInventory, name: str) -> bool:
    # A deleted state is no sign of life.
    row = known.known(name).standing
    return row is not None and row.observed > 0


async def watch(known: NodeInventory, ready: Callable[[], bool], interval: float = INTERVAL_SECONDS) -> None:
    """Publish the silent nodes every `interval` seconds, until cancelled.

    `ready` returns whether the inventory is complete; until then nothing is published.
    """
    while True:
        if ready():
            names = silent(known)
            SILENT.set(len(names))
            BY_NAME.hold({(name,): 1.0 for name in names})
        await asyncio.sleep(interval)
