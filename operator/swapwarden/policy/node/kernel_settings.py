"""Settings of a node's kernel, within safe bounds for the node."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

import msgspec

from swapwarden.policy.observed import nodes

MIN_FREE: Final = "vm.min_free_kbytes"
MIN_FREE_PERCENT: Final = 5
"""The largest share of a node's memory that may be kept free.

The kernel itself chooses 4 * sqrt(memory in KiB), at most 256 MiB (calculate_min_free_kbytes, mm/page_alloc.c). Its
documentation (admin-guide/sysctl/vm.rst) warns that a machine with too high a value runs out of memory at once. It
starts to reclaim at a quarter more.
"""


class Plan(msgspec.Struct, frozen=True):
    """The settings of its profile that a node should have, by name."""

    values: dict[str, str]
    refused: dict[str, str]
    """With the reason and the remedy."""


def plan(asked: Iterable[tuple[str, str]], facts: nodes.NodeFacts) -> Plan:
    """Refuse settings that would make a node unusable."""
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
        return f"{kib} KiB: the node has not reported its memory yet; the limit is {MIN_FREE_PERCENT} % of it"
    most = memory * MIN_FREE_PERCENT // 100 // 1024
    if kib <= most:
        return ""
    return (
        f"{kib} KiB are more than {MIN_FREE_PERCENT} % of the node's memory; ask for at most {most}, or give nodes of"
        " this size a profile of their own"
    )
