"""A profile's settings about its nodes, and those of the kernel that are safe for a node."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

import msgspec

from swapwarden.api import names, state
from swapwarden.policy.observed import nodes

MIN_FREE: Final = "vm.min_free_kbytes"
MIN_FREE_PERCENT: Final = 5
"""The largest share of a node's memory that may be kept free.

The kernel itself chooses 4 * sqrt(memory in KiB), at most 256 MiB (calculate_min_free_kbytes, mm/page_alloc.c). Its
documentation (admin-guide/sysctl/vm.rst) warns that a machine with too high a value runs out of memory at once. It
starts to reclaim at a quarter more.
"""


class NodeOptions(msgspec.Struct, frozen=True):
    """A profile's settings about Nodes and their systems, compiled."""

    enforce: bool = True
    """Whether the profile's mode is Enforce: in another mode, Nodes get neither taints nor the extended resource."""
    taint_effect: names.TaintEffect | None = None
    """The effect of the taint of nodes with swap; None: they have none."""
    extended_resource: bool = False
    kernel: tuple[tuple[str, str], ...] = ()
    """Settings of the kernel, by name, as their files take them."""
    units: tuple[tuple[str, state.UnitSettings], ...] = ()
    """Settings of slices and services, by name."""


class KernelPlan(msgspec.Struct, frozen=True):
    """The kernel settings of its profile that a node should have, by name."""

    values: dict[str, str]
    refused: dict[str, str]
    """Settings that are not written, with the reason and the remedy."""


def plan_kernel(asked: Iterable[tuple[str, str]], facts: nodes.NodeFacts) -> KernelPlan:
    """Refuse settings that would make a node unusable."""
    planned = KernelPlan({}, {})
    for name, value in asked:
        refusal = _refusal(int(value), facts.memory_bytes) if name == MIN_FREE else ""
        if refusal:
            planned.refused[name] = refusal
        else:
            planned.values[name] = value
    return planned


def _refusal(kib: int, memory: int) -> str:
    if not memory:
        return f"{kib} KiB: the node has not reported its memory yet; the limit is {MIN_FREE_PERCENT} % of it"
    most = memory * MIN_FREE_PERCENT // 100 // 1024
    if kib <= most:
        return ""
    return (
        f"{kib} KiB are more than {MIN_FREE_PERCENT} % of the node's memory; ask for at most {most}, or give nodes of"
        " this size a profile of their own"
    )
