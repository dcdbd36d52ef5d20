"""The annotations of a pod about memory.low and memory.high, as decisions use them.

Most pods ask nothing: their rows have None. Pods that ask the same share one object.
"""

from __future__ import annotations

import functools
from collections.abc import Iterable, Iterator, Mapping
from typing import Final

import msgspec

from swapwarden.api import names, quantity, throttling

_KEYS: Final = frozenset(
    {
        names.MEMORY_RESERVATION_ANNOTATION,
        names.MEMORY_LOW_ANNOTATION,
        names.MEMORY_THROTTLING_ANNOTATION,
        names.MEMORY_HIGH_ANNOTATION,
    }
)
_MAX_SHARED: Final = 8
"""Containers with a memory.high of their own, of pods that are remembered for others."""

_INVALID: Final = -1


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


def read(annotations: Mapping[str, str], containers: Iterable[str]) -> MemoryAsks | None:
    """Return what a pod with these containers asks, None if nothing. Keys for other containers have no effect."""
    if not any(map(_is_about_memory, annotations)):
        return None
    low, high = (_bytes(annotations.get(key)) for key in (names.MEMORY_LOW_ANNOTATION, names.MEMORY_HIGH_ANNOTATION))
    share = annotations.get(names.MEMORY_THROTTLING_ANNOTATION)
    asked = (
        names.ReservationPolicy.NONE if low == _INVALID else _reservation(annotations),
        None if low == _INVALID else low,
        throttling.NEVER if high == _INVALID else None if share is None else throttling.percent(share),
        None if high == _INVALID else high,
        tuple(_container_high(annotations, containers)),
    )
    asks = _shared(*asked) if len(asked[-1]) <= _MAX_SHARED else MemoryAsks(*asked)
    return None if asks == _NOTHING else asks


_NOTHING: Final = MemoryAsks()
# One object for equal asks: a workload's pods have the same annotations.
_shared: Final = functools.lru_cache(maxsize=4096)(MemoryAsks)


def _is_about_memory(key: str) -> bool:
    return key in _KEYS or key.startswith(names.CONTAINER_HIGH_PREFIX)


def _reservation(annotations: Mapping[str, str]) -> names.ReservationPolicy | None:
    text = annotations.get(names.MEMORY_RESERVATION_ANNOTATION)
    if text is None:
        return None
    return names.ReservationPolicy.SOFT if text == names.ReservationPolicy.SOFT else names.ReservationPolicy.NONE


def _container_high(annotations: Mapping[str, str], containers: Iterable[str]) -> Iterator[tuple[str, int]]:
    for name in containers:
        high = _bytes(annotations.get(names.CONTAINER_HIGH_PREFIX + name))
        if high is not None:
            yield name, throttling.NEVER if high == _INVALID else high


def _bytes(text: str | None) -> int | None:
    try:
        return None if text is None else quantity.capped(text)
    except quantity.QuantityError:
        return _INVALID
