"""When a node under memory pressure carries the taint, and when it loses it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from swapwarden.api import names
from swapwarden.policy.fleet.inventory import NodeInventory
from swapwarden.policy.fleet.view import NodeView
from swapwarden.policy.node import taints

KEPT_SECONDS: Final = 300.0
"""How long the taint remains after the pressure, as the kubelet's MemoryPressure does."""


class PressureMemory:
    """When the pressure of nodes with the taint ended, in this term: a new leader waits for the whole time."""

    def __init__(self, inventory: NodeInventory, again: Callable[[str, float], None], now: Callable[[], float]) -> None:
        """`again(node, delay)` has a node reconciled once more; `now` is a monotonic clock in seconds."""
        self._inventory = inventory
        self._again = again
        self._now = now
        self._ended: dict[str, float] = {}

    def desired(self, view: NodeView) -> names.TaintEffect | None:
        """Return the effect of the taint that the node should carry now; None for no taint.

        The last report of an agent that is away does not count: nobody would take it back.
        """
        name = view.node.name
        pressed = view.report is not None and view.report.pressure is not None and self._inventory.has_agent(name)
        lately = False
        if pressed or view.node.place(names.PRESSURE_TAINT) is None:
            self.forget(name)
        else:
            left = self._ended.setdefault(name, self._now()) + KEPT_SECONDS - self._now()
            lately = left > 0
        effect = taints.desired_under_pressure(
            view.profile.node, view.profile.pressure, view.node, pressed=pressed, lately=lately
        )
        if lately and effect is not None:
            self._again(name, left)
        return effect

    def forget(self, node: str) -> None:
        """Forget a node, which is under pressure, has no taint, or is gone."""
        self._ended.pop(node, None)
