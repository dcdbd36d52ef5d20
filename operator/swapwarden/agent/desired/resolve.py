"""What a memory.swap.max is to hold, by what the state says and how the cgroup came to be known. Pure."""

from __future__ import annotations

import enum

from swapwarden.agent.desired import spec
from swapwarden.api import names


class Hold(enum.Enum):
    """What a file is to hold where it is not a number."""

    LEAVE = "leave"
    """Whatever it holds."""
    PUT_BACK = "put back"
    """What another writer last gave it."""


Target = int | Hold


class Origin(enum.Enum):
    """How a pod's cgroup came to be known."""

    FOUND = "found"
    """It was there when the agent first came up, or appeared while nothing was enforced."""
    APPEARED = "appeared"
    """It appeared while the agent enforced, or while none ran."""


def mode_of(state: spec.State | None) -> names.Mode:
    """The mode in force; before any state arrived, what is known of earlier runs is enforced."""
    return names.Mode.ENFORCE if state is None else state.mode


def of_pod(
    state: spec.State | None, pod: spec.Pod | None, *, mode: names.Mode, origin: Origin, last: int | None
) -> Target:
    """What a pod's cgroup is to hold.

    `state` is the state in force (None before any ever arrived), `pod` its entry for this pod, `last` what this pod was
    last given by an entry that is no longer there: a pod that ends leaves the state before its cgroup goes.
    """
    if mode is not names.Mode.ENFORCE:
        return Hold.PUT_BACK
    if pod is not None:
        return Hold.PUT_BACK if pod.limit is None else pod.limit
    if last is not None:
        return last
    if origin is Origin.FOUND:
        return Hold.LEAVE
    allow = state is not None and state.on_unknown_pod is names.UnknownPod.ALLOW
    return Hold.PUT_BACK if allow else 0


def of_root(state: spec.State | None, *, mode: names.Mode) -> Target:
    """What the cgroup above all pods is to hold."""
    if state is None:
        return Hold.LEAVE
    return Hold.PUT_BACK if mode is not names.Mode.ENFORCE or state.kubepods is None else state.kubepods


def differs(target: Target, found: int, *, cap: bool) -> bool:
    """Whether a file that holds `found` is to hold something else; with `cap` a smaller value is as good."""
    return isinstance(target, int) and (found > target or (found < target and not cap))
