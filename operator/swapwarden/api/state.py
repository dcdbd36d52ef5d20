"""NodeSwapState: what the controller wants of one node (spec) and what its agent reports (status).

Machines write and read it, tens of times a second on a busy node, so the types are msgspec structs. Optional fields are
left out when they hold their default: etcd stores the whole object again with every change of one pod.
"""

from __future__ import annotations

from typing import Annotated

import msgspec

from swapwarden.api import conditions, names

SwapMax = Annotated[
    str,
    msgspec.Meta(
        pattern=r"^(max|0|[1-9][0-9]{0,18})$",
        description="As the kernel file memory.swap.max takes it: max, 0, or bytes floored to the page.",
    ),
]
"""A value of memory.swap.max, as text."""

EPOCH_REFUSAL = "epoch must not become smaller: a newer controller leads"
"""The API server's refusal of a controller whose term has passed."""

Setting = Annotated[str, msgspec.Meta(pattern=r"^[0-9A-Za-z-]{1,32}$")]
"""A value of one of the kernel's settings, as its file takes it."""

POD_KEY = r"[0-9a-fA-F][0-9a-fA-F-]{6,126}[0-9a-fA-F]"
"""A UID as the names of pods' cgroups have it: agents find no other form."""

MAX_SETTINGS = 16
MAX_UNITS = 32
MAX_PODS = 2048
MAX_CONTAINERS = 128
ID_LENGTH = 13
"""Characters of a container's id that a state has: as many as crictl shows."""
MAX_PODS_BYTES = 768 * 1024
"""Bytes of JSON that pods may take, with their part of a preview. The whole object, with what a profile and an agent
add at most, must stay well below what etcd takes (1.5 MiB) and what an API server sends it (2 MiB)."""
MAX_VIOLATIONS = 32
MAX_REASON = 64
"""Characters of a condition's reason that are compared with what it is later."""
MAX_DEVICES = 32
"""As many as a kernel takes (MAX_SWAPFILES, include/linux/swap.h), so that none is ever left out."""


class CgroupSettings(msgspec.Struct, frozen=True, omit_defaults=True, rename="camel"):
    """Settings of one cgroup by name. The agent does not write the files of absent ones."""

    swap_max: Annotated[SwapMax | None, msgspec.Meta(description="Value of memory.swap.max. Absent: not written.")] = (
        None
    )


class ContainerDefault(CgroupSettings, frozen=True, omit_defaults=True, rename="camel"):
    """Settings of a container's cgroup."""

    swap_at_most: Annotated[
        SwapMax | None,
        msgspec.Meta(
            description="As swapMax, but a smaller value that the file holds is left alone. Never beside swapMax."
        ),
    ] = None


class ContainerSettings(ContainerDefault, frozen=True, omit_defaults=True, rename="camel"):
    """Settings of one named container's cgroup."""

    id: Annotated[
        Annotated[str, msgspec.Meta(pattern=r"^[0-9A-Za-z_.-]{1,13}$")] | None,
        msgspec.Meta(
            description="First 13 characters of the running container's id, as crictl shows it, without the runtime's"
            " prefix. Absent while it does not run."
        ),
    ] = None


class PodSettings(CgroupSettings, frozen=True, omit_defaults=True, rename="camel"):
    """Settings of one pod's cgroups."""

    reason: Annotated[
        names.Reason | None,
        msgspec.Meta(description="The rule that gave swapMax; see docs/semantics.md. Absent: defaultReason."),
    ] = None
    container_default: Annotated[
        ContainerDefault | None,
        msgspec.Meta(
            description="For each container that containers does not name, also before it starts: no write is needed"
            " when it does."
        ),
    ] = None
    containers: Annotated[
        dict[str, ContainerSettings],
        msgspec.Meta(
            max_length=MAX_CONTAINERS,
            description="By container name; only where containers need different values.",
            extra_json_schema={
                "x-kubernetes-validations": [
                    {"rule": "self.all(key, key.size() <= 63)", "message": "keys are names of containers"}
                ]
            },
        ),
    ] = {}


class ProfileRef(msgspec.Struct, frozen=True, omit_defaults=True, rename="camel"):
    """The profile that a plan was made from."""

    name: Annotated[
        str, msgspec.Meta(max_length=253, description="Name of the NodeSwapProfile, or (built-in) where none selects.")
    ]
    generation: Annotated[int, msgspec.Meta(ge=0, description="metadata.generation of that profile.")] = 0


class UnitSettings(CgroupSettings, frozen=True, omit_defaults=True, rename="camel"):
    """Settings of one of the node's own units. Absent ones are not written, or restored."""

    io_latency_microseconds: Annotated[
        Annotated[int, msgspec.Meta(ge=1000, le=10_000_000)] | None,
        msgspec.Meta(description="Target in io.latency, for each disk that the node swaps to."),
    ] = None
    io_weight: Annotated[
        Annotated[int, msgspec.Meta(ge=1, le=10_000)] | None,
        msgspec.Meta(description="io.weight, for each disk that the node swaps to."),
    ] = None


class ProfilePreview(msgspec.Struct, frozen=True, omit_defaults=True, rename="camel"):
    """The limits of a profile once it is in force on this node. None of them is enforced."""

    profile_ref: Annotated[ProfileRef, msgspec.Meta(description="The next profile.")]
    pods: Annotated[
        dict[str, SwapMax],
        msgspec.Meta(max_length=MAX_PODS, description="Pods that will get less than now, by UID as in pods."),
    ] = {}


class StateSpec(msgspec.Struct, frozen=True, omit_defaults=True, rename="camel"):
    """Written by the leading controller only."""

    profile_ref: Annotated[ProfileRef, msgspec.Meta(description="The profile in force.")]
    mode: Annotated[
        names.Mode,
        msgspec.Meta(description="Enforce: write and repair. Audit: report only. Restore: write back earlier values."),
    ] = names.Mode.ENFORCE
    guarantee: Annotated[
        names.Guarantee,
        msgspec.Meta(
            description="Strict: the agent installs systemd's drop-in files if it may, and reports those that it"
            " observes. Standard: it removes those that it installed."
        ),
    ] = names.Guarantee.STANDARD
    before_plan: Annotated[
        names.BeforePlan,
        msgspec.Meta(
            description="For pods that are not in pods yet. NoSwap: their cgroups get 0. Unmanaged: nothing is written."
        ),
    ] = names.BeforePlan.NO_SWAP
    epoch: Annotated[
        int,
        msgspec.Meta(ge=0, description="The writer's leadership term. A write with a smaller one is refused."),
    ] = 0
    default_reason: Annotated[
        names.Reason | None,
        msgspec.Meta(description="The reason of pods without their own. It does not change any limit."),
    ] = None
    kubepods: Annotated[
        CgroupSettings | None,
        msgspec.Meta(
            description="For the cgroup above all pods: the node's swap less the profile's swap.reserved. Absent: not"
            " written, or restored."
        ),
    ] = None
    pods: Annotated[
        dict[str, PodSettings],
        msgspec.Meta(
            max_length=MAX_PODS,
            description="By the UID in the name of the pod's cgroup (for static pods the kubelet's config hash). A map,"
            " so that a write for one pod is small.",
            extra_json_schema={
                "x-kubernetes-validations": [
                    {
                        "rule": f"self.all(key, key.size() <= 128 && key.matches('^{POD_KEY}$'))",
                        "message": "keys are UIDs: 8 to 128 hexadecimal digits and dashes",
                    }
                ]
            },
        ),
    ] = {}
    units: Annotated[
        dict[str, UnitSettings],
        msgspec.Meta(
            max_length=MAX_UNITS,
            description="The node's own systemd slices and services, by name. A removed one is restored.",
            extra_json_schema={
                "x-kubernetes-validations": [
                    {"rule": "self.all(key, key.size() <= 128)", "message": "keys are names of slices and services"}
                ]
            },
        ),
    ] = {}
    kernel_settings: Annotated[
        dict[str, Setting],
        msgspec.Meta(
            max_length=MAX_SETTINGS,
            description="Settings of the kernel by name (vm.swappiness, zswap.enabled), as their files take them.",
        ),
    ] = {}
    preview: Annotated[
        ProfilePreview | None,
        msgspec.Meta(description="The next profile; see status.previewCost."),
    ] = None
    degraded_before: Annotated[
        list[Annotated[str, msgspec.Meta(max_length=MAX_REASON)]],
        msgspec.Meta(
            max_length=3,
            description="Problems of the node before it got this generation of the profile: the reason of the condition"
            " Degraded, SettingsRefused, and NoAnswer if the agent did not answer. They stop no rollout.",
        ),
    ] = []


def reason_of(spec: StateSpec, pod: PodSettings) -> names.Reason | None:
    """Return the rule that gave a pod of `spec` its swapMax; None where a controller of another version left it out."""
    return pod.reason or spec.default_reason


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
            description="Ready, Compatible, Applied, Degraded, Drifted, SettingsApplied, StrictInEffect or a finding.",
        ),
    ]
    status: Annotated[str, msgspec.Meta(pattern="^(True|False|Unknown)$", description="True, False or Unknown.")]
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
    """One cgroup that deviates from the spec, or did so for a while."""

    pod: Annotated[str, msgspec.Meta(max_length=128, description="Key of the pod in spec.pods, or its cgroup's UID.")]
    reason: Annotated[
        str,
        msgspec.Meta(
            max_length=64,
            description=(
                "WriteFailed, AccessDenied (the container's owner keeps the agent out of its cgroup), Unreadable, "
                "InternalError (a mistake in the agent), Draining (more swap is in use than wanted), Yielded (another "
                "writer keeps lowering it), "
                "Audit (would be written in Enforce), NotSupported (a setting that the agent does not know), "
                "AwaitingState, or Exposed (it was above its value for a while)."
            ),
        ),
    ]
    container: Annotated[str, msgspec.Meta(max_length=128, description="Container id, for a violation of one.")] = ""
    setting: Annotated[
        str, msgspec.Meta(max_length=64, description="The setting by its name in spec. Absent: swapMax.")
    ] = ""
    wanted: Annotated[str, msgspec.Meta(max_length=32, description="The desired value of memory.swap.max.")] = ""
    found: Annotated[str, msgspec.Meta(max_length=32, description="The observed value, or the last excess.")] = ""
    swap_bytes: Annotated[
        int,
        msgspec.Meta(ge=0, description="memory.swap.current then; if Exposed, the swap taken meanwhile."),
    ] = 0
    exposures: Annotated[int, msgspec.Meta(ge=0, description="How many times it was found above its value.")] = 0
    exposed_milliseconds: Annotated[
        int,
        msgspec.Meta(
            ge=0,
            description="Total time above its value, from detection (or the last right value) to repair.",
        ),
    ] = 0
    causes: Annotated[
        list[names.Cause],
        msgspec.Meta(max_length=len(names.Cause), description="Why it was above its value, the longest first."),
    ] = []
    since: Annotated[
        str,
        msgspec.Meta(
            max_length=32,
            description="If Exposed, when the sums began, RFC 3339: its cgroup was made, or the agent started.",
        ),
    ] = ""
    message: Annotated[str, msgspec.Meta(max_length=512, description="A sentence for people.")] = ""


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
    preview_cost: Annotated[
        PreviewCost | None, msgspec.Meta(description="The swap in use that spec.preview will take from pods.")
    ] = None


class OwnerReference(msgspec.Struct, frozen=True, omit_defaults=True, rename="camel"):
    """metav1.OwnerReference: the fields in use."""

    api_version: str
    kind: str
    name: str
    uid: str


class ObjectMeta(msgspec.Struct, frozen=True, omit_defaults=True, rename="camel"):
    """metav1.ObjectMeta: the fields in use."""

    name: str = ""
    uid: str = ""
    resource_version: str = ""
    generation: int = 0
    creation_timestamp: str = ""
    deletion_timestamp: str = ""
    owner_references: list[OwnerReference] = []


class NodeSwapState(msgspec.Struct, frozen=True, omit_defaults=True, rename="camel"):
    """The object that carries all that passes between the controller and one node's agent."""

    metadata: ObjectMeta = ObjectMeta()
    spec: Annotated[
        StateSpec | None,
        msgspec.Meta(
            description="The controller's plan for this node.",
            extra_json_schema={
                "x-kubernetes-validations": [
                    {
                        "rule": "!has(oldSelf.epoch) || (has(self.epoch) && self.epoch >= oldSelf.epoch)",
                        "message": EPOCH_REFUSAL,
                        "fieldPath": ".epoch",
                    }
                ]
            },
        ),
    ] = None
    status: Annotated[StateStatus, msgspec.Meta(description="The agent's report.")] = StateStatus()
    api_version: str = ""
    kind: str = ""
