"""What a memory.swap.max is to hold, by what the state says and how the cgroup came to be known. Pure."""

from __future__ import annotations

import enum
from typing import Final

from swapwarden.agent.desired import spec
from swapwarden.agent.host import cgroup_files
from swapwarden.agent.ledger import ledger
from swapwarden.api import names

AWAIT_SECONDS: Final = 5.0
"""How long a pod without state is normal."""


class Handling(enum.Enum):
    """What a file is to hold where it is not a number."""

    UNMANAGED = "unmanaged"
    """Whatever it holds."""
    RESTORE = "restore"
    """What another writer last gave it."""


DesiredValue = int | Handling


class Origin(enum.Enum):
    """How a pod's cgroup came to be known."""

    PREEXISTING = "preexisting"
    """It was there when the agent first came up, or appeared while nothing was enforced."""
    APPEARED = "appeared"
    """It appeared while the agent enforced, or while none ran."""


def mode_of(state: spec.NodeSpec | None) -> names.Mode:
    """The mode in force; before any state arrived, what is known of earlier runs is enforced."""
    return names.Mode.ENFORCE if state is None else state.mode


def of_pod(
    state: spec.NodeSpec | None,
    pod: spec.PodEntry | None,
    *,
    mode: names.Mode,
    origin: Origin,
    last: int | None,
    denied: int | None = cgroup_files.SWAP_MAX.denied,
) -> DesiredValue:
    """What a pod's cgroup is to hold.

    `state` is the state in force (None before any ever arrived), `pod` its entry for this pod, `last` what this pod was
    last given by an entry that is no longer there: a pod that ends leaves the state before its cgroup goes. `denied` is
    for a pod that no state has named yet; None leaves what is there.
    """
    if mode is not names.Mode.ENFORCE:
        return Handling.RESTORE
    if pod is not None:
        return Handling.RESTORE if pod.limit is None else pod.limit
    if last is not None:
        return last
    if origin is Origin.PREEXISTING:
        return Handling.UNMANAGED
    allow = state is not None and state.before_plan is names.BeforePlan.UNMANAGED
    if allow:
        return Handling.RESTORE
    return Handling.UNMANAGED if denied is None else denied


def awaits_entry(state: spec.NodeSpec | None, uid: str, *, origin: Origin, last: int | None) -> bool:
    """Return whether a pod that came while limits are enforced has never been named by a state."""
    unknown = state is None or uid not in state.pods
    return mode_of(state) is names.Mode.ENFORCE and unknown and origin is Origin.APPEARED and last is None


def of_root(state: spec.NodeSpec | None, *, mode: names.Mode) -> DesiredValue:
    """What the cgroup above all pods is to hold."""
    if state is None:
        return Handling.UNMANAGED
    return Handling.RESTORE if mode is not names.Mode.ENFORCE or state.kubepods is None else state.kubepods


def goal(desired: DesiredValue, record: ledger.LimitRecord | None, found: int) -> int | None:
    """The number that a file is to hold; None where it is no business of the agent's. Bytes.

    `record` is the ledger's, and `found` what the file holds: another writer's value is not restored over.
    """
    if isinstance(desired, int):
        return desired
    if record is None or not (found in record.wrote or (record.systemd_zero and found == 0)):
        return None
    return record.found


def differs(target: DesiredValue, found: int, *, at_most: bool) -> bool:
    """Whether a file that holds `found` is to hold something else; with `at_most` a smaller value is as good."""
    return isinstance(target, int) and (found > target or (found < target and not at_most))
