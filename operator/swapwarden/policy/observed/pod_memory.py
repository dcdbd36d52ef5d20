"""The memory that containers and pods request, and that limits them, from their resources. In bytes, 0 if unset."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final, NamedTuple

from swapwarden.api import quantity
from swapwarden.policy.observed.resources import ResourceList, Resources


class WholePod(NamedTuple):
    """The memory of a pod's spec beside that of its containers."""

    stated: bool = False
    """Whether the pod as a whole has resources, of whatever kind (KEP-2837)."""
    request: int = 0
    limit: int = 0
    overhead: int = 0
    """Added by its runtime class."""


NOTHING: Final = WholePod()
"""Of nearly all pods."""


def of_container(resources: Resources) -> tuple[int, int]:
    """Return the request and the limit. QuantityError if one is no quantity."""
    limit = resources.limits.memory or 0
    request = resources.requests.memory
    if request is None:  # A file lacks the API server's defaults.
        request = limit
    return quantity.capped(str(request)), quantity.capped(str(limit))


def of_pod(resources: Resources | None, overhead: ResourceList, containers: Iterable[Resources]) -> WholePod:
    """Return the memory of a pod with these resources as a whole. QuantityError if an amount is no quantity."""
    added = quantity.capped(str(overhead.memory or 0))
    if resources is None or not any(True for _ in resources.quantities("")):
        return WholePod(overhead=added) if added else NOTHING
    request, limit = of_container(resources)
    if resources.requests.memory is None and any(
        one.requests.memory is not None or one.limits.memory is not None for one in containers
    ):
        # The API server fills in the sum of the containers' requests (k/k: pkg/apis/core/v1/defaults.go).
        request = 0
    return WholePod(stated=True, request=request, limit=limit, overhead=added)
