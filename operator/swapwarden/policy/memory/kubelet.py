"""The kubelet's own values of memory.min, memory.low, memory.high and memory.swap.max (KEP-2570 and KEP-2400).

From k/k of 1.36.3 and 1.37.2: pkg/kubelet/kuberuntime/kuberuntime_container_linux.go for containers,
pkg/kubelet/cm/helpers_linux.go for pods, and pkg/kubelet/cm/qos_container_manager_linux.go above them. Dynamic resource
allocation of memory, an alpha feature, is left out.
"""

from __future__ import annotations

import enum
import math
import struct
from collections.abc import Iterable, Mapping
from typing import Any, Final

import msgspec

from swapwarden.api import names, quantity
from swapwarden.policy.observed import nodes, pods, resources
from swapwarden.policy.swap import limits

_MEMORY: Final = "memory"
_AVAILABLE: Final = "memory.available"
_EVICTION: Final = "100Mi"
"""The threshold of memory.available where evictionHard is not set (k/k: pkg/kubelet/apis/config/v1beta1)."""
_OLD_FACTOR: Final = 0.9
"""1.36's default, which 1.37 tolerates with the gate off."""
_POLICIES: Final = (names.ReservationPolicy.NONE, names.ReservationPolicy.TIERED_RESERVATION)


class Version(enum.StrEnum):
    """Minor versions of kubelets whose values are known."""

    V1_36 = "1.36"
    V1_37 = "1.37"


class Fault(enum.StrEnum):
    """Known faults of a kubelet's values."""

    NO_KUBEPODS_LOW = "NoKubepodsLow"
    """1.36 writes no memory.low on kubepods, so that of Burstable pods has no effect."""
    HARD_FOR_BURSTABLE = "HardForBurstable"
    """memory.min on kubepods has the requests of Burstable pods also. It leaks to their neighbours: the kernel rather
    OOM-kills than reclaims the page cache of others."""
    CONTAINER_MIN = "ContainerMin"
    """A container's memory.min is its limit: where it fills that with page cache, the kernel OOM-kills it."""


class KubeletConfigError(ValueError):
    """The kubelet would refuse the configuration; the arguments are the field and the reason."""


class _MemorySwap(msgspec.Struct, frozen=True, rename="camel"):
    swap_behavior: str = ""


_Amount = str | int | float


class _Configuration(msgspec.Struct, frozen=True, rename="camel"):
    """The fields of a KubeletConfiguration that are read."""

    feature_gates: dict[str, bool] = {}
    memory_throttling_factor: float | None = None
    memory_reservation_policy: str = ""
    memory_swap: _MemorySwap = _MemorySwap()
    fail_swap_on: bool = True
    system_reserved: dict[str, _Amount] = {}
    kube_reserved: dict[str, _Amount] = {}
    eviction_hard: dict[str, _Amount] = {}
    merge_default_eviction_settings: bool = False


class KubeletSettings(msgspec.Struct, frozen=True):
    """A kubelet's settings that decide its values."""

    version: Version
    memory_qos: bool
    """Whether the feature gate MemoryQoS is on."""
    throttling_factor: float | None = None
    """Where memory.high lies between request and limit, from 0 (exclusive) to 1. None: no memory.high."""
    tiered: bool = False
    """Whether memoryReservationPolicy is TieredReservation."""
    pod_level_resources: bool = True
    """Whether the feature gate PodLevelResources is on."""
    limited_swap: bool = False
    fail_swap_on: bool = True
    """Whether the kubelet refuses to start on a node with swap."""
    reserved: int | None = None
    """Memory that is reserved for the system and the kubelet, in bytes; None where the configuration does not say."""
    eviction: str = _EVICTION
    """The threshold of memory.available at which pods are evicted: a quantity or percents."""


class MemoryFiles(msgspec.Struct, frozen=True, omit_defaults=True):
    """Values of one cgroup's files by name, as text; None where the kubelet writes nothing."""

    minimum: str | None = msgspec.field(default=None, name="memory.min")
    low: str | None = msgspec.field(default=None, name="memory.low")
    high: str | None = msgspec.field(default=None, name="memory.high")
    swap_max: str | None = msgspec.field(default=None, name="memory.swap.max")

    def floored(self, page: int) -> MemoryFiles:
        """Return the values that the kernel keeps of these: floored to the page."""
        values = (self.minimum, self.low, self.high, self.swap_max)
        return MemoryFiles(*(text if text in {None, names.MAX_SWAP} else _floored(text, page) for text in values))


class PodFiles(msgspec.Struct, frozen=True):
    """A pod's values, and those of its containers by name."""

    row: pods.PodRow
    files: MemoryFiles
    containers: Mapping[str, MemoryFiles]


class NodeFiles(msgspec.Struct, frozen=True):
    """All values that a kubelet writes on one node."""

    kubepods: MemoryFiles
    burstable: MemoryFiles
    pods: tuple[PodFiles, ...]
    """Sorted by namespace and name; pods that have ended are left out."""


def read(version: Version, document: Mapping[str, Any]) -> KubeletSettings:
    """Return the settings in a KubeletConfiguration, with the version's defaults. KubeletConfigError for a refused one.

    The API server's answer at /api/v1/nodes/NAME/proxy/configz is understood also.
    """
    try:
        config = msgspec.convert(document.get("kubeletconfig", document), _Configuration)
    except msgspec.ValidationError as error:
        text, _, path = str(error).partition(" - at `$")
        raise KubeletConfigError(path.strip("`.") or "document", text) from None
    gates, old = config.feature_gates, version is Version.V1_36
    memory_qos = gates.get("MemoryQoS", gates.get("AllAlpha", False) if old else gates.get("AllBeta", True))
    _check(config, version, memory_qos=memory_qos)
    reserved = [each[_MEMORY] for each in (config.system_reserved, config.kube_reserved) if _MEMORY in each]
    eviction = config.eviction_hard.get(_AVAILABLE)
    if eviction is None:
        eviction = "0" if config.eviction_hard and not config.merge_default_eviction_settings else _EVICTION
    return KubeletSettings(
        version=version,
        memory_qos=memory_qos,
        throttling_factor=(config.memory_throttling_factor or (_OLD_FACTOR if old else None)) if memory_qos else None,
        tiered=config.memory_reservation_policy == names.ReservationPolicy.TIERED_RESERVATION,
        pod_level_resources=gates.get("PodLevelResources", gates.get("AllBeta", True)),
        limited_swap=config.memory_swap.swap_behavior == names.Behavior.LIMITED_SWAP,
        fail_swap_on=config.fail_swap_on,
        reserved=sum(_amount("systemReserved, kubeReserved", each) for each in reserved) if reserved else None,
        eviction=str(eviction),
    )


def _check(config: _Configuration, version: Version, *, memory_qos: bool) -> None:
    """Refuse what that kubelet refuses (k/k: pkg/kubelet/apis/config/validation/validation.go)."""
    factor, policy = config.memory_throttling_factor, config.memory_reservation_policy
    if factor is not None and not 0 < factor <= 1:
        raise KubeletConfigError("memoryThrottlingFactor", f"{factor} is not above 0 and at most 1")
    gate = "needs featureGates.MemoryQoS: true"
    if factor not in {None, _OLD_FACTOR} and version is Version.V1_37 and not memory_qos:
        raise KubeletConfigError("memoryThrottlingFactor", gate)
    if policy and policy not in _POLICIES:
        raise KubeletConfigError("memoryReservationPolicy", f"{policy[:64]!r} is not one of {', '.join(_POLICIES)}")
    if policy == names.ReservationPolicy.TIERED_RESERVATION and not memory_qos:
        raise KubeletConfigError("memoryReservationPolicy", f"{policy} {gate}")
    _share(str(config.eviction_hard.get(_AVAILABLE, 0)), 0)


def _amount(field: str, amount: _Amount) -> int:
    try:
        return quantity.capped(str(amount))
    except quantity.QuantityError as error:
        raise KubeletConfigError(field, str(error)) from None


def _share(text: str, total: int) -> int:
    """Return the bytes of a threshold; the kubelet also takes parts of a percent."""
    share = text.removesuffix("%")
    if share == text:
        return _amount(f"evictionHard[{_AVAILABLE}]", text)
    try:
        part = float(share)
    except ValueError:
        part = -1.0
    if not 0 <= part <= 100:
        raise KubeletConfigError(f"evictionHard[{_AVAILABLE}]", f"{text[:64]!r} is not a share from 0% to 100%")
    return int(total * _float32(_float32(part) / 100))


def _float32(value: float) -> float:
    """Return the value as exact as the kubelet keeps shares (k/k: pkg/kubelet/eviction/helpers.go)."""
    return float(*struct.unpack("f", struct.pack("f", value)))


def for_pods(config: KubeletSettings, capacity: int, allocatable: int | None) -> int:
    """Return the bytes from which memory.high is computed where a container has no limit.

    They are the capacity of the node less its reservations, without the threshold of evictions. Where the configuration
    reserves nothing, the Node's status.allocatable decides, as flags may reserve also; None if it has none.
    """
    if config.reserved is not None:
        return max(0, capacity - config.reserved)
    if allocatable is None:
        return capacity
    return min(capacity, allocatable + _share(config.eviction, capacity))


def throttled_from(request: int, bound: int, factor: float, page: int) -> int:
    """Return KEP-2570's memory.high in bytes, as the kubelet computes it: float64, floored to the byte, then the page.

    `request` and `bound` are bytes. The bound is the limit, or the memory for pods where there is none.
    """
    at = math.floor(float(request) + (float(bound) - float(request)) * factor)
    return int(float(at) / float(page)) * page


def container_files(
    config: KubeletSettings, node: nodes.NodeFacts, row: pods.PodRow, one: pods.ContainerRow, available: int
) -> MemoryFiles:
    """Return the values of a container; `available` bytes are the memory for pods, as for_pods() returns it."""
    swap = _swap(config, node, row, one)
    if not config.memory_qos:
        return MemoryFiles(high=names.MAX_SWAP if config.version is Version.V1_37 else None, swap_max=swap)
    high = _container_high(config, row, one, available, node.page_size)
    return (
        _protected(row, one.request, high, swap) if config.tiered and one.request else MemoryFiles("0", "0", high, swap)
    )


def _protected(row: pods.PodRow, request: int, high: str | None, swap: str | None = None) -> MemoryFiles:
    """Return the values of a pod or of its container whose whole request is protected."""
    if row.qos is resources.Class.GUARANTEED:
        return MemoryFiles(minimum=str(request), high=high, swap_max=swap)
    return MemoryFiles(low=str(request), high=high, swap_max=swap)


def _swap(config: KubeletSettings, node: nodes.NodeFacts, row: pods.PodRow, one: pods.ContainerRow) -> str | None:
    """Return memory.swap.max, not floored; None without the swap controller.

    A kubelet with failSwapOn starts on nodes without swap only, where the formula gives 0.
    """
    if not node.compatible:
        return None
    if not config.limited_swap or config.fail_swap_on or row.critical or row.qos is not resources.Class.BURSTABLE:
        return "0"
    return str(limits.container_swap(one.request, one.limit, node.memory_bytes, node.swap_bytes))


def _container_high(
    config: KubeletSettings, row: pods.PodRow, one: pods.ContainerRow, available: int, page: int
) -> str | None:
    request, limit, factor = one.request, one.limit, config.throttling_factor
    if factor is None:
        return None
    if config.version is Version.V1_36:
        if request == limit:
            return None
    elif (request == limit and request) or (not limit and config.pod_level_resources and row.whole.limit):
        return None
    return _high(request, limit or available, factor, page)


def pod_files(config: KubeletSettings, row: pods.PodRow, page: int) -> MemoryFiles:
    """Return the values of a pod's own cgroup."""
    if not config.memory_qos:
        return MemoryFiles()
    whole = config.pod_level_resources
    request = pods.pod_request(row, whole=whole)
    high = _pod_high(config, row, page)
    return _protected(row, request, high) if config.tiered and request else MemoryFiles(high=high)


def _pod_high(config: KubeletSettings, row: pods.PodRow, page: int) -> str | None:
    factor, limit = config.throttling_factor, pods.pod_limit(row)
    counts = config.pod_level_resources and row.whole.stated and pods.is_limited(row)
    if factor is None or config.version is Version.V1_36 or not (counts and limit):
        return None
    return _high(pods.pod_request(row), limit, factor, page)


def _high(request: int, bound: int, factor: float, page: int) -> str | None:
    high = throttled_from(request, bound, factor, page)
    return str(high) if high > request else None


def _above(config: KubeletSettings, rows: Iterable[pods.PodRow]) -> tuple[MemoryFiles, MemoryFiles]:
    """Return the values of kubepods and of burstable."""
    new = config.version is Version.V1_37
    if not config.memory_qos and not new:
        return MemoryFiles(), MemoryFiles()
    if not config.tiered:
        # 1.37 writes these once, when it starts.
        return MemoryFiles(minimum="0", low="0" if new else None), MemoryFiles(low="0")
    # These sums have the resources of whole pods whatever the gate.
    requests = [(row.qos, pods.pod_request(row)) for row in rows if row.qos is not resources.Class.BEST_EFFORT]
    every = str(sum(request for _, request in requests))
    burstable = str(sum(request for qos, request in requests if qos is resources.Class.BURSTABLE))
    return MemoryFiles(minimum=every, low=burstable if new else None), MemoryFiles(low=burstable)


def faults(config: KubeletSettings, rows: Iterable[pods.PodRow]) -> tuple[Fault, ...]:
    """Return the known faults of the values on a node with these pods, in the order of Fault."""
    if not (config.memory_qos and config.tiered):
        return ()
    running = [row for row in rows if not row.terminal and pods.pod_request(row)]
    burstable = any(row.qos is resources.Class.BURSTABLE for row in running)
    faulty = {
        Fault.NO_KUBEPODS_LOW: burstable and config.version is Version.V1_36,
        Fault.HARD_FOR_BURSTABLE: burstable,
        Fault.CONTAINER_MIN: any(row.qos is resources.Class.GUARANTEED for row in running),
    }
    return tuple(fault for fault, there in faulty.items() if there)


def node_files(
    config: KubeletSettings, node: nodes.NodeFacts, rows: Iterable[pods.PodRow], allocatable: int | None = None
) -> NodeFiles:
    """Return all values that a kubelet writes on a node with these pods, in any order.

    `allocatable` is the memory in the Node's status.allocatable, in bytes; None if it has none.
    """
    running = sorted((row for row in rows if not row.terminal), key=lambda row: (row.namespace, row.name))
    available = for_pods(config, node.memory_bytes, allocatable)
    kubepods, burstable = _above(config, running)
    planned = []
    for row in running:
        containers = {one.name: container_files(config, node, row, one, available) for one in row.containers}
        planned.append(PodFiles(row, pod_files(config, row, node.page_size), containers))
    return NodeFiles(kubepods, burstable, tuple(planned))


def _floored(text: str, page: int) -> str:
    return str(limits.floor_to_page(int(text), page))
