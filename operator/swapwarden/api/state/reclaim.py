"""The parts of a NodeSwapState about moving idle memory of pods to swap."""

from __future__ import annotations

from typing import Annotated

import msgspec

_Bytes = Annotated[int, msgspec.Meta(ge=0)]

MAX_RECLAIMED = 64


class ReclaimSettings(msgspec.Struct, frozen=True, omit_defaults=True, rename="camel"):
    """Bounds on moving idle memory of pods to swap."""

    max_stall_permille: Annotated[int, msgspec.Meta(ge=1, le=100)]
    """How long tasks of a pod may wait for memory, in thousandths of the time."""
    interval_seconds: Annotated[int, msgspec.Meta(ge=2, le=600)]
    """Between two steps of a pod."""
    step_percent: Annotated[int, msgspec.Meta(ge=1, le=10)]
    """The most that a step takes, in percent of the pod's memory in use."""
    keep_swap_free_bytes: _Bytes
    """Swap that stays free on the node."""
    writes_per_day_bytes: _Bytes
    """The most that is moved within 24 hours, of all pods."""


class ReclaimedPod(msgspec.Struct, frozen=True, omit_defaults=True, rename="camel"):
    """How a pod's idle memory was moved to swap, since its agent started."""

    pod: Annotated[str, msgspec.Meta(max_length=128)]
    """Key of the pod in spec.pods."""
    hold: Annotated[str, msgspec.Meta(max_length=32)]
    """Why there was no step when the agent looked last; Step if there was."""
    moved_bytes: Annotated[int, msgspec.Meta(ge=0)] = 0
    """Swap that the pod took by it."""
    refaulted_bytes: Annotated[int, msgspec.Meta(ge=0)] = 0
    """Swapped memory that the pod soon needed again meanwhile, for whatever reason it was swapped."""
    milliseconds: Annotated[int, msgspec.Meta(ge=0)] = 0
    """Time that the kernel took for it."""
