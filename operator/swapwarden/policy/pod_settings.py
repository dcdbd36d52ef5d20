"""A pod's decisions in the form of a state, as compact as they allow."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import msgspec

from swapwarden.api import names, state
from swapwarden.policy.memory import qos
from swapwarden.policy.reclaim import decisions
from swapwarden.policy.swap import limits

_NOTHING: Final = state.ContainerSettings()


def of(
    decision: limits.PodDecision,
    memory: qos.PodMemory | None,
    usual: names.Reason,
    reclaim: decisions.PodReclaim | None = None,
) -> state.PodSettings:
    """Return the settings of a pod; `usual` is the reason that its state has once for all pods."""
    swap_max, at_most = limits.as_settings(decision)
    minimum = low = high = None
    if memory is None:
        settings = [_of_container(one) for one in decision.containers]
    else:
        minimum, low, high = text(memory.minimum), text(memory.low), text(memory.high)
        settings = [_of_container(*both) for both in zip(decision.containers, memory.containers, strict=True)]
    # Most pods need no value below their own.
    written = [one for one in settings if one is not _NOTHING]
    alike = None if not written or any(one.cap and one.write for one in decision.containers) else _alike(settings)
    return state.PodSettings(
        reason=None if decision.reason is usual else decision.reason,
        reclaim=None if reclaim is None or reclaim.mode is names.ReclaimMode.OFF else reclaim.mode,
        swap_max=swap_max,
        swap_at_most=at_most,
        memory_min=minimum,
        memory_low=low,
        memory_high=high,
        container_default=alike,
        containers={} if alike is not None or not written else _containers(decision, settings),
    )


def text(amount: int | None) -> str | None:
    """Return an amount of memory as the kernel's files take it; None for nothing."""
    return str(amount) if amount else None


def _of_container(one: limits.ContainerDecision, own: qos.ContainerMemory | None = None) -> state.ContainerSettings:
    """Return the settings of a container, without its id: as most need none, they share one object."""
    low, high = (None, None) if own is None else (text(own.low), text(own.high))
    if not one.write and low is None and high is None:
        return _NOTHING
    swap_max, at_most = limits.as_settings(one) if one.write else (None, None)
    return state.ContainerSettings(swap_max=swap_max, memory_low=low, memory_high=high, swap_at_most=at_most)


def _containers(
    decision: limits.PodDecision, own: Sequence[state.ContainerSettings]
) -> dict[str, state.ContainerSettings]:
    """Return the containers with a value of their own, also before they run; if they are too many, running ones."""
    needed = [
        (one.name, msgspec.structs.replace(settings, id=one.id[: state.ID_LENGTH] or None))
        for one, settings in zip(decision.containers, own, strict=True)
        if settings != _NOTHING
    ]
    if len(needed) > state.MAX_CONTAINERS:
        needed = sorted(needed, key=lambda each: not each[1].id)[: state.MAX_CONTAINERS]
    return dict(needed)


def _alike(own: Sequence[state.ContainerSettings]) -> state.ContainerDefault | None:
    """Return the common values of all containers, running or not; None if they differ, or need none."""
    first = own[0] if own else _NOTHING
    if first == _NOTHING or any(one != first for one in own):
        return None
    return state.ContainerDefault(swap_max=first.swap_max, memory_low=first.memory_low, memory_high=first.memory_high)
