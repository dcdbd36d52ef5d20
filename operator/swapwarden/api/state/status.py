"""NodeSwapState.status: the report of one node's agent."""

from __future__ import annotations

from typing import Annotated

import msgspec

from swapwarden.api import conditions, names
from swapwarden.api.state.spec import ProfileRef

MAX_VIOLATIONS = 32
MAX_EXPOSURES = 32
MAX_AGENT_ONLY = 32
MAX_DEVICES = 32
"""As many as a kernel takes (MAX_SWAPFILES, include/linux/swap.h), so that none is ever left out."""


class SwapDevice(msgspec.Struct, frozen=True, omit_defaults=True, rename="camel"):
    """One line of /proc/swaps."""

    name: Annotated[str, msgspec.Meta(max_length=256, description="Path of the partition or file.")]
    type: Annotated[str, msgspec.Meta(max_length=32, description="partition or file, as the kernel reports it.")]
    size_bytes: Annotated[int, msgspec.Meta(ge=0, description="Size in bytes.")]
    priority: Annotated[int, msgspec.Meta(description="The kernel uses devices with a higher priority first.")] = 0
    backing: Annotated[
        str,
        msgspec.Meta(
            max_length=32,
            description=(
                "Its hardware: NVMe, SSD, HDD, Virtual (a hypervisor's disk), Network, Zram, Loop, File, Mixed (several"
                " of these) or Unknown."
            ),
        ),
    ] = names.Backing.UNKNOWN
    encrypted: Annotated[
        bool,
        msgspec.Meta(
            description="Whether no page that is swapped to it reaches a disk in the clear, as far as the kernel shows."
        ),
    ] = False
    dedicated: Annotated[
        bool | None,
        msgspec.Meta(
            description="Whether no disk under it also holds the file systems of the kubelet or of the agent's state."
            " Absent if unknown."
        ),
    ] = None


class Kubelet(msgspec.Struct, frozen=True, omit_defaults=True, rename="camel"):
    """Known parts of the kubelet's configuration; defaults are the kubelet's own."""

    inferred: Annotated[
        bool,
        msgspec.Meta(description="Whether inferred from cgroups, without a file."),
    ] = False
    fail_swap_on: Annotated[
        bool | None, msgspec.Meta(description="failSwapOn: whether the kubelet refuses to start with swap on.")
    ] = None
    swap_behavior: Annotated[str, msgspec.Meta(max_length=128, description="memorySwap.swapBehavior.")] = ""
    eviction_memory: Annotated[
        str, msgspec.Meta(max_length=128, description="evictionHard's memory.available, as written.")
    ] = ""
    enforce_node_allocatable: Annotated[
        list[Annotated[str, msgspec.Meta(max_length=128)]],
        msgspec.Meta(max_length=8, description="enforceNodeAllocatable."),
    ] = []
    memory_qos: Annotated[
        bool | None, msgspec.Meta(description="The feature gate MemoryQoS. Absent: as the kubelet's version has it.")
    ] = None
    cgroup_driver: Annotated[str, msgspec.Meta(max_length=128, description="cgroupDriver.")] = ""
    cgroup_root: Annotated[str, msgspec.Meta(max_length=128, description="cgroupRoot.")] = ""


class ZswapFacts(msgspec.Struct, frozen=True, omit_defaults=True, rename="camel"):
    """The compressed cache before swap devices."""

    enabled: Annotated[bool, msgspec.Meta(description="Whether pages go to it.")] = False
    compressor: Annotated[str, msgspec.Meta(max_length=32, description="The compression algorithm.")] = ""
    max_pool_percent: Annotated[
        Annotated[int, msgspec.Meta(ge=0, le=100)] | None,
        msgspec.Meta(description="Its bound in percent of the memory. Absent if it cannot be read."),
    ] = None


class Facts(msgspec.Struct, frozen=True, omit_defaults=True, rename="camel"):
    """The agent's facts about its node."""

    cgroup_version: Annotated[int, msgspec.Meta(ge=0, le=2, description="2, 1, or 0 without cgroups.")]
    swap_controller: Annotated[bool, msgspec.Meta(description="Whether pods' cgroups have memory.swap.max.")]
    swap_bytes: Annotated[int, msgspec.Meta(ge=0, description="Total swap in bytes (SwapTotal of /proc/meminfo).")]
    memory_bytes: Annotated[int, msgspec.Meta(ge=0, description="Total memory in bytes (MemTotal of /proc/meminfo).")]
    page_size: Annotated[int, msgspec.Meta(ge=1, description="The kernel's page size in bytes.")] = 4096
    kernel_release: Annotated[str, msgspec.Meta(max_length=128, description="Kernel release (uname -r).")] = ""
    tmpfs_noswap: Annotated[
        bool,
        msgspec.Meta(
            description="Whether the kubelet keeps tmpfs volumes out of swap: shown by the agent's mounts, else by the"
            " kernel (6.4 and newer)."
        ),
    ] = False
    devices: Annotated[
        list[SwapDevice], msgspec.Meta(max_length=MAX_DEVICES, description="The swap devices in use.")
    ] = []
    controllers: Annotated[
        list[Annotated[str, msgspec.Meta(max_length=32)]],
        msgspec.Meta(max_length=16, description="The controllers of cgroup v2 that the kernel has."),
    ] = []
    zswap: Annotated[
        ZswapFacts | None,
        msgspec.Meta(description="The settings of zswap. Absent if the kernel has none, or if unknown."),
    ] = None
    psi_available: Annotated[
        bool, msgspec.Meta(description="Whether the kernel reports memory pressure (PSI, /proc/pressure).")
    ] = False
    runtime: Annotated[
        str,
        msgspec.Meta(
            max_length=32,
            description="containerd, CRI-O or cri-dockerd, by the names of containers' cgroups; empty if they show"
            " none. Its version is in the Node's status.nodeInfo.",
        ),
    ] = ""
    kubelet: Annotated[
        Kubelet | None, msgspec.Meta(description="Known parts of the kubelet's configuration. Absent: none.")
    ] = None


class Condition(msgspec.Struct, frozen=True, omit_defaults=True, rename="camel"):
    """A condition in the form of metav1.Condition; its message may be absent, which is shorter."""

    type: Annotated[
        str,
        msgspec.Meta(
            max_length=316,
            pattern=conditions.TYPE_PATTERN,
            description="Ready, Compatible, Applied, Degraded, Drifted, SettingsApplied, StrictInEffect, a diagnostic.",
        ),
    ]
    status: Annotated[
        str,
        msgspec.Meta(
            pattern="^(True|False|Unknown)$",
            description="True, False or Unknown.",
            extra_json_schema={"enum": ["True", "False", "Unknown"]},
        ),
    ]
    reason: Annotated[
        str,
        msgspec.Meta(
            min_length=1, max_length=1024, pattern=conditions.REASON_PATTERN, description="One word for programs."
        ),
    ]
    message: Annotated[str, msgspec.Meta(max_length=1024, description="A sentence for people.")] = ""
    last_transition_time: Annotated[
        str,
        msgspec.Meta(
            max_length=32,
            description="When status last changed, RFC 3339.",
            extra_json_schema={"format": "date-time"},
        ),
    ] = ""
    observed_generation: Annotated[int, msgspec.Meta(ge=0, description="Generation of the spec this is about.")] = 0


class Violation(msgspec.Struct, frozen=True, omit_defaults=True, rename="camel"):
    """One cgroup that deviates from the spec."""

    pod: Annotated[str, msgspec.Meta(max_length=128, description="Key of the pod in spec.pods, or its cgroup's UID.")]
    reason: Annotated[
        str,
        msgspec.Meta(
            max_length=64,
            description=(
                "WriteFailed, AccessDenied (the container's owner keeps the agent out of its cgroup), Unreadable, "
                "InternalError (a mistake in the agent), Draining (more swap is in use than the limit), Yielded "
                "(another writer keeps lowering it), Audit (would be written in Enforce), NotSupported (a setting that "
                "the agent does not know) "
                "or AwaitingState."
            ),
        ),
    ]
    container: Annotated[str, msgspec.Meta(max_length=128, description="Container id, for a violation of one.")] = ""
    setting: Annotated[
        str, msgspec.Meta(max_length=64, description="The setting by its name in spec. Absent: swapMax.")
    ] = ""
    desired: Annotated[str, msgspec.Meta(max_length=32, description="The desired value of the setting's file.")] = ""
    observed: Annotated[str, msgspec.Meta(max_length=32, description="The observed value of that file.")] = ""
    swap_bytes: Annotated[
        int,
        msgspec.Meta(ge=0, description="Swap in use then, in bytes (memory.swap.current)."),
    ] = 0
    message: Annotated[str, msgspec.Meta(max_length=512, description="A sentence for people.")] = ""


class ExposedPod(msgspec.Struct, frozen=True, omit_defaults=True, rename="camel"):
    """How often and for how long a pod was above its value, with its sums since a moment."""

    pod: Annotated[str, msgspec.Meta(max_length=128, description="Key of the pod in spec.pods, or its cgroup's UID.")]
    count: Annotated[int, msgspec.Meta(ge=0, description="How many times it was found above its value.")] = 0
    milliseconds: Annotated[
        int,
        msgspec.Meta(
            ge=0,
            description="Total time above its value, from detection (or the last right value) to repair.",
        ),
    ] = 0
    swap_bytes: Annotated[int, msgspec.Meta(ge=0, description="Swap taken meanwhile, in bytes.")] = 0
    causes: Annotated[
        list[names.Cause],
        msgspec.Meta(max_length=len(names.Cause), description="Why it was above its value, the longest first."),
    ] = []
    since: Annotated[
        str,
        msgspec.Meta(
            max_length=32,
            description="When the sums began, RFC 3339: its cgroup was made, or the agent started.",
        ),
    ] = ""
    desired: Annotated[str, msgspec.Meta(max_length=32, description="The desired value of memory.swap.max.")] = ""
    observed: Annotated[str, msgspec.Meta(max_length=32, description="The last observed value above it.")] = ""


class Holds(msgspec.Struct, frozen=True, omit_defaults=True, rename="camel"):
    """Who was observed to hold the limits of pods beside the agent, which always does."""

    runtime: Annotated[
        bool, msgspec.Meta(description="The container runtime, whose plugin sets the limits of containers.")
    ] = False
    systemd: Annotated[bool, msgspec.Meta(description="systemd, by its drop-in files for the slices of pods.")] = False
    agent_only: Annotated[
        list[Annotated[str, msgspec.Meta(max_length=128)]],
        msgspec.Meta(
            max_length=MAX_AGENT_ONLY,
            description="Keys in spec.pods of pods with a limit that neither of the two was observed to hold.",
        ),
    ] = []
    agent_only_omitted: Annotated[
        int, msgspec.Meta(ge=0, description="The number of such pods beyond those in agentOnly.")
    ] = 0


class PreviewCost(msgspec.Struct, frozen=True, omit_defaults=True, rename="camel"):
    """The swap in use that a preview will take from pods."""

    profile_ref: Annotated[ProfileRef, msgspec.Meta(description="The profile of the preview.")]
    pods: Annotated[int, msgspec.Meta(ge=0, description="Pods with more swap in use than they would get.")] = 0
    bytes: Annotated[int, msgspec.Meta(ge=0, description="Swap that they use above that, in bytes.")] = 0


class StateStatus(msgspec.Struct, frozen=True, omit_defaults=True, rename="camel"):
    """Written by the node's agent only, through the status subresource."""

    observed_generation: Annotated[
        int, msgspec.Meta(ge=0, description="metadata.generation of the spec that the agent acted on last.")
    ] = 0
    profile_ref: Annotated[
        ProfileRef | None, msgspec.Meta(description="The profile of the plan that the agent acted on last.")
    ] = None
    facts: Annotated[Facts | None, msgspec.Meta(description="The agent's facts about the node.")] = None
    conditions: Annotated[
        list[Condition],
        msgspec.Meta(
            max_length=32,
            description="Ready (a summary of the next three), Compatible, Applied, Degraded, Drifted; SettingsApplied"
            " and StrictInEffect if the profile asks for them; diagnostics while they are true.",
        ),
    ] = []
    violations: Annotated[
        list[Violation],
        msgspec.Meta(max_length=MAX_VIOLATIONS, description="Deviations only: unlisted cgroups hold their values."),
    ] = []
    violations_omitted: Annotated[
        int, msgspec.Meta(ge=0, description="The number of deviations beyond those in violations.")
    ] = 0
    exposures: Annotated[
        list[ExposedPod],
        msgspec.Meta(
            max_length=MAX_EXPOSURES, description="Pods that were above their values in the last ten minutes."
        ),
    ] = []
    exposures_omitted: Annotated[
        int, msgspec.Meta(ge=0, description="The number of such pods beyond those in exposures.")
    ] = 0
    holds: Annotated[
        Holds | None,
        msgspec.Meta(description="Who was observed to hold the limits of pods. Absent: the agent alone."),
    ] = None
    preview_cost: Annotated[
        PreviewCost | None, msgspec.Meta(description="The swap in use that spec.preview will take from pods.")
    ] = None
