"""A decision under memory pressure with its numbers, for events and users."""

from __future__ import annotations

from typing import Final

from swapwarden.api import names, state
from swapwarden.policy.pressure.candidates import SAFE_TO_EVICT
from swapwarden.policy.pressure.limits import HoldReason
from swapwarden.policy.pressure.ranking import LEAST_PERCENT, Ranked, Spared

_MI: Final = 2**20

WHY_SPARED: Final = {
    Spared.NOT_MEASURED: "it is not among the node's largest pods",
    Spared.NOT_RUNNING: "it does not run",
    Spared.TERMINATING: "it ends already",
    Spared.STATIC: "it is a static pod",
    Spared.CRITICAL: "it is critical",
    Spared.NAMESPACE_EXCLUDED: "its namespace is excluded",
    Spared.DAEMON_SET: "a DaemonSet would start it again on this node",
    Spared.UNMANAGED: "no controller would replace it",
    Spared.KEPT_BY_OWNER: f"its annotation {SAFE_TO_EVICT} is false",
    Spared.SMALL: f"it uses less than {LEAST_PERCENT}% of the node's memory",
    Spared.NOT_SWAPPING: "it has nothing in swap and reads nothing back",
    Spared.WITHIN_GRANT: "it keeps within its memory request and its swap",
}
"""Why a pod is not chosen, in words."""


WHY_HELD: Final = {
    HoldReason.STALE: "its agent has yet to report again",
    HoldReason.SETTLING: "a pod was evicted from it already, and its signals have yet to follow",
    HoldReason.WIDESPREAD: "most nodes of its profile are under pressure, so that evictions would only move the load",
    HoldReason.KUBELET_EVICTING: "its kubelet evicts pods, or did a moment ago",
    HoldReason.POD_TERMINATING: "a pod that ends will free memory",
    HoldReason.NO_CANDIDATE: "no pod that may be evicted uses more than its memory request and its swap",
    HoldReason.BLOCKED: "the API server would evict none of the pods that exceed their memory requests and swap",
    HoldReason.NODE_LIMIT: "as many of its pods were evicted within an hour as its profile allows",
    HoldReason.RATE_LIMIT: "as many pods of other nodes were evicted a moment ago as are allowed",
}
"""Why no pod is chosen, in words."""


def arithmetic(one: Ranked) -> str:
    """Return the usage of a measured pod beside what it may use: usage 912Mi (memory 700Mi + swap 212Mi) > ..."""
    measured = one.measured or state.PressuredPod("")
    # Sizes in whole Mi could look equal, or add up to something else.
    exact = abs(one.excess) < 4 * _MI
    sign = ">" if one.excess > 0 else "<="
    used = f"memory {_size(measured.working_set_bytes, exact=exact)} + swap {_size(measured.swap_bytes, exact=exact)}"
    granted = f"request {_size(one.pod.request, exact=exact)} + swap {_size(one.pod.swap, exact=exact)}"
    return f"usage {_size(one.usage, exact=exact)} ({used}) {sign} {granted}; priority {one.pod.priority}"


def pressure(report: state.PressureReport, thresholds: state.PressureSettings | None) -> str:
    """Return what the node's agent reports: headroom 310Mi < 400Mi."""
    where, bound = "pods" if report.scope == names.PressureScope.PODS else "node", ""
    # A signal stays until it is cleared, at another bound.
    if report.signal == names.PressureSignal.STALL:
        if thresholds is not None:
            full = thresholds.stall.full_permille
            bound = f" > {_share(full if report.stall_permille > full else full / 2)}"
        return f"{where} stalled {_share(report.stall_permille)}{bound} of the time"
    if thresholds is not None:
        below, clear = thresholds.headroom.below_bytes, thresholds.headroom.clear_bytes
        bound = f" < {_size(below if report.headroom_bytes < below else clear)}"
    return f"{where} headroom {_size(report.headroom_bytes)}{bound}"


def _share(permille: float) -> str:
    return f"{permille / 10:g}%"


def _size(number: int, *, exact: bool = False) -> str:
    return str(number) if exact else f"{number // _MI}Mi"
