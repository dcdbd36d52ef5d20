"""Settings of a node's kernel: from a profile to what the files are to hold, within what a node can live with."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

import msgspec

from swapwarden.api import profile as api
from swapwarden.policy.observed import nodes

MIN_FREE: Final = "vm.min_free_kbytes"
MIN_FREE_PERCENT: Final = 5
"""Of a node's memory, the most that may be kept free of everything.

The kernel itself chooses 4 * sqrt(memory in KiB) and at most 256 MiB (calculate_min_free_kbytes, mm/page_alloc.c), and
warns that a value that is too high makes a machine run out of memory at once (Documentation/admin-guide/sysctl/vm.rst).
It starts to reclaim at a quarter more.
"""


class Plan(msgspec.Struct, frozen=True):
    """What a node is to have of the settings of its profile, by name."""

    values: dict[str, str]
    refused: dict[str, str]
    """With the reason, and the remedy."""


def settings(model: api.spec.Kernel) -> tuple[tuple[str, str], ...]:
    """What a profile asks for, by the names that states use (those of sysctl), as the kernel's files take it."""
    zswap = model.zswap or api.spec.Zswap()
    asked = {
        "vm.swappiness": model.swappiness,
        MIN_FREE: model.min_free_kbytes,
        "vm.watermark_scale_factor": model.watermark_scale_factor,
        "vm.page-cluster": model.page_cluster,
        "zswap.enabled": None if zswap.enabled is None else "Y" if zswap.enabled else "N",
        "zswap.compressor": zswap.compressor,
        "zswap.max_pool_percent": zswap.max_pool_percent,
    }
    return tuple((name, str(value)) for name, value in asked.items() if value is not None)


def plan(asked: Iterable[tuple[str, str]], facts: nodes.NodeFacts) -> Plan:
    """Keep from a node what would make it unusable."""
    found = Plan({}, {})
    for name, value in asked:
        refusal = _refusal(int(value), facts.memory_bytes) if name == MIN_FREE else ""
        if refusal:
            found.refused[name] = refusal
        else:
            found.values[name] = value
    return found


def _refusal(kib: int, memory: int) -> str:
    if not memory:
        return f"{kib} KiB: the node does not say yet how much memory it has, of which this may be {MIN_FREE_PERCENT} %"
    most = memory * MIN_FREE_PERCENT // 100 // 1024
    if kib <= most:
        return ""
    return (
        f"{kib} KiB are more than {MIN_FREE_PERCENT} % of the node's memory; ask for at most {most}, or give nodes of"
        " this size a profile of their own"
    )
