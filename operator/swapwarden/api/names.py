"""Names that cross a process boundary: annotations, labels, kinds and enums.

This module imports nothing of the package, so that every process can have it for free.
"""

from __future__ import annotations

import enum
from typing import Final

GROUP: Final = "swapwarden.dev"
VERSION: Final = "v1alpha1"
API_VERSION: Final = f"{GROUP}/{VERSION}"
FIELD_MANAGER: Final = "swapwarden-controller"
"""The name of the controller's writes in managedFields."""

PROFILE_KIND: Final = "NodeSwapProfile"
PROFILE_PLURAL: Final = "nodeswapprofiles"
PROFILES_PATH: Final = f"/apis/{API_VERSION}/{PROFILE_PLURAL}"
PROFILE_FINALIZER: Final = "swapwarden.dev/release-nodes"
"""On a profile that nodes may follow: a deletion waits until they do not."""
STATE_KIND: Final = "NodeSwapState"
STATE_PLURAL: Final = "nodeswapstates"
STATES_PATH: Final = f"/apis/{API_VERSION}/{STATE_PLURAL}"

# On pods (annotations: the API server drops unknown fields of a spec).
POLICY_ANNOTATION: Final = "swapwarden.dev/swap-policy"
LIMIT_ANNOTATION: Final = "swapwarden.dev/swap-limit"
CONTAINER_LIMIT_PREFIX: Final = "swap-limit.swapwarden.dev/"
MEMORY_RESERVATION_ANNOTATION: Final = "swapwarden.dev/memory-reservation"
MEMORY_LOW_ANNOTATION: Final = "swapwarden.dev/memory-low"
MEMORY_THROTTLING_ANNOTATION: Final = "swapwarden.dev/memory-throttling"
MEMORY_HIGH_ANNOTATION: Final = "swapwarden.dev/memory-high"
CONTAINER_HIGH_PREFIX: Final = "memory-high.swapwarden.dev/"
RECLAIM_ANNOTATION: Final = "swapwarden.dev/reclaim"
POLICY_SOURCE_ANNOTATION: Final = "swapwarden.dev/policy-source"
SOURCE_NAMESPACE: Final = "namespace"
"""The annotation policy-source has this value if the policy is the namespace's default."""

# On namespaces (a label, so that webhook selectors can see it).
DEFAULT_POLICY_LABEL: Final = "swapwarden.dev/default-swap-policy"
NAME_LABEL: Final = "kubernetes.io/metadata.name"
"""Every Namespace has it, with its name: the API server sets it."""

# On nodes.
STARTUP_TAINT: Final = "node.swapwarden.dev/agent-not-ready"
"""Key of the taint that new nodes may carry, by their owner's choice, until an agent has applied a first state."""
NFD_SWAP_LABEL: Final = "feature.node.kubernetes.io/memory-swap"
SWAP_LABEL: Final = "node.swapwarden.dev/swap"
"""\"true\" where pods can get swap; absent elsewhere. Placement counts on it."""
SWAP_TAINT: Final = SWAP_LABEL
"""Key of the taint that keeps pods without need for swap off nodes that have it."""
EVICTION_EXCLUDED: Final = ("kube-system",)
"""Namespaces whose pods are not evicted, unless a profile names others."""
PRESSURE_TAINT: Final = "node.swapwarden.dev/memory-pressure"
"""Key of the taint that keeps new pods off nodes under memory pressure."""
BEHAVIOR_LABEL: Final = "node.swapwarden.dev/swap-behavior"
BACKING_LABEL: Final = "node.swapwarden.dev/swap-backing"
ENCRYPTED_LABEL: Final = "node.swapwarden.dev/swap-encrypted"
UNMET_LABEL: Final = "node.swapwarden.dev/swap-unmet"
"""The first requirement of its profile that a node with swap does not meet; absent where it meets all."""
PUBLIC_LABELS: Final = (NFD_SWAP_LABEL, SWAP_LABEL, BEHAVIOR_LABEL, BACKING_LABEL, ENCRYPTED_LABEL, UNMET_LABEL)
"""Labels that Node Feature Discovery would also set on request."""
VOUCHED_LABEL: Final = "swapwarden.dev.node-restriction.kubernetes.io/encrypted-swap"
"""Under a prefix that kubelets may not write, and Node Feature Discovery does not."""
NODE_LABELS: Final = (*PUBLIC_LABELS, VOUCHED_LABEL)
"""All labels of nodes that are Swapwarden's to set."""

SWAP_RESOURCE: Final = "swapwarden.dev/swap"
"""Extended resource of nodes and containers, in bytes: the scheduler counts swap limits by it."""

# In this annotation Node Feature Discovery lists the labels that it set, those of its own domain without it; where
# there are several of it, the key has their name and a dot before (node-feature-discovery: pkg/nfd-master).
NFD_OWNS_ANNOTATION: Final = "nfd.node.kubernetes.io/feature-labels"
NFD_DOMAIN: Final = "feature.node.kubernetes.io"

AGENT_LABELS: Final = {"app.kubernetes.io/name": "swapwarden", "app.kubernetes.io/component": "agent"}
"""The labels by which the chart's DaemonSet selects its pods."""

# Set by the kubelet on pods that it did not get from the API server (k/k: pkg/kubelet/types/pod_update.go).
CONFIG_SOURCE_ANNOTATION: Final = "kubernetes.io/config.source"
CONFIG_MIRROR_ANNOTATION: Final = "kubernetes.io/config.mirror"
CONFIG_HASH_ANNOTATION: Final = "kubernetes.io/config.hash"

BUILT_IN_PROFILE: Final = "(built-in)"
"""Name under which the profile of a node that no object selects is shown. Not a valid object name, on purpose."""

MAX_SWAP: Final = "max"
"""How the kernel's memory.swap.max spells "no limit"."""


class Policy(enum.StrEnum):
    """Values of the policy annotation and of the namespace label that are understood."""

    NO_PREFERENCE = "NoPreference"
    DISABLED = "Disabled"
    REQUIRED = "Required"
    PREFERRED = "Preferred"
    AVOID = "Avoid"


class Mode(enum.StrEnum):
    """The agent's use of a state."""

    ENFORCE = "Enforce"
    AUDIT = "Audit"
    RESTORE = "Restore"


class Guarantee(enum.StrEnum):
    """Who must hold limits beside the agent."""

    STANDARD = "Standard"
    """Nobody: the agent watches, and repairs external writes."""
    STRICT = "Strict"
    """The container runtime (NRI), systemd (drop-in files), or both: the status reports which of them was observed."""


class Holder(enum.StrEnum):
    """Who was observed to hold the limits of a pod."""

    RUNTIME_OR_SYSTEMD = "the container runtime or systemd"
    """Both hold pods of the node, each pod at least one of them."""
    RUNTIME = "the container runtime"
    SYSTEMD = "systemd"
    AGENT = "the agent alone"
    """It watches, and repairs external writes."""


class BeforePlan(enum.StrEnum):
    """A pod's swap until the plan of its node includes it."""

    NO_SWAP = "NoSwap"
    UNMANAGED = "Unmanaged"


class Behavior(enum.StrEnum):
    """How a profile gives swap to pods."""

    KUBELET = "Kubelet"
    NO_SWAP = "NoSwap"
    LIMITED_SWAP = "LimitedSwap"
    WORKLOAD_CONTROLLED = "WorkloadControlled"


class ReservationPolicy(enum.StrEnum):
    """How a profile protects the memory that pods request."""

    NONE = "None"
    SOFT = "Soft"
    """Protection by memory.low: the kernel reclaims this memory last."""
    TIERED_RESERVATION = "TieredReservation"
    """Protection as by the kubelet's policy: memory.min for Guaranteed pods, memory.low for Burstable ones."""


class WithoutSwap(enum.StrEnum):
    """The memory.high of pods whose swap limit is less than what lies between it and the memory limit."""

    SKIP = "Skip"
    """Never below limit less swap: a pod without swap has none."""
    BOUNDED = "Bounded"
    """Lower, as far as throttling up to the limit takes no longer than the profile's bound."""


class GuardAction(enum.StrEnum):
    """The agent's answer to a pod that is stuck at its memory.high."""

    RELEASE = "Release"
    """Raise memory.high, and report."""
    REPORT = "Report"


class KubeletGuard(enum.StrEnum):
    """The agent's answer to a pod that is stuck at a memory.high of the kubelet or of another writer."""

    RELEASE = "Release"
    """Replace it by max, and report."""
    REPORT = "Report"
    OFF = "Off"
    """Do not look."""


class PressureMode(enum.StrEnum):
    """The use of signals of memory pressure."""

    OFF = "Off"
    OBSERVE = "Observe"
    """Report."""
    ENFORCE = "Enforce"
    """Report, and evict pods."""


class EvictionUse(enum.StrEnum):
    """The use of the controller's right to evict pods."""

    OFF = "Off"
    """It has none."""
    DRY_RUN = "DryRun"
    """Ask whether a pod could be evicted."""
    ENFORCE = "Enforce"
    """Evict pods, where a profile says so."""


class PressureSignal(enum.StrEnum):
    """How memory pressure of a node shows."""

    HEADROOM = "Headroom"
    """Little memory is left to hand out, counting file pages and swap."""
    STALL = "Stall"
    """All tasks wait for memory at once for much of the time."""


class PressureScope(enum.StrEnum):
    """Where the memory is short."""

    NODE = "Node"
    PODS = "Pods"
    """At the limit of the cgroup above all pods."""


class ReclaimMode(enum.StrEnum):
    """When idle memory of a pod is moved to swap."""

    OFF = "Off"
    STARTUP = "Startup"
    """Once, some time after its containers started."""
    CONTINUOUS = "Continuous"


class Cause(enum.StrEnum):
    """Why a limit was changed, or was late, as far as an agent without privileges can determine."""

    START = "Start"
    """In the first seconds of a cgroup: systemd, or the runtime, writes its own value."""
    RELOAD = "Reload"
    """Several pods at the same moment got the values that systemd holds for them, as on daemon-reload."""
    RESIZE = "Resize"
    """The resources of the pod, or of the container, were changed along with it."""
    UNIT_VALUE = "UnitValue"
    """The value that systemd holds for the unit, written by systemd or by a writer of the same value."""
    OTHER_WRITER = "OtherWriter"
    """A value that is not systemd's."""
    AGENT_DOWN = "AgentDown"
    """No agent ran: an agent that started observed it so."""
    AGENT_LATE = "AgentLate"
    """The pod ran before the agent saw it: the agent was starved of CPU, or events were lost."""
    STATE_LATE = "StateLate"
    """The pod ran before a state said what its limit is."""


UNWATCHED: Final = frozenset({Cause.AGENT_DOWN, Cause.STATE_LATE})
"""Causes for which the agent does not know the earlier swap in use: the swap taken is an upper bound."""


class Backing(enum.StrEnum):
    """The hardware of a swap device, as far as the kernel shows it."""

    NVME = "NVMe"
    SSD = "SSD"
    HDD = "HDD"
    VIRTUAL = "Virtual"
    """A hypervisor's disk, whose hardware is hidden."""
    NETWORK = "Network"
    ZRAM = "Zram"
    LOOP = "Loop"
    FILE = "File"
    MIXED = "Mixed"
    """Several of these under one device."""
    UNKNOWN = "Unknown"


class Requirement(enum.StrEnum):
    """Requirements of a profile on a node before its pods get swap, in the order of report."""

    ENCRYPTED = "encrypted"
    TMPFS_NOSWAP = "tmpfsNoswap"
    BACKING = "backing"
    DEDICATED_DEVICE = "dedicatedDevice"


class Publisher(enum.StrEnum):
    """Who sets the labels of nodes."""

    DIRECT = "Direct"
    """The controller."""
    NODE_FEATURE = "NodeFeature"
    """Node Feature Discovery, which the controller asks by NodeFeature objects."""
    AUTO = "Auto"
    """NodeFeature where its CustomResourceDefinition is installed, else Direct."""


class TaintEffect(enum.StrEnum):
    """The effect of a taint that Swapwarden sets. None that ends pods: NoExecute is for broken nodes."""

    NO_SCHEDULE = "NoSchedule"
    PREFER_NO_SCHEDULE = "PreferNoSchedule"


class Problem(enum.StrEnum):
    """Why a setting of a node differs from its profile: reasons of the condition SettingsApplied, the worst first."""

    REFUSED = "Refused"
    """The value would make the node unusable."""
    NO_ACCESS = "NoAccess"
    """The agent was not given the files; a value of the chart does that."""
    NOT_SUPPORTED = "NotSupported"
    """The node's kernel, or this agent, does not have it."""
    WRITE_FAILED = "WriteFailed"
    NOT_FOUND = "NotFound"
    """The node has no slice or service of that name now."""
    DRAINING = "Draining"
    """A slice or service has more swap in use than its limit."""
    RELOAD_NEEDED = "ReloadNeeded"
    """systemd still holds a slice at 0 by a drop-in file."""
    PENDING = "Pending"
    """The agent is about to write it."""
    AUDIT = "Audit"
    """It would be written in Enforce."""
    NO_EFFECT = "NoEffect"
    """It is about disks that are swapped to, and the node has none; or the kernel lacks one of two files, and has the
    other."""


class Reason(enum.StrEnum):
    """Why a pod or a container has its number: one per row of the table in docs/semantics.md."""

    NODE_INCOMPATIBLE = "NodeIncompatible"
    POLICY_DISABLED = "PolicyDisabled"
    INVALID_POLICY = "InvalidPolicy"
    REQUIREMENT_UNMET = "RequirementUnmet"
    PROFILE_NO_SWAP = "ProfileNoSwap"
    KUBELET_DECIDES = "KubeletDecides"
    CRITICAL_POD = "CriticalPod"
    QOS_NOT_ELIGIBLE = "QoSNotEligible"
    LIMITED_SWAP = "LimitedSwap"
    WORKLOAD_LIMIT = "WorkloadLimit"
    NO_LIMIT = "NoLimit"
    BOUNDED = "Bounded"
    OVERCOMMIT_REACHED = "OvercommitReached"
    OVERRIDE_DISABLED = "OverrideDisabled"
    OVERRIDE_LIMIT = "OverrideLimit"


class ProtectionReason(enum.StrEnum):
    """Why a pod or a container has its memory.min or memory.low, or none."""

    REQUEST = "RequestProtected"
    LOW_ANNOTATION = "LowAnnotation"
    PER_POD = "PodProtected"
    """A container: the kernel shares the protection of its pod."""
    NOTHING_REQUESTED = "NothingRequested"
    RESERVATION_NONE = "ReservationNone"
    """None: the profile's policy is None, and nobody else asks."""
    POD_REFUSES = "PodRefuses"
    OVERRIDE_REFUSES = "OverrideRefuses"
    NOT_OFFERED = "NotOffered"
    """None: the profile has no memoryQoS."""


class ThrottlingReason(enum.StrEnum):
    """Why a pod or a container has its memory.high, or none."""

    PERCENT = "ThrottlingPercent"
    HIGH_ANNOTATION = "HighAnnotation"
    SWAP_ROOM = "SwapRoom"
    """Raised to the memory limit less the swap limit."""
    STALL_BOUND = "StallBound"
    """Raised so far that throttling ends in time."""
    NO_SWAP = "NoSwapRoom"
    """None: the pod has no swap into which memory could be reclaimed."""
    SWAP_UNKNOWN = "SwapUnknown"
    """None: the kubelet decides the limit of swap."""
    NO_LIMIT = "NoMemoryLimit"
    REQUEST_IS_LIMIT = "RequestIsLimit"
    NO_ROOM = "NoRoom"
    """None: it would not lie between the request and the limit."""
    POD_ENDS = "PodEnds"
    """None: the pod was deleted, and must not stand still on its way to the end."""
    PER_POD = "PodThrottled"
    """A container: the only one of its pod, whose cgroup has the value."""
    PER_CONTAINER = "ContainersThrottled"
    """A pod of several containers: each has its own, so that none slows the others."""
    THROTTLING_NONE = "ThrottlingNone"
    """None: nobody asks."""
    POD_REFUSES = "PodRefuses"
    OVERRIDE_REFUSES = "OverrideRefuses"
    NOT_OFFERED = "NotOffered"
    """None: the profile has no memoryQoS."""


class ReclaimReason(enum.StrEnum):
    """Why a pod's idle memory is moved to swap, or is not."""

    ANNOTATION = "ReclaimAnnotation"
    OVERRIDE = "OverrideReclaim"
    STARTUP_ONLY = "StartupOnly"
    """Startup in place of Continuous: the profile offers no more."""
    NO_SWAP = "NoSwap"
    """None: the pod has no swap."""
    POD_ENDS = "PodEnds"
    """None: the pod was deleted."""
    NOT_ASKED = "NotAsked"
    """None: the profile offers it, and nobody asks."""
    POD_REFUSES = "PodRefuses"
    OVERRIDE_REFUSES = "OverrideRefuses"
    NOT_OFFERED = "NotOffered"
    """None: the profile's mode is Off."""


class ReclaimHold(enum.StrEnum):
    """The result of a look at a pod whose idle memory may be moved to swap: a step, or why there was none."""

    STEP = "Step"
    """It had one."""
    WAITS = "Waits"
    """It is too early, or the last steps had no success."""
    FIRST_LOOK = "FirstLook"
    """There is nothing to compare with yet."""
    DONE = "Done"
    """Startup has ended."""
    STALLED = "Stalled"
    """At the target: tasks of the pod wait for memory."""
    REFAULTS = "Refaults"
    """The pod needed swapped memory again."""
    SMALL = "Small"
    """Too little memory is in use."""
    PROTECTED = "Protected"
    """The rest is protected by memory.min or memory.low."""
    SWAP_LIMIT = "SwapLimit"
    """The pod, or a cgroup above it, may not use more swap."""
    SWAP_KEPT = "SwapKept"
    """The node's free swap is kept."""
    WRITES = "WritesSpent"
    """The writes of 24 hours are spent."""
    NODE_PRESSURE = "NodePressure"
    """The node is short of memory."""
    UNREADABLE = "Unreadable"
    """The kernel shows no stalls or sizes of the pod."""
