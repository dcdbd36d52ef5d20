"""Reads the kernel's totals of stalls, and of the reclaim that shows whether memory was short meanwhile."""

from __future__ import annotations

import logging
import pathlib
from collections.abc import Mapping
from typing import Final

import msgspec

from swapwarden.agent.host import cgroupfs, files
from swapwarden.agent.inventory import inventory
from swapwarden.agent.pressure import signals
from swapwarden.api import names

log = logging.getLogger(__name__)
_REFAULTS: Final = ("workingset_refault_anon", "workingset_refault_file")


class NodeTotals(msgspec.Struct, frozen=True):
    """The kernel's totals of a node. Its counts of reclaim leave out reclaim at the limits of cgroups."""

    full: float
    """Seconds in which all tasks waited for memory."""
    counted: Mapping[str, int]
    """/proc/vmstat."""


def of_node(proc: pathlib.Path) -> NodeTotals | None:
    """Return the totals; None if the kernel does not report stalls. Any thread may call it."""
    full = _full(cgroupfs.stalls(files.text(proc / "pressure/memory") or ""))
    return None if full is None else NodeTotals(full, cgroupfs.counts(files.text(proc / "vmstat") or ""))


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
        if (node := of_node(self._proc)) is not None:
            scanned = _sum(node.counted, "pgscan_kswapd", "pgscan_direct")
            pages = _pages(node.counted, "pgsteal_kswapd", "pgsteal_direct")
            found[names.PressureScope.NODE] = signals.StallTotals(node.full, scanned, *pages)
        else:
            self._log(names.PressureScope.NODE)
        root = self._known.root_path
        if root is None:
            return found
        if (full := _full(self._pressure(root))) is not None:
            found[names.PressureScope.PODS] = self._of_pods(full, root)
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

    def _of_pods(self, full: float, root: str) -> signals.StallTotals:
        """Count how often all pods together met their limit."""
        limited = _sum(self._counts(root, cgroupfs.MEMORY_EVENTS_LOCAL), "max", "high")
        return signals.StallTotals(full, limited, *_pages(self._counts(root, cgroupfs.MEMORY_STAT), "pgsteal"))

    def _counts(self, root: str, file: str) -> Mapping[str, int]:
        try:
            return self._fs.counts(root, file)
        except cgroupfs.CgroupError:
            return {}

    def _pressure(self, root: str) -> Mapping[str, int]:
        try:
            return self._fs.pressure(root, "memory")
        except cgroupfs.CgroupError:
            return {}


def _full(stalls: Mapping[str, int]) -> float | None:
    """Return the seconds in which all tasks stalled; None if they are not among these."""
    return stalls["full"] / 1e6 if "full" in stalls else None


def _sum(counted: Mapping[str, int], *names: str) -> int | None:
    return sum(counted[name] for name in names) if counted.keys() >= set(names) else None


def _pages(counted: Mapping[str, int], *reclaimed: str) -> tuple[int, int]:
    """Return the pages that were reclaimed, and those that were needed again; zeros if either is unknown."""
    out, back = _sum(counted, *reclaimed), _sum(counted, *_REFAULTS)
    return (0, 0) if out is None or back is None else (out, back)
