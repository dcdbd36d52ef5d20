"""NodeSwapProfile.spec: what an administrator decides for a set of nodes."""

from __future__ import annotations

from typing import Annotated, Literal, TypeVar

import pydantic

from swapwarden.api import names, rules, values
from swapwarden.api.profile.memory import MemoryQoSSpec, OverrideMemory, OverrideReclaim, ReclaimSpec
from swapwarden.api.profile.pressure import PressureSpec


class WorkloadControlled(rules.Model):
    """Bounds on what pods may ask for under behavior WorkloadControlled."""

    max_per_container: values.Quantity | None = None
    """Largest swap limit of one container. Absent: the node's swap."""
    max_per_pod: values.Quantity | None = None
    """Largest swap limit of one pod. Absent: the node's swap."""
    overcommit_percent: Annotated[int, pydantic.Field(ge=1, le=10_000)] | None = None
    """Bound on the sum of the swap limits of a node's pods, in percent of its swap less reserved (150). Once it is
    reached, new pods get the rest. Absent: no bound."""


BeforePlanChoice = Literal["NoSwap", "Unmanaged"]
RequirementChoice = Literal["Encrypted", "TmpfsNoSwap", "DedicatedDevice"]
BackingChoice = Literal["NVMe", "SSD", "HDD", "Virtual", "Network", "Zram", "File"]
"""The kinds of names.Backing that a profile can allow: those that the agent can recognise."""


class Swap(rules.Model):
    """How pods on these nodes get swap."""

    RULES = (
        rules.Rule(
            "!has(self.workloadControlled) || self.behavior == 'WorkloadControlled'",
            lambda swap: swap.workload_controlled is None or swap.behavior is names.Behavior.WORKLOAD_CONTROLLED,
            "workloadControlled has no effect unless behavior is WorkloadControlled: set the behavior or remove the"
            " bounds",
            ".workloadControlled",
        ),
    )

    behavior: Annotated[names.Behavior, pydantic.Field()] = names.Behavior.KUBELET
    """Kubelet: the kubelet's limits stay in force. NoSwap: no pod swaps. LimitedSwap: Burstable pods get swap in
    proportion to their memory requests (KEP-2400). WorkloadControlled: pods get the limits in their annotations."""
    before_plan: BeforePlanChoice = "NoSwap"
    """Swap of a pod cgroup that appears before the controller has planned it. NoSwap: none. Unmanaged: the kubelet's,
    so that a pod with policy Disabled may swap for a moment."""
    reserved: values.QuantityOrPercent | None = None
    """Swap kept back from pods: a quantity, or percent of the node's swap (50Mi, 10%)."""
    workload_controlled: WorkloadControlled | None = None
    """Bounds for behavior WorkloadControlled; refused with another behavior."""
    requirements: Annotated[list[RequirementChoice], *values.as_set(8)] | None = None
    """Conditions on a node before its pods get swap. If one is not met or unknown, they get none; the condition
    RequirementsMet names it. Encrypted: all swap devices encrypt their pages (dm-crypt), or are memory (zram).
    TmpfsNoSwap: the kubelet keeps its tmpfs volumes, Secrets among them, out of swap (Linux 6.4 or newer, or shown by
    the agent's mounts). DedicatedDevice: no disk under a swap device also holds the file systems of the kubelet or of
    the agent's state. Absent: none."""
    allowed_backing: Annotated[list[BackingChoice], *values.as_set(7)] | None = None
    """Allowed kinds of swap devices: a node's pods get swap only if each of its devices is one of these; see
    docs/labels.md. Absent: any."""


class Scheduling(rules.Model):
    """How the scheduler sees these nodes, beyond their labels."""

    taint_effect: Annotated[names.TaintEffect, pydantic.Field()] | None = None
    """Nodes whose pods get swap carry the taint node.swapwarden.dev/swap=true with this effect, once they have applied
    the profile. Pods with the policy Required or Preferred tolerate it. Absent: no taint."""
    extended_resource: Literal["Disabled", "Enabled"] = "Disabled"
    """Enabled: nodes offer the extended resource swapwarden.dev/swap, in bytes, once they have applied the profile: the
    bound on the sum of their pods' limits. The scheduler counts the containers' requests of it, which are their swap
    limits. Only with behavior WorkloadControlled, and a controller that may write the status of nodes (extendedResource
    in the chart)."""


class Rollout(rules.Model):
    """How a change of the profile reaches its nodes."""

    max_unavailable: values.NodesOrPercent = "25%"
    """How many of the profile's nodes may change to a new generation at once: a number, or percents, which are rounded
    down but never to 0. While a node that has it does worse than before, no other gets it. 100%: all at once, whatever
    happens."""
    paused: bool = False
    """Whether no further node gets the newest generation until this is false again."""
    on_swap_in_use: Literal["Proceed", "Hold"] = "Proceed"
    """For nodes where the change would take swap from pods that use it now (status.pendingReclaim has the amount).
    Proceed: the node changes in its turn. Hold: it keeps its limits until its pods use less."""


class Zswap(rules.Model):
    """The compressed cache in front of swap, of kernels that are built with it (CONFIG_ZSWAP)."""

    enabled: bool | None = None
    """Whether it is on. Absent: unchanged."""
    compressor: Literal["lzo", "lzo-rle", "lz4", "lz4hc", "zstd", "deflate", "842"] | None = None
    """Name of the kernel's compression algorithm, which must be built in or loaded. Absent: unchanged."""
    max_pool_percent: Annotated[int, pydantic.Field(ge=1, le=50)] | None = None
    """How much of the node's memory it may take, in percent. Absent: unchanged."""


class Kernel(rules.Model):
    """Settings of the node's kernel. Absent ones are not written, or are restored."""

    swappiness: Annotated[int, pydantic.Field(ge=0, le=200)] | None = None
    """vm.swappiness: how readily the kernel swaps rather than drops file pages. More than 100 only where swap is faster
    than the disk (zram, zswap)."""
    min_free_kbytes: Annotated[int, pydantic.Field(ge=1024, le=16_777_216)] | None = None
    """vm.min_free_kbytes: memory in KiB that the kernel keeps free. Nodes where it exceeds 5 % of the memory do not get
    it (Degraded, SettingsRefused)."""
    watermark_scale_factor: Annotated[int, pydantic.Field(ge=1, le=1000)] | None = None
    """vm.watermark_scale_factor, in 1/10000 of memory: how far apart the marks are at which the kernel begins to
    reclaim, and ends. 100 is 1 %."""
    page_cluster: Annotated[int, pydantic.Field(ge=0, le=8)] | None = None
    """vm.page-cluster: 2 to this power pages are read from swap at once. 0 for SSD, zram and zswap."""
    zswap: Zswap | None = None
    """The compressed cache in front of swap. Absent: unchanged."""


MAX_UNITS = 32


class SystemUnitSwap(rules.Model):
    """The swap of a slice or service of the node."""

    policy: Literal["Disabled"]
    """Disabled: no swap (memory.swap.max 0)."""


class SystemUnitIo(rules.Model):
    """The I/O of a slice or service on the disks that the node swaps to."""

    RULES = (
        rules.Rule(
            "has(self.latencyTargetMilliseconds) || has(self.weight)",
            lambda io: io.latency_target_milliseconds is not None or io.weight is not None,
            "io needs a latencyTargetMilliseconds or a weight: without both it changes nothing",
        ),
    )

    latency_target_milliseconds: Annotated[int, pydantic.Field(ge=1, le=10_000)] | None = None
    """Most time in milliseconds that one I/O should take (io.latency). If it takes longer, the kernel throttles the I/O
    of its neighbours. Absent: unchanged."""
    weight: Annotated[int, pydantic.Field(ge=1, le=10_000)] | None = None
    """Share of these disks' time, beside the 100 that its neighbours have (io.weight); only where the node's
    administrator has turned on iocost for the disk. Absent: unchanged."""


class SystemUnit(rules.Model):
    """Settings for one systemd slice or service of the node."""

    RULES = (
        rules.Rule(
            "has(self.swap) || has(self.io)",
            lambda unit: unit.swap is not None or unit.io is not None,
            "a unit needs swap or io: without both it changes nothing",
        ),
    )

    name: values.Unit
    """A slice (system.slice), which counts with all that is in it, or a service (kubelet.service). A slice that pods
    are in is refused on the node. Unique in the profile."""
    swap: SystemUnitSwap | None = None
    """Swap of the unit. Absent: unchanged."""
    io: SystemUnitIo | None = None
    """I/O of the unit on the disks that the node swaps to. Absent: unchanged."""


Named = TypeVar("Named", "SystemUnit", "ProfileOverride")


def _unique(items: list[Named]) -> list[Named]:
    values.no_duplicates([item.name for item in items])
    return items


MAX_OVERRIDES = 32


class OverrideSwap(rules.Model):
    """The swap of an override's pods."""

    RULES = (
        rules.Rule(
            "!(self.?policy.orValue('') == 'Disabled' && has(self.limit))",
            lambda swap: swap.policy != "Disabled" or swap.limit is None,
            "policy Disabled leaves no swap to limit: remove the limit, or the policy",
        ),
        rules.Rule(
            "has(self.policy) || has(self.limit)",
            lambda swap: swap.policy is not None or swap.limit is not None,
            "an override needs a policy or a limit: without both it changes nothing",
        ),
    )

    policy: Literal["Disabled", "NoPreference"] | None = None
    """Disabled: no swap, whatever the pod's policy. NoPreference: swap as this profile gives it, if Disabled is only
    the namespace's default. Other policies place pods, and so must be set when a pod is created."""
    limit: values.ListedQuantity | None = None
    """The pod's swap limit, unless its own annotations name a smaller one."""


class ProfileOverride(rules.Model):
    """Settings for pods whose owners cannot annotate them."""

    RULES = (
        rules.Rule(
            "has(self.namespaceSelector) || has(self.podSelector)",
            lambda override: override.namespace_selector is not None or override.pod_selector is not None,
            "an override needs a namespaceSelector or a podSelector; podSelector: {} selects all pods",
        ),
        rules.Rule(
            "has(self.swap) || has(self.memory) || has(self.reclaim)",
            lambda override: not (override.swap is None and override.memory is None and override.reclaim is None),
            "an override needs swap, memory or reclaim: without these it changes nothing",
        ),
    )

    name: Annotated[str, pydantic.Field(max_length=63, pattern=r"^[a-z0-9]([-a-z0-9]*[a-z0-9])?$")]
    """Name of the override, for messages and for server-side apply. Unique in the profile."""
    namespace_selector: values.LabelSelector | None = None
    """Over the labels of a pod's Namespace. Absent: pods of all namespaces."""
    pod_selector: values.LabelSelector | None = None
    """Over the labels of a pod. Absent: all pods of the namespaces."""
    swap: OverrideSwap | None = None
    """The swap of these pods. Absent: as without the override."""
    memory: OverrideMemory | None = None
    """Memory QoS of these pods. Absent: as without the override. Needs memoryQoS."""
    reclaim: OverrideReclaim | None = None
    """Reclaim of these pods. Absent: as without the override. Needs reclaim.mode."""


class ProfileSpec(rules.Model):
    """An administrator's decisions for a set of nodes."""

    RULES = (
        rules.Rule(
            "self.?scheduling.extendedResource.orValue('Disabled') == 'Disabled'"
            " || self.swap.behavior == 'WorkloadControlled'",
            lambda spec: (
                spec.scheduling.extended_resource == "Disabled"
                or spec.swap.behavior is names.Behavior.WORKLOAD_CONTROLLED
            ),
            "extendedResource needs swap.behavior WorkloadControlled: with another one the scheduler would count limits"
            " that give no swap",
            ".scheduling.extendedResource",
        ),
        rules.Rule(
            "has(self.memoryQoS) || !has(self.overrides) || self.overrides.all(one, !has(one.memory))",
            lambda spec: spec.memory_qos is not None or all(one.memory is None for one in spec.overrides),
            "overrides[].memory has no effect without memoryQoS: set memoryQoS ({} offers it to pods that ask), or"
            " remove memory from the overrides",
            ".overrides",
        ),
        rules.Rule(
            "self.?reclaim.mode.orValue('Off') != 'Off' || !has(self.overrides)"
            " || self.overrides.all(one, !has(one.reclaim))",
            lambda spec: (
                (spec.reclaim is not None and spec.reclaim.mode is not names.ReclaimMode.OFF)
                or all(one.reclaim is None for one in spec.overrides)
            ),
            "overrides[].reclaim has no effect with reclaim.mode Off: set the mode, or remove reclaim from the"
            " overrides",
            ".overrides",
        ),
    )

    node_selector: values.LabelSelector
    """Which nodes the profile governs. {} selects every node."""
    priority: Annotated[int, pydantic.Field(ge=-1_000_000, le=1_000_000)] = 100
    """If several profiles select a node, the highest priority wins; at a tie, the oldest profile."""
    mode: Literal["Enforce", "Audit"] = "Enforce"
    """Enforce: write and repair. Audit: compute and report, write nothing."""
    guarantee: Literal["Standard", "Strict"] = "Standard"
    """Standard: the agent watches pods' limits, and repairs external writes. Strict: even without an agent, the
    container runtime (NRI), systemd (drop-in files that the node needs) or both must hold them. The condition
    StrictInEffect reports which of them was observed to, and for which pods neither. With the drop-in files, a pod that
    swaps can be OOM-killed while the agent is down (docs/strict.md)."""
    swap: Swap = Swap()
    """How pods on these nodes get swap."""
    memory_qos: MemoryQoSSpec | None = None
    """Protection of the memory that these nodes' pods request, and throttling before they reach their memory limits.
    {}: only pods that ask by annotations, or by an override, have it. Absent: memory.min, memory.low and memory.high
    stay as they are, whatever pods ask."""
    pressure: PressureSpec | None = None
    """When these nodes count as under memory pressure. Absent: as with mode Off."""
    reclaim: ReclaimSpec | None = None
    """Moving idle memory of these nodes' pods to swap: only of pods that ask by annotation, or for which an override
    does. Absent: as with mode Off."""
    system_units: Annotated[
        list[SystemUnit], pydantic.Field(max_length=MAX_UNITS), pydantic.AfterValidator(_unique)
    ] = pydantic.Field(
        default=[], json_schema_extra={"x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": ["name"]}
    )
    """Slices and services of these nodes, besides pods: their swap and I/O."""
    kernel: Kernel = Kernel()
    """Settings of the nodes' kernels. Agents write them if the chart allows it (agent.kernel.vm,
    agent.kernel.zswap)."""
    scheduling: Scheduling = Scheduling()
    """How the scheduler sees these nodes."""
    rollout: Rollout = Rollout()
    """How a change reaches these nodes."""
    overrides: Annotated[
        list[ProfileOverride], pydantic.Field(max_length=MAX_OVERRIDES), pydantic.AfterValidator(_unique)
    ] = pydantic.Field(
        default=[], json_schema_extra={"x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": ["name"]}
    )
    """For pods on these nodes that nobody can annotate. The first that selects a pod counts; server-side apply keeps
    the order of the applier. A pod's own annotations win if they are stricter."""
