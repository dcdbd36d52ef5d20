"""Reads the kernel's totals of stalls, and of the reclaim that shows whether memory was short meanwhile."""

from __future__ import annotations

import logging
import pathlib
from collections.abc import Mapping

from swapwarden.agent.host import cgroupfs, files
from swapwarden.agent.inventory import inventory
from swapwarden.agent.node import swap_metrics
from swapwarden.agent.pressure import signals
from swapwarden.api import names

log = logging.getLogger(__name__)


class KernelTotals:
    """Totals of the node and of the cgroup above all pods. It logs once of each scope that its stalls are unknown."""

    def __init__(self, cgroups: cgroupfs.Cgroups, proc: pathlib.Path, known: inventory.Inventory) -> None:
        self._fs = cgroups
        self._proc = proc
        self._known = known
        self._logged: set[names.PressureScope] = set()

    def read(self) -> Mapping[names.PressureScope, signals.StallTotals]:
        """Return the totals by scope, without scopes whose stalls cannot be read."""
        found = {}
        if (full := _full(files.text(self._proc / "pressure/memory"))) is not None:
            found[names.PressureScope.NODE] = signals.StallTotals(full, self._scanned())
        else:
            self._log(names.PressureScope.NODE)
        root = self._known.root_path
        if root is None:
            return found
        if (full := _full(self._pressure(root))) is not None:
            found[names.PressureScope.PODS] = signals.StallTotals(full, self._limited(root))
        else:
            self._log(names.PressureScope.PODS)
        return found

    def _log(self, scope: names.PressureScope) -> None:
        if scope not in self._logged:
            self._logged.add(scope)
            log.warning(
                "no stall of this scope is a signal of memory pressure: the kernel does not report its stalls; boot"
                " with psi=1, a kernel with CONFIG_PSI",
                extra={"scope": scope},
            )

    def _scanned(self) -> int | None:
        """Return the pages scanned for want of memory on the node; reclaim of cgroups is not in these counts."""
        counted = cgroupfs.counts(files.text(self._proc / "vmstat") or "")
        return _sum(counted.get("pgscan_kswapd"), counted.get("pgscan_direct"))

    def _limited(self, root: str) -> int | None:
        """Return how often all pods together met their limit."""
        try:
            counted = self._fs.counts(root, cgroupfs.MEMORY_EVENTS_LOCAL)
        except cgroupfs.CgroupError:
            return None
        return _sum(counted.get("max"), counted.get("high"))

    def _pressure(self, root: str) -> str | None:
        try:
            return self._fs.pressure(root, "memory")
        except cgroupfs.CgroupError:
            return None


def _full(text: str | None) -> float | None:
    return swap_metrics.stalls(text or "").get("full")


def _sum(*counts: int | None) -> int | None:
    known = [each for each in counts if each is not None]
    return sum(known) if len(known) == len(counts) else None
