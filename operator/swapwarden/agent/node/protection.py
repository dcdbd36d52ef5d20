"""Finds the cgroup above all pods that makes the protection of their memory ineffective. Reads, and decides.

Below a cgroup that protects less than those in it ask for, the kernel scales them down: to nothing below one at 0
(effective_protection in the kernel's mm/page_counter.c). Swapwarden writes no cgroups above that of all pods.
"""

from __future__ import annotations

import contextlib
from collections.abc import Mapping

import msgspec

from swapwarden.agent.host import cgroupfs


class Shortfall(msgspec.Struct, frozen=True):
    """A cgroup above all pods that protects less than they ask for. Bytes."""

    path: str
    """Empty: the root of the agent's view, which in a node inside a container is a cgroup as well."""
    file: str
    """memory.min or memory.low."""
    found: int
    needed: int


def shortfall(cgroups: cgroupfs.Cgroups, root: str, needed: Mapping[str, int]) -> Shortfall | None:
    """Return the cgroup above `root`, that of all pods, that leaves the least of what they need, by file.

    The kernel's own root, and cgroups without the memory controller, have no such files and take nothing away.
    """
    worst: Shortfall | None = None
    for path in ("", *reversed(list(cgroupfs.above(root)))):
        for file, least in needed.items():
            with contextlib.suppress(cgroupfs.CgroupError):
                found = cgroups.read(cgroupfs.join(path, file))
                if found < least and (worst is None or found < worst.found):
                    worst = Shortfall(path, file, found, least)
    return worst
