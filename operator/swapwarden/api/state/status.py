"""NodeSwapState.status: the report of one node's agent."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated

import msgspec

from swapwarden.api import conditions, names
from swapwarden.api.state.spec import ProfileRef

MAX_VIOLATIONS = 32
MAX_EXPOSURES = 32
MAX_THROTTLED = 32
MAX_AGENT_ONLY = 32
MAX_PRESSURED = 64
MAX_RECLAIMED = 64
MAX_DEVICES = 32
"""The most that a kernel takes (MAX_SWAPFILES, include/linux/swap.h), so that none is ever left out."""


class SwapDevice(msgspec.Struct, frozen=True, omit_defaults=True, rename="camel"):
    """One line of /proc/swaps."""

    name: Annotated[str, msgspec.Meta(max_length=256)]
    """Path of the partition or file."""
    type: Annotated[str, msgspec.Meta(max_length=32)]
    """partition or file, as the kernel reports it."""
    size_bytes: Annotated[int, msgspec.Meta(ge=0)]
    """Size in bytes."""
    priority: int = 0
    """The kernel uses devices with a higher priority first."""
    backing: Annotated[str, msgspec.Meta(max_length=32)] = names.Backing.UNKNOWN
    """Hardware of the device: NVMe, SSD, HDD, Virtual (a hypervisor's disk), Network, Zram, Loop, File, Mixed (several
    of these) or Unknown."""
    encrypted: bool = False
    """Whether no page that is swapped to it reaches a disk in the clear, as far as the kernel shows."""
    dedicated: bool | None = None
    """Whether no disk under it also holds the file systems of the kubelet or of the agent's state. Absent if
    unknown."""


class Kubelet(msgspec.Struct, frozen=True, omit_defaults=True, rename="camel"):
    """Known parts of the kubelet's configuration; defaults are the kubelet's own."""

    inferred: bool = False
    """Whether inferred from cgroups, without a file."""
    fail_swap_on: bool | None = None
    """failSwapOn: whether the kubelet refuses to start with swap on."""
    swap_behavior: Annotated[str, msgspec.Meta(max_length=128)] = ""
    """memorySwap.swapBehavior."""
    eviction_memory: Annotated[str, msgspec.Meta(max_length=128)] = ""
    """evictionHard's memory.available, as written."""
    enforce_node_allocatable: Annotated[
        list[Annotated[str, msgspec.Meta(max_length=128)]], msgspec.Meta(max_length=8)
    ] = []
    """enforceNodeAllocatable."""
    memory_qos: bool | None = None
    """The feature gate MemoryQoS. Absent: as the kubelet's version has it."""
    cgroup_driver: Annotated[str, msgspec.Meta(max_length=128)] = ""
    """cgroupDriver."""
    cgroup_root: Annotated[str, msgspec.Meta(max_length=128)] = ""
    """cgroupRoot."""


class ZswapFacts(msgspec.Struct, frozen=True, omit_defaults=True, rename="camel"):
    """The compressed cache before swap devices."""

    enabled: bool = False
    """Whether pages go to it."""
    compressor: Annotated[str, msgspec.Meta(max_length=32)] = ""
    """The compression algorithm."""
    max_pool_percent: Annotated[int, msgspec.Meta(ge=0, le=100)] | None = None
    """Upper bound of the cache, in percent of the node's memory. Absent if it cannot be read."""


class Facts(msgspec.Struct, frozen=True, omit_defaults=True, rename="camel"):
    """The agent's facts about its node."""

    cgroup_version: Annotated[int, msgspec.Meta(ge=0, le=2)]
    """2, 1, or 0 without cgroups."""
    swap_controller: bool
    """Whether pods' cgroups have memory.swap.max."""
    swap_bytes: Annotated[int, msgspec.Meta(ge=0)]
    """Total swap in bytes (SwapTotal of /proc/meminfo)."""
    memory_bytes: Annotated[int, msgspec.Meta(ge=0)]
    """Total memory in bytes (MemTotal of /proc/meminfo)."""
    page_size: Annotated[int, msgspec.Meta(ge=1)] = 4096
    """The kernel's page size in bytes."""
    kernel_release: Annotated[str, msgspec.Meta(max_length=128)] = ""
    """Kernel release (uname -r)."""
    tmpfs_noswap: bool = False
    """Whether the kubelet keeps tmpfs volumes out of swap: shown by the agent's mounts, else by the kernel (6.4 and
    newer)."""
    recursive_protection: bool = True
    """Whether the kernel shares a cgroup's memory.min and memory.low among those below it (mount option
    memory_recursiveprot). Absent: it does, or that is not known."""
    devices: Annotated[list[SwapDevice], msgspec.Meta(max_length=MAX_DEVICES)] = []
    """The swap devices in use."""
    controllers: Annotated[list[Annotated[str, msgspec.Meta(max_length=32)]], msgspec.Meta(max_length=16)] = []
    """The controllers of cgroup v2 that the kernel has."""
    zswap: ZswapFacts | None = None
    """The settings of zswap. Absent if the kernel has none, or if unknown."""
    psi_available: bool = False
    """Whether the kernel reports memory pressure (PSI, /proc/pressure)."""
    runtime: Annotated[str, msgspec.Meta(max_length=32)] = ""
    """containerd, CRI-O or cri-dockerd, by the names of containers' cgroups; empty if they show none. Its version is in
    the Node's status.nodeInfo."""
    kubelet: Kubelet | None = None
    """Known parts of the kubelet's configuration. Absent: none."""


class Condition(msgspec.Struct, frozen=True, omit_defaults=True, rename="camel"):
    """A condition in the form of metav1.Condition; its message may be absent, which is shorter."""

    type: Annotated[str, msgspec.Meta(max_length=316, pattern=conditions.TYPE_PATTERN)]
    """Ready, Compatible, Applied, Degraded, Drifted, SettingsApplied, StrictInEffect, MemoryQoS, a diagnostic."""
    status: Annotated[
        str, msgspec.Meta(pattern="^(True|False|Unknown)$", extra_json_schema={"enum": ["True", "False", "Unknown"]})
    ]
    """True, False or Unknown."""
    reason: Annotated[str, msgspec.Meta(min_length=1, max_length=1024, pattern=conditions.REASON_PATTERN)]
    """One word for programs."""
    message: Annotated[str, msgspec.Meta(max_length=1024)] = ""
    """A sentence for people."""
    last_transition_time: Annotated[str, msgspec.Meta(max_length=32, extra_json_schema={"format": "date-time"})] = ""
    """When status last changed, RFC 3339."""
    observed_generation: Annotated[int, msgspec.Meta(ge=0)] = 0
    """Generation of the spec this is about."""


class Violation(msgspec.Struct, frozen=True, omit_defaults=True, rename="camel"):
    """One cgroup that deviates from the spec."""

    pod: Annotated[str, msgspec.Meta(max_length=128)]
    """Key of the pod in spec.pods, or its cgroup's UID."""
    reason: Annotated[str, msgspec.Meta(max_length=64)]
    """WriteFailed, AccessDenied (the container's owner keeps the agent out of its cgroup), Unreadable, InternalError (a
    mistake in the agent), Draining (more swap is in use than the limit), Yielded (another writer keeps lowering it),
    ThrottlingEased (the pod stood still at memory.high, which the agent raised), ThrottlingStuck (it stands still at
    memory.high, which stays),
    Audit (would be written in Enforce), NotSupported (a setting that the agent does not know) or AwaitingState."""
    container: Annotated[str, msgspec.Meta(max_length=128)] = ""
    """Container id, for a violation of one."""
    setting: Annotated[str, msgspec.Meta(max_length=64)] = ""
    """The setting by its name in spec. Absent: swapMax."""
    desired: Annotated[str, msgspec.Meta(max_length=32)] = ""
    """The desired value of the setting's file."""
    observed: Annotated[str, msgspec.Meta(max_length=32)] = ""
    """The observed value of that file."""
    swap_bytes: Annotated[int, msgspec.Meta(ge=0)] = 0
    """Swap in use then, in bytes (memory.swap.current)."""
    message: Annotated[str, msgspec.Meta(max_length=512)] = ""
    """A sentence for people."""


_Cause = Annotated[
    str,
    msgspec.Meta(
        description="Why a limit was changed, or was late, as far as an agent without privileges can determine.",
        extra_json_schema={"enum": sorted(names.Cause)},
    ),
]
"""A names.Cause. Decoders accept any text: an agent of another version may have more of them."""


class ExposedPod(msgspec.Struct, frozen=True, omit_defaults=True, rename="camel"):
    """How often and for how long a pod was above its value, with its sums since a moment."""

    pod: Annotated[str, msgspec.Meta(max_length=128)]
    """Key of the pod in spec.pods, or its cgroup's UID."""
    count: Annotated[int, msgspec.Meta(ge=0)] = 0
    """How many times it was observed above its value."""
    milliseconds: Annotated[int, msgspec.Meta(ge=0)] = 0
    """Total time above its value, from detection (or the last right value) to repair."""
    swap_bytes: Annotated[int, msgspec.Meta(ge=0)] = 0
    """Swap taken meanwhile, in bytes."""
    causes: Annotated[Sequence[_Cause], msgspec.Meta(max_length=len(names.Cause))] = ()
    """Why it was above its value, the longest first."""
    since: Annotated[str, msgspec.Meta(max_length=32)] = ""
    """When the sums began, RFC 3339: its cgroup was made, or the agent started."""
    desired: Annotated[str, msgspec.Meta(max_length=32)] = ""
    """The desired value of memory.swap.max."""
    observed: Annotated[str, msgspec.Meta(max_length=32)] = ""
    """The last observed value above it."""


class ThrottledCgroup(msgspec.Struct, frozen=True, omit_defaults=True, rename="camel"):
    """How often and for how long a pod or container was throttled at its memory.high, with its sums since a moment."""

    pod: Annotated[str, msgspec.Meta(max_length=128)]
    """Key of the pod in spec.pods, or its cgroup's UID."""
    container: Annotated[str, msgspec.Meta(max_length=128)] = ""
    """Container id, if its own cgroup is throttled."""
    high: Annotated[str, msgspec.Meta(max_length=32)] = ""
    """The use from which the kernel throttles, in bytes, while the guard has not raised it."""
    foreign: bool = False
    """Whether the kubelet or another writer set that."""
    count: Annotated[int, msgspec.Meta(ge=0)] = 0
    """How many times the kernel throttled (high of memory.events)."""
    milliseconds: Annotated[int, msgspec.Meta(ge=0)] = 0
    """Total time in which a task stalled meanwhile (memory.pressure), while the agent sampled."""
    since: Annotated[str, msgspec.Meta(max_length=32)] = ""
    """When the sums began, RFC 3339: it got its first memory.high, or the agent started."""
    trips: Annotated[int, msgspec.Meta(ge=0)] = 0
    """How many times the guard observed it at a standstill."""
    guard: Annotated[str, msgspec.Meta(max_length=32)] = ""
    """How the guard has raised memory.high: Stepped (halfway to the memory limit), Released (none), or Latched (none
    until the plan changes). Absent: it has not."""


class PressuredPod(msgspec.Struct, frozen=True, omit_defaults=True, rename="camel"):
    """A pod's memory while its node is under pressure."""

    pod: Annotated[str, msgspec.Meta(max_length=128)]
    """Key of the pod in spec.pods, or its cgroup's UID."""
    working_set_bytes: Annotated[int, msgspec.Meta(ge=0)] = 0
    """Memory in use, less inactive file pages."""
    swap_bytes: Annotated[int, msgspec.Meta(ge=0)] = 0
    """Swap in use."""
    refaults: Annotated[int, msgspec.Meta(ge=0)] = 0
    """Pages that it read back soon after they were reclaimed, since the agent began to watch it for this report."""


class PressureReport(msgspec.Struct, frozen=True, omit_defaults=True, rename="camel"):
    """Memory pressure on the node, and its largest pods."""

    seq: Annotated[int, msgspec.Meta(ge=1)]
    """Another one with each report."""
    signal: Annotated[str, msgspec.Meta(max_length=32)] = ""
    """Headroom (little memory can still be handed out) or Stall (all tasks wait for memory at once); Headroom if it is
    both."""
    scope: Annotated[str, msgspec.Meta(max_length=32)] = ""
    """Where memory is short. Node: everywhere. Pods: at the limit of the cgroup above all pods."""
    headroom_bytes: Annotated[int, msgspec.Meta(ge=0)] = 0
    """Memory that can still be handed out, counting file pages and swap."""
    stall_permille: Annotated[int, msgspec.Meta(ge=0, le=1000)] = 0
    """Share of the time in which all tasks waited for memory at once."""
    since: Annotated[str, msgspec.Meta(max_length=32)] = ""
    """When the signal was set, RFC 3339."""
    pods: Annotated[list[PressuredPod], msgspec.Meta(max_length=MAX_PRESSURED)] = []
    """The pods that use most memory and swap, the largest first."""
    pods_omitted: Annotated[int, msgspec.Meta(ge=0)] = 0
    """The number of pods beyond those."""


class ReclaimedPod(msgspec.Struct, frozen=True, omit_defaults=True, rename="camel"):
    """How a pod's idle memory was moved to swap, since its agent started."""

    pod: Annotated[str, msgspec.Meta(max_length=128)]
    """Key of the pod in spec.pods."""
    hold: Annotated[str, msgspec.Meta(max_length=32)]
    """Why there was no step when the agent looked last; Step if there was."""
    moved_bytes: Annotated[int, msgspec.Meta(ge=0)] = 0
    """Swap that the pod took by it."""
    refaulted_bytes: Annotated[int, msgspec.Meta(ge=0)] = 0
    """Swapped memory that the pod soon needed again meanwhile, for whatever reason it was swapped."""
    milliseconds: Annotated[int, msgspec.Meta(ge=0)] = 0
    """Time that the kernel took for it."""


class Holds(msgspec.Struct, frozen=True, omit_defaults=True, rename="camel"):
    """Who was observed to hold the limits of pods beside the agent, which always does."""

    runtime: bool = False
    """The container runtime, whose plugin sets the limits of containers."""
    systemd: bool = False
    """systemd, by its drop-in files for the slices of pods."""
    agent_only: Annotated[
        list[Annotated[str, msgspec.Meta(max_length=128)]], msgspec.Meta(max_length=MAX_AGENT_ONLY)
    ] = []
    """Keys in spec.pods of pods with a limit that neither of the two was observed to hold."""
    agent_only_omitted: Annotated[int, msgspec.Meta(ge=0)] = 0
    """The number of such pods beyond those in agentOnly."""


class PreviewCost(msgspec.Struct, frozen=True, omit_defaults=True, rename="camel"):
    """The swap in use that a preview will take from pods."""

    profile_ref: ProfileRef
    """The profile of the preview."""
    pods: Annotated[int, msgspec.Meta(ge=0)] = 0
    """Pods with more swap in use than they would get."""
    bytes: Annotated[int, msgspec.Meta(ge=0)] = 0
    """Swap that they use above that, in bytes."""


class StateStatus(msgspec.Struct, frozen=True, omit_defaults=True, rename="camel"):
    """Written by the node's agent only, through the status subresource."""

    observed_generation: Annotated[int, msgspec.Meta(ge=0)] = 0
    """metadata.generation of the spec that the agent acted on last."""
    profile_ref: ProfileRef | None = None
    """The profile of the plan that the agent acted on last."""
    facts: Facts | None = None
    """The agent's facts about the node."""
    conditions: Annotated[list[Condition], msgspec.Meta(max_length=32)] = []
    """Ready (a summary of the next three), Compatible, Applied, Degraded, Drifted; SettingsApplied and StrictInEffect
    if the profile asks for them; diagnostics while they are true."""
    violations: Annotated[list[Violation], msgspec.Meta(max_length=MAX_VIOLATIONS)] = []
    """Deviations only: unlisted cgroups hold their values."""
    violations_omitted: Annotated[int, msgspec.Meta(ge=0)] = 0
    """The number of deviations beyond those in violations."""
    exposures: Annotated[list[ExposedPod], msgspec.Meta(max_length=MAX_EXPOSURES)] = []
    """Pods that were above their values in the last ten minutes."""
    exposures_omitted: Annotated[int, msgspec.Meta(ge=0)] = 0
    """The number of such pods beyond those in exposures."""
    throttled: Annotated[list[ThrottledCgroup], msgspec.Meta(max_length=MAX_THROTTLED)] = []
    """Pods and containers whose memory.high the guard has raised, or that were throttled in the last ten minutes."""
    throttled_omitted: Annotated[int, msgspec.Meta(ge=0)] = 0
    """The number of such cgroups beyond those in throttled."""
    pressure: PressureReport | None = None
    """Memory pressure as spec.pressure defines it. Absent: none."""
    reclaimed: Annotated[list[ReclaimedPod], msgspec.Meta(max_length=MAX_RECLAIMED)] = []
    """Pods whose idle memory is moved to swap, the most first; at most each five minutes."""
    reclaimed_omitted: Annotated[int, msgspec.Meta(ge=0)] = 0
    """The number of such pods beyond those in reclaimed."""
    holds: Holds | None = None
    """Who was observed to hold the limits of pods. Absent: the agent alone."""
    preview_cost: PreviewCost | None = None
    """The swap in use that spec.preview will take from pods."""
