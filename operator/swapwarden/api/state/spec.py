"""NodeSwapState.spec: the plan of one node."""

from __future__ import annotations

from typing import Annotated

import msgspec

from swapwarden.api import names

SwapMax = Annotated[
    str,
    msgspec.Meta(
        pattern=r"^(max|0|[1-9][0-9]{0,18})$",
        description="As the kernel file memory.swap.max takes it: max, 0, or bytes floored to the page.",
    ),
]
"""A value of memory.swap.max, as text."""

MemoryBytes = Annotated[
    str,
    msgspec.Meta(
        pattern=r"^(max|0|[1-9][0-9]{0,18})$",
        description="As the kernel's memory files take it: max, 0, or bytes floored to the page.",
    ),
]
"""A value of memory.min, memory.low or memory.high, as text."""


Setting = Annotated[str, msgspec.Meta(pattern=r"^[0-9A-Za-z-]{1,32}$")]
"""A value of one of the kernel's settings, as its file takes it."""

POD_KEY = r"[0-9a-fA-F][0-9a-fA-F-]{6,126}[0-9a-fA-F]"
"""A UID as the names of pods' cgroups have it: agents find no other form."""


def _map(most: int, rule: str, message: str) -> msgspec.Meta:
    """Bound a map: at most so many entries, and a CEL rule on each key."""
    check = {"rule": f"self.all(key, {rule})", "message": message}
    return msgspec.Meta(max_length=most, extra_json_schema={"x-kubernetes-validations": [check]})


MAX_SETTINGS = 16
MAX_UNITS = 33
"""system.slice beside as many as a profile may have."""
MAX_PODS = 2048
MAX_CONTAINERS = 128
ID_LENGTH = 13
"""Characters of a container's id that a state has: as many as crictl shows."""
MAX_EVICTED = 60
"""Evictions from a node in an hour, as a profile may allow."""
MAX_PODS_BYTES = 768 * 1024
"""Bytes of JSON that pods may take, with their part of a preview. The whole object, with what a profile and an agent
add at most, must stay well below what etcd takes (1.5 MiB) and what an API server sends it (2 MiB)."""
MAX_REASON = 64
"""Characters of a condition's reason that are compared with what it is later."""


class CgroupSettings(msgspec.Struct, frozen=True, omit_defaults=True, rename="camel"):
    """Settings of one cgroup by name. The agent does not write the files of absent ones, or restores them."""

    swap_max: SwapMax | None = None
    """Value of memory.swap.max. Absent: not written."""
    memory_min: MemoryBytes | None = None
    """Value of memory.min: memory that the kernel never reclaims. Absent: not written."""
    memory_low: MemoryBytes | None = None
    """Value of memory.low: memory that the kernel reclaims last. Absent: not written."""
    memory_high: MemoryBytes | None = None
    """Value of memory.high: the use from which the kernel throttles. Absent: not written."""


class CappedSettings(CgroupSettings, frozen=True, omit_defaults=True, rename="camel"):
    """Settings of a cgroup to which the kubelet also gives values."""

    swap_at_most: SwapMax | None = None
    """The most that memory.swap.max may hold: a smaller value of the kubelet or systemd stays. Never beside swapMax."""


class ContainerDefault(CappedSettings, frozen=True, omit_defaults=True, rename="camel"):
    """Settings of a container's cgroup."""


class ContainerSettings(ContainerDefault, frozen=True, omit_defaults=True, rename="camel"):
    """Settings of one named container's cgroup."""

    id: Annotated[str, msgspec.Meta(pattern=r"^[0-9A-Za-z_.-]{1,13}$")] | None = None
    """First 13 characters of the running container's id, as crictl shows it, without the runtime's prefix. Absent while
    it does not run."""


class PodSettings(CappedSettings, frozen=True, omit_defaults=True, rename="camel"):
    """Settings of one pod's cgroups. Without swapMax and swapAtMost, the kubelet and systemd decide."""

    reason: names.Reason | None = None
    """The rule that gave swapMax; see docs/semantics.md. Absent: defaultReason."""
    reclaim: names.ReclaimMode | None = None
    """When idle memory of the pod is moved to swap, within the bounds of spec.reclaim. Absent: never."""
    container_default: ContainerDefault | None = None
    """For each container that containers does not name, also before it starts: no write is needed when it does."""
    containers: Annotated[
        dict[str, ContainerSettings], _map(MAX_CONTAINERS, "key.size() <= 63", "keys are names of containers")
    ] = {}
    """Settings by container name, if containers need different values."""


class ProfileRef(msgspec.Struct, frozen=True, omit_defaults=True, rename="camel"):
    """The profile that a plan was made from."""

    name: Annotated[str, msgspec.Meta(max_length=253)]
    """Name of the NodeSwapProfile; (built-in) if none selects it."""
    generation: Annotated[int, msgspec.Meta(ge=0)] = 0
    """metadata.generation of that profile."""


class UnitSettings(CgroupSettings, frozen=True, omit_defaults=True, rename="camel"):
    """Settings of one of the node's own units. Absent ones are not written, or restored."""

    io_latency_microseconds: Annotated[int, msgspec.Meta(ge=1000, le=10_000_000)] | None = None
    """Target in io.latency, for each disk that the node swaps to."""
    io_weight: Annotated[int, msgspec.Meta(ge=1, le=10_000)] | None = None
    """io.weight, for each disk that the node swaps to."""


class GuardSettings(msgspec.Struct, frozen=True, omit_defaults=True, rename="camel"):
    """The agent's answer to pods that are stuck at their memory.high."""

    action: names.GuardAction = names.GuardAction.RELEASE
    """About values of this state. Release: raise memory.high, and report. Report: report only."""
    window_seconds: Annotated[int, msgspec.Meta(ge=4, le=600)] = 10
    """How long a pod must be stuck."""
    hold_seconds: Annotated[int, msgspec.Meta(ge=30, le=3600)] = 300
    """How long a released pod stays without memory.high, at least."""
    kubelet: names.KubeletGuard = names.KubeletGuard.OFF
    """About values of the kubelet or of another writer. Release: replace them by max, and report. Report: report only.
    Off: do not look at them."""


class HeadroomThresholds(msgspec.Struct, frozen=True, omit_defaults=True, rename="camel"):
    """When the headroom of a node is a signal of memory pressure."""

    below_bytes: Annotated[int, msgspec.Meta(ge=0)]
    """The signal is set once the headroom has been below this for forMilliseconds, or earlier (see there)."""
    clear_bytes: Annotated[int, msgspec.Meta(ge=0)]
    """The signal is cleared above this headroom."""
    for_milliseconds: Annotated[int, msgspec.Meta(ge=0, le=600_000)]
    """How long the headroom must be below before the signal is set. From clearBytes on it is set at once if the
    headroom falls so fast that nothing would be left within this time, unless the signal has ended in the same time
    before."""


class StallThresholds(msgspec.Struct, frozen=True, omit_defaults=True, rename="camel"):
    """When the stall of a node is a signal of memory pressure."""

    full_permille: Annotated[int, msgspec.Meta(ge=1, le=1000)]
    """The signal is set once all tasks stall for more than this share of the time, and cleared below half of it."""
    over_milliseconds: Annotated[int, msgspec.Meta(ge=1, le=600_000)]
    """The time over which the share is taken."""


class EvictedPod(msgspec.Struct, frozen=True, omit_defaults=True, rename="camel"):
    """The pod that the controller evicts from the node. It is written before the request to the API server."""

    uid: Annotated[str, msgspec.Meta(min_length=1, max_length=128)]
    """metadata.uid of the pod."""
    namespace: Annotated[str, msgspec.Meta(min_length=1, max_length=63)]
    """Namespace of the pod."""
    name: Annotated[str, msgspec.Meta(min_length=1, max_length=253)]
    """Name of the pod."""
    seq: Annotated[int, msgspec.Meta(ge=1)]
    """The report (status.pressure.seq) that it was chosen by."""


class PressureSettings(msgspec.Struct, frozen=True, omit_defaults=True, rename="camel"):
    """When the node counts as under memory pressure."""

    headroom: HeadroomThresholds
    """Thresholds of the memory that can still be handed out."""
    stall: StallThresholds
    """Thresholds of the time in which all tasks wait for memory at once."""
    report_seconds: Annotated[int, msgspec.Meta(ge=1, le=600)] = 30
    """How long after a report the next one follows."""
    victim: EvictedPod | None = None
    """The pod that is evicted now. Absent: none."""
    evicted_at: Annotated[
        list[Annotated[str, msgspec.Meta(pattern=r"^\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ$")]],
        msgspec.Meta(max_length=MAX_EVICTED),
    ] = []
    """When pods that were evicted from the node were chosen, RFC 3339: those of an hour. A new leader counts them."""

    def planned(self) -> PressureSettings:
        """Return the part that the plan decides: all but evictions."""
        if self.victim is None and not self.evicted_at:
            return self
        return msgspec.structs.replace(self, victim=None, evicted_at=[])


class ReclaimSettings(msgspec.Struct, frozen=True, omit_defaults=True, rename="camel"):
    """Bounds on moving idle memory of pods to swap."""

    max_stall_permille: Annotated[int, msgspec.Meta(ge=1, le=100)]
    """How long tasks of a pod may wait for memory, in thousandths of the time."""
    interval_seconds: Annotated[int, msgspec.Meta(ge=2, le=600)]
    """Seconds between two steps of a pod."""
    step_percent: Annotated[int, msgspec.Meta(ge=1, le=10)]
    """The most that a step takes, in percent of the pod's memory in use."""
    keep_swap_free_bytes: Annotated[int, msgspec.Meta(ge=0)]
    """Swap that stays free on the node."""
    writes_per_day_bytes: Annotated[int, msgspec.Meta(ge=0)]
    """The most that is moved within 24 hours, of all pods."""


class ProfilePreview(msgspec.Struct, frozen=True, omit_defaults=True, rename="camel"):
    """The limits of a profile once it is in force on this node. None of them is enforced."""

    profile_ref: ProfileRef
    """The next profile."""
    pods: Annotated[dict[str, SwapMax], msgspec.Meta(max_length=MAX_PODS)] = {}
    """Pods that will get less than now, by UID as in pods."""


class StateSpec(msgspec.Struct, frozen=True, omit_defaults=True, rename="camel"):
    """Written by the leading controller only."""

    profile_ref: ProfileRef
    """The profile in force."""
    mode: names.Mode = names.Mode.ENFORCE
    """Enforce: write and repair. Audit: report only. Restore: write back earlier values."""
    guarantee: names.Guarantee = names.Guarantee.STANDARD
    """Strict: the agent reports for which pods it observed that the container runtime or systemd holds their limits."""
    before_plan: names.BeforePlan = names.BeforePlan.NO_SWAP
    """For pods without an entry in pods yet. NoSwap: their cgroups get 0. Unmanaged: no write."""
    epoch: Annotated[int, msgspec.Meta(ge=0)] = 0
    """The writer's leadership term. A write with a smaller one is refused."""
    default_reason: names.Reason | None = None
    """The reason of pods without their own. It does not change any limit."""
    kubepods: CgroupSettings | None = None
    """For the cgroup above all pods: the node's swap less the profile's swap.reserved, and the sum of its pods'
    protected memory. Absent: not written, or restored."""
    burstable: CgroupSettings | None = None
    """For the cgroup above all Burstable pods: the sum of their protected memory. Absent: not written, or restored."""
    memory_guard: GuardSettings | None = None
    """For pods with memory.high. Absent: as with all of its defaults."""
    pressure: PressureSettings | None = None
    """When the agent reports memory pressure. Absent: never."""
    reclaim: ReclaimSettings | None = None
    """For pods whose idle memory is moved to swap. Absent: no pod's is."""
    pods: Annotated[
        dict[str, PodSettings],
        _map(
            MAX_PODS,
            f"key.size() <= 128 && key.matches('^{POD_KEY}$')",
            "keys are UIDs: 8 to 128 hexadecimal digits and dashes",
        ),
    ] = {}
    """Settings by the UID in the name of the pod's cgroup (the kubelet's config hash for static pods). A map keeps a
    write for one pod small."""
    units: Annotated[
        dict[str, UnitSettings], _map(MAX_UNITS, "key.size() <= 128", "keys are names of slices and services")
    ] = {}
    """The node's own systemd slices and services, by name. A removed one is restored."""
    kernel_settings: Annotated[dict[str, Setting], msgspec.Meta(max_length=MAX_SETTINGS)] = {}
    """Settings of the kernel by name (vm.swappiness, zswap.enabled), as their files take them."""
    preview: ProfilePreview | None = None
    """The next profile; see status.previewCost."""
    degraded_before: Annotated[
        list[Annotated[str, msgspec.Meta(max_length=MAX_REASON)]], msgspec.Meta(max_length=3)
    ] = []
    """Problems of the node before it got this generation of the profile: the reason of the condition Degraded,
    SettingsRefused, and NoAnswer if the agent did not answer. They stop no rollout."""


def reason_of(spec: StateSpec, pod: PodSettings) -> names.Reason | None:
    """Return the rule that gave a pod of `spec` its swapMax; None where a controller of another version left it out."""
    return pod.reason or spec.default_reason


def protected_bytes(settings: CgroupSettings | None, *, recursive: bool = True) -> int:
    """Return what memory.min and memory.low protect together, in bytes; with `max`, more than any node has.

    `recursive`: the mount option memory_recursiveprot. Without it, memory.low also counts what memory.min protects.
    """
    values = (None, None) if settings is None else (settings.memory_min, settings.memory_low)
    amounts = [1 << 62 if each == names.MAX_SWAP else int(each or 0) for each in values]
    return sum(amounts) if recursive else max(amounts)
