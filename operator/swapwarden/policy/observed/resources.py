"""A pod's resources: their peak over the phases of its start, its QoS class, and what its annotations ask about memory.

Peak and class are computed as the API server does (k/k: component-helpers/resource/helpers.go and
pkg/apis/core/helper/qos/qos.go).
"""

from __future__ import annotations

import enum
import functools
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Final

import msgspec

from swapwarden.api import names, quantity, throttling

Written = str | int | float
"""A quantity as YAML may read it: `cpu: 2` and `cpu: 0.5` are numbers."""

_NAMES = ("cpu", "memory")


class Kind(enum.StrEnum):
    """The role of a container in its pod; a sidecar is an init container with restartPolicy Always."""

    APP = "App"
    INIT = "Init"
    SIDECAR = "Sidecar"
    EPHEMERAL = "Ephemeral"


def peak(amounts: Iterable[tuple[Kind, int]]) -> int:
    """Return the largest sum of amounts in use at one time; in the order of the spec, init containers first.

    An init container runs together with the sidecars before it; app containers run together with all sidecars.
    Ephemeral containers have no resources and are not counted.
    """
    apps = sidecars = highest = 0
    for kind, amount in amounts:
        if kind is Kind.APP:
            apps += amount
        elif kind is Kind.SIDECAR:
            sidecars += amount
        elif kind is Kind.INIT:
            highest = max(highest, sidecars + amount)
    return max(highest, sidecars + apps)


def peak_at_most(amounts: Iterable[tuple[Kind, int]]) -> int:
    """Return the largest `peak` that these containers have in any order: the kind of each counts, and not its place."""
    apps = sidecars = largest = 0
    for kind, amount in amounts:
        if kind is Kind.APP:
            apps += amount
        elif kind is Kind.SIDECAR:
            sidecars += amount
        elif kind is Kind.INIT:
            largest = max(largest, amount)
    return sidecars + max(apps, largest)


class Class(enum.StrEnum):
    """QoS classes of pods."""

    GUARANTEED = "Guaranteed"
    BURSTABLE = "Burstable"
    BEST_EFFORT = "BestEffort"


class ResourceList(msgspec.Struct, frozen=True):
    """Amounts of the two resources that decide the QoS class, and of swap, which does not."""

    cpu: Written | None = None
    memory: Written | None = None
    swap: Written | None = msgspec.field(default=None, name=names.SWAP_RESOURCE)


class Resources(msgspec.Struct, frozen=True):
    """Resources of a container or of a whole pod: the fields that are read."""

    requests: ResourceList = ResourceList()
    limits: ResourceList = ResourceList()

    def quantities(self, path: str) -> Iterator[tuple[str, str]]:
        """Yield the amounts that are set, with their paths below `path`."""
        for part, amounts in (("requests", self.requests), ("limits", self.limits)):
            for name in _NAMES:
                value = getattr(amounts, name)
                if value is not None:
                    yield f"{path}.{part}.{name}", str(value)
            if amounts.swap is not None:
                yield f"{path}.{part}[{names.SWAP_RESOURCE}]", str(amounts.swap)


_Amounts = dict[str, int]
"""Amounts by resource, in billionths, which is as exact as the API server is."""


def compute(pod: Resources | None, containers: Sequence[tuple[Kind, Resources]]) -> Class:
    """Return the QoS class of a pod with these resources; `containers` are init and app containers, in this order.

    Resources of the whole pod decide if it has any (KEP-2837). QuantityError if one is no quantity.
    """
    limits = [(kind, _stated(resources.limits)) for kind, resources in containers]
    # The API server fills in a missing request from the limit.
    requests = [
        (kind, {**limit, **_stated(one.requests)}) for (kind, limit), (_, one) in zip(limits, containers, strict=True)
    ]
    if pod is None:
        limited = all(len(_above_zero(limit)) == len(_NAMES) for _, limit in limits)
        return _classify(_sum(requests), _sum(limits), limited=limited)
    of_pod = _stated(pod.limits)
    # For the whole pod, it fills in the request first from the containers' requests.
    filled = {**of_pod, **_peaks(requests)} if of_pod else {}
    of_pod = _above_zero(of_pod)
    return _classify(_above_zero({**filled, **_stated(pod.requests)}), of_pod, limited=len(of_pod) == len(_NAMES))


def _classify(requests: _Amounts, limits: _Amounts, *, limited: bool) -> Class:
    if not requests and not limits:
        return Class.BEST_EFFORT
    return Class.GUARANTEED if limited and requests == limits else Class.BURSTABLE


def _stated(amounts: ResourceList) -> _Amounts:
    stated = {name: getattr(amounts, name) for name in _NAMES}
    return {name: quantity.nano(str(value)) for name, value in stated.items() if value is not None}


def _above_zero(amounts: _Amounts) -> _Amounts:
    return {name: value for name, value in amounts.items() if value > 0}


def _sum(each: Sequence[tuple[Kind, _Amounts]]) -> _Amounts:
    return _above_zero({name: sum((one.get(name, 0) for _, one in each)) for name in _NAMES})


def _peaks(each: Sequence[tuple[Kind, _Amounts]]) -> _Amounts:
    stated = {name for _, one in each for name in one}
    return {name: peak((kind, one.get(name, 0)) for kind, one in each) for name in stated}


_MEMORY_KEYS: Final = frozenset(
    {
        names.MEMORY_RESERVATION_ANNOTATION,
        names.MEMORY_LOW_ANNOTATION,
        names.MEMORY_THROTTLING_ANNOTATION,
        names.MEMORY_HIGH_ANNOTATION,
    }
)
_MAX_SHARED: Final = 8
"""Containers with a memory.high of their own, of pods that are remembered for others."""

_NO_AMOUNT: Final = -1


class MemoryAsks(msgspec.Struct, frozen=True, gc=False):
    """The annotations of a pod about memory. Sizes in bytes, not compared with the pod's request and limit.

    Admission refuses invalid values. A pod that has one in spite of that gets no protection, or no memory.high.
    """

    reservation: names.ReservationPolicy | None = None
    """The memory-reservation annotation, NONE or SOFT; None without it."""
    low: int | None = None
    """The amount to protect in place of the share of the request. With a reservation of NONE it has no effect."""
    throttling: int | None = None
    """The memory-throttling annotation in percent, throttling.NEVER for Disabled; None without the annotation."""
    high: int | None = None
    """memory.high in place of the share."""
    container_high: tuple[tuple[str, int], ...] = ()
    """memory.high of containers, by name, in the order of the spec; throttling.NEVER for an invalid value."""

    @property
    def wants_protection(self) -> bool:
        """Whether the pod asks for memory.low."""
        return self.reservation is names.ReservationPolicy.SOFT or (self.reservation is None and bool(self.low))

    @property
    def wants_throttling(self) -> bool:
        """Whether the pod asks for memory.high."""
        if self.throttling == throttling.NEVER:
            return False
        return bool(self.throttling or self.high or any(high for _, high in self.container_high))


def memory_asks(annotations: Mapping[str, str], containers: Iterable[str]) -> MemoryAsks | None:
    """Return what a pod with these containers asks about memory, None if nothing, as for most pods.

    Pods that ask the same share one object. Keys for other containers have no effect.
    """
    if not any(map(_is_about_memory, annotations)):
        return None
    low, high = (_bytes(annotations.get(key)) for key in (names.MEMORY_LOW_ANNOTATION, names.MEMORY_HIGH_ANNOTATION))
    share = annotations.get(names.MEMORY_THROTTLING_ANNOTATION)
    asked = (
        names.ReservationPolicy.NONE if low == _NO_AMOUNT else _reservation(annotations),
        None if low == _NO_AMOUNT else low,
        throttling.NEVER if high == _NO_AMOUNT else None if share is None else throttling.percent(share),
        None if high == _NO_AMOUNT else high,
        tuple(_container_high(annotations, containers)),
    )
    asks = _shared_asks(*asked) if len(asked[-1]) <= _MAX_SHARED else MemoryAsks(*asked)
    return None if asks == _NO_ASKS else asks


_NO_ASKS: Final = MemoryAsks()
# One object for equal asks: a workload's pods have the same annotations.
_shared_asks: Final = functools.lru_cache(maxsize=4096)(MemoryAsks)


def _is_about_memory(key: str) -> bool:
    return key in _MEMORY_KEYS or key.startswith(names.CONTAINER_HIGH_PREFIX)


def _reservation(annotations: Mapping[str, str]) -> names.ReservationPolicy | None:
    text = annotations.get(names.MEMORY_RESERVATION_ANNOTATION)
    if text is None:
        return None
    return names.ReservationPolicy.SOFT if text == names.ReservationPolicy.SOFT else names.ReservationPolicy.NONE


def _container_high(annotations: Mapping[str, str], containers: Iterable[str]) -> Iterator[tuple[str, int]]:
    for name in containers:
        high = _bytes(annotations.get(names.CONTAINER_HIGH_PREFIX + name))
        if high is not None:
            yield name, throttling.NEVER if high == _NO_AMOUNT else high


def _bytes(text: str | None) -> int | None:
    try:
        return None if text is None else quantity.capped(text)
    except quantity.QuantityError:
        return _NO_AMOUNT
