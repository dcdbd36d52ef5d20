"""Diagnoses a node's swap configuration, with remedies. All but `shortfall`, which reads cgroups, is pure.

The rules follow KEP-2400, the Kubernetes page on swap memory management, and the code of kernel and kubelet.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping
from typing import Final

import msgspec

from swapwarden.agent.desired import throttle
from swapwarden.agent.host import cgroup_files, cgroupfs
from swapwarden.agent.inventory import board
from swapwarden.agent.node import eviction_order, node_info
from swapwarden.api import state
from swapwarden.api.conditions import ConditionType

_MIB: Final = 1 << 20
_PROPERTIES: Final = {file.name: file.systemd_property for file in cgroup_files.OF_MEMORY}
_LIMITED: Final = "LimitedSwap"
_PODS: Final = "pods"
"""In enforceNodeAllocatable: the kubelet limits the memory of all pods together."""
_DETAIL: Final = 120
"""Characters of an error's text in a message."""
_LOOK: Final = "look at the log of the pod of swapwarden nri on this node"
_NRI: Final = {
    "NoSocket": (
        "the container runtime offers no NRI",
        "enable NRI in its configuration (docs/compatibility.md), or set nri.mode to off in the chart",
    ),
    "PluginAway": ("swapwarden nri is not connected to this agent", "look at its pod on this node"),
    "Unresponsive": (
        "swapwarden nri does not read its messages: the process is stopped, or gets no CPU",
        "raise nri.resources.requests.cpu in the chart, or delete its pod on this node",
    ),
    "Refused": ("the container runtime refuses swapwarden nri", _LOOK),
    "Lost": ("swapwarden nri has lost the container runtime", "look at the runtime's log on the node"),
    "Dropped": (
        "the runtime did not wait for a late answer of swapwarden nri and started a container without it",
        "raise nri.resources.requests.cpu in the chart",
    ),
    "LinkFailed": ("swapwarden nri cannot reach this agent", "give the agent a writable folder as --nri-dir"),
    "Slow": (
        "the start of pods did not wait for this agent, so their cgroups may have had no limit at first",
        "give the agent more CPU by its requests, or turn agent.realtime on",
    ),
}
"""Messages and remedies by reason."""


class Shortfall(msgspec.Struct, frozen=True):
    """A cgroup above all pods that protects less than they ask for. Bytes."""

    path: str
    """Empty: the root of the agent's view, which in a node inside a container is a cgroup as well."""
    file: str
    """memory.min or memory.low."""
    observed: int
    needed: int


def shortfall(cgroups: cgroupfs.Cgroups, root: str, needed: Mapping[str, int]) -> Shortfall | None:
    """Return the cgroup above `root`, that of all pods, that leaves the least of what they need, by file.

    Below a cgroup that protects less than those in it ask for, the kernel scales them down: to nothing below one at 0
    (effective_protection in the kernel's mm/page_counter.c). Swapwarden writes no cgroups above that of all pods. The
    kernel's own root, and cgroups without the memory controller, have no such files and take nothing away.
    """
    worst: Shortfall | None = None
    for path in ("", *reversed(list(cgroupfs.above(root)))):
        for file, least in needed.items():
            with contextlib.suppress(cgroupfs.CgroupError):
                observed = cgroups.read(cgroupfs.join(path, file))
                if observed < least and (worst is None or observed < worst.observed):
                    worst = Shortfall(path, file, observed, least)
    return worst


class Diagnostic(msgspec.Struct, frozen=True):
    """A problem, or a risk, of the node's configuration."""

    kind: ConditionType
    reason: str
    """In CamelCase, for programs."""
    message: str
    remedy: str


def conditions(
    facts: state.Facts,
    seen: node_info.NodeLook,
    lost: int = 0,
    runtime: board.RuntimeStatus | None = None,
    *,
    storm: bool = False,
    short: Shortfall | None = None,
) -> Iterator[Diagnostic]:
    """Yield the diagnostics that a node's state reports as conditions; most of it concerns nodes with swap only.

    `lost` is how often the kernel dropped events recently, `runtime` how the plugin of the container runtime stands;
    None if there should be none. `storm`: many cgroups stood still at memory.high at once. `short` is the cgroup above
    all pods that makes their protection ineffective.
    """
    if facts.devices:
        yield from _conditions(facts, seen)
    yield from _of_memory(storm=storm, short=short)
    if runtime is not None and runtime.reason:
        message, remedy = _NRI.get(runtime.reason, _NRI["Refused"])
        detail = "".join(each if each.isprintable() else "?" for each in runtime.message[:_DETAIL])
        message = f"{message}: {detail}" if detail else message
        yield Diagnostic(ConditionType.NRI_UNAVAILABLE, runtime.reason, message, remedy)
    if lost:
        yield Diagnostic(
            ConditionType.EVENTS_LOST,
            "QueueOverflow",
            f"the kernel dropped events about cgroups {lost} times recently, because too many came at once;"
            " all cgroups were compared instead, which takes longer",
            "raise fs.inotify.max_queued_events and restart the agent",
        )


def _of_memory(*, storm: bool, short: Shortfall | None) -> Iterator[Diagnostic]:
    if storm:
        yield Diagnostic(
            ConditionType.THROTTLING_STORM,
            "ManyStandstills",
            f"pods stood still at memory.high {throttle.STORM_TRIPS} times or more within a minute: the node's swap is"
            " full or too slow for them",
            "give the node more or faster swap, raise memoryQoS.throttlingPercent, or set withoutSwap to Skip"
            " (status.throttled has the pods)",
        )
    if short is not None:
        what = "nothing" if short.observed == 0 else f"no more than {_mib(short.observed)}"
        node = "" if short.path else " (the node itself runs in it)"
        yield Diagnostic(
            ConditionType.PROTECTION_INEFFECTIVE,
            "AncestorTooLow",
            f"{short.file} of the cgroup /{short.path[-_DETAIL:]}{node} is {short.observed}, and pods below it ask for"
            f" {_mib(short.needed)}: the kernel protects {what} of their memory",
            f"set {short.file} of that cgroup to {short.needed} or more (as {_PROPERTIES[short.file]}= of its unit)",
        )


def _conditions(facts: state.Facts, seen: node_info.NodeLook) -> Iterator[Diagnostic]:
    configuration = seen.configuration
    if configuration is not None and configuration.fail_swap_on:
        yield Diagnostic(
            ConditionType.KUBELET_WILL_NOT_START,
            "FailSwapOn",
            "swap is on, and the kubelet's configuration has failSwapOn: true, its default",
            "set failSwapOn: false, or turn swap off (the flag --fail-swap-on=false works too, but is not visible)",
        )
    unlimited = seen.containers.without > 0 and not seen.containers.limited
    if configuration is not None and configuration.swap_behavior == _LIMITED and unlimited:
        yield Diagnostic(
            ConditionType.KUBELET_SETS_NO_LIMITS,
            "ContainersAtMax",
            "the kubelet is configured for LimitedSwap, but containers of Burstable pods have no swap limit:"
            " it finds no swap controller in its own cgroup",
            "run the kubelet below the root cgroup (a systemd service), or have a profile give LimitedSwap",
        )
    order = order_of(seen)
    if order is not None:
        yield from _evictions(order)
    if secrets_reach_disk(facts, seen):
        yield Diagnostic(
            ConditionType.SECRETS_ON_DISK,
            "NoTmpfsNoswap",
            "Secrets can be swapped to a disk in the clear: no tmpfs noswap, swap is not encrypted, and the kubelet,"
            " which owns their pages, may swap",
            "kernel 6.4 or newer, encrypted swap, or MemorySwapMax=0 for the kubelet's unit",
        )


def order_of(seen: node_info.NodeLook) -> eviction_order.EvictionOrder | None:
    """Return the first event when the node runs out of memory; None if that is unknown."""
    if seen.configuration is None or seen.memory is None:
        return None
    limits_pods = _PODS in seen.configuration.enforce_node_allocatable
    return eviction_order.find(seen.memory, seen.configuration.threshold, limits_pods=limits_pods)


def _evictions(order: eviction_order.EvictionOrder) -> Iterator[Diagnostic]:
    between = f"set evictionHard memory.available between {_mib(order.safe)} and {_mib(order.swaps)}"
    apart = "which a larger vm.watermark_scale_factor moves apart"
    if order.first is eviction_order.FirstEvent.NODE_EVICTION:
        yield Diagnostic(
            ConditionType.EVICTION_BEFORE_SWAP,
            "NodeThreshold",
            f"the kubelet evicts below {_mib(order.threshold)} of memory.available, but the kernel swaps only below"
            f" {_mib(order.swaps)}",
            f"{between}, {apart}",
        )
    elif order.first is eviction_order.FirstEvent.PODS_EVICTION:
        yield Diagnostic(
            ConditionType.EVICTION_BEFORE_SWAP,
            "AllocatableThreshold",
            f"the kubelet evicts when pods use {_mib(order.pods_threshold)}, but the kernel swaps only when they use"
            f" {_mib(order.pods_swap)}",
            f"reserve at most {_mib(order.reservable)} (now {_mib(order.reserved)}) by systemReserved and kubeReserved,"
            " or leave pods out of enforceNodeAllocatable",
        )
    elif order.first is eviction_order.FirstEvent.OOM_KILLER:
        threshold = f"below {_mib(order.threshold)}" if order.threshold else "never"
        yield Diagnostic(
            ConditionType.OOM_KILL_BEFORE_EVICTION,
            "ThresholdTooLow" if order.threshold else "NoThreshold",
            f"the kernel is out of memory at {_mib(order.kills)} of memory.available and kills, but the kubelet evicts"
            f" {threshold}",
            f"{between}, {apart}",
        )


def secrets_reach_disk(facts: state.Facts, seen: node_info.NodeLook) -> bool:
    """Return whether pages of Secret volumes can reach a disk in the clear; unknown counts as yes."""
    in_the_clear = not all(device.encrypted for device in facts.devices)
    return not facts.tmpfs_noswap and in_the_clear and seen.kubelet_swaps is not False


def _mib(size: int) -> str:
    return f"{size / _MIB:.0f} MiB"
