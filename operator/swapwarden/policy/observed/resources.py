"""A pod's resources: their peak over the phases of its start, and its QoS class, as the API server computes them.

In k/k: component-helpers/resource/helpers.go and pkg/apis/core/helper/qos/qos.go.
"""

from __future__ import annotations

import enum
from collections.abc import Iterable, Iterator, Sequence

import msgspec

from swapwarden.api import names, quantity

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
        match kind:
            case Kind.APP:
                apps += amount
            case Kind.SIDECAR:
                sidecars += amount
            case Kind.INIT:
                highest = max(highest, sidecars + amount)
            case Kind.EPHEMERAL:
                pass
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
