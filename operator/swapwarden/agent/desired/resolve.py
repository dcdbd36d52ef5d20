"""Decides the value of a cgroup file from the state and from how the agent found the cgroup. Pure."""

from __future__ import annotations

import enum
from collections.abc import Collection
from typing import Final

from swapwarden.agent.desired import spec
from swapwarden.agent.host import cgroup_files
from swapwarden.agent.ledger import ledger
from swapwarden.api import names

AWAIT_SECONDS: Final = 5.0
"""How long a new pod may lack an entry in the state before the status reports it."""


class Handling(enum.Enum):
    """How the agent handles a file without a desired number."""

    UNMANAGED = "unmanaged"
    """The agent leaves the file alone."""
    RESTORE = "restore"
    """The agent restores the value that another writer last wrote."""


DesiredValue = int | Handling


class Owned(enum.Enum):
    """Files of memory that a kubelet sets by a policy of its own: the agent leaves them to it."""

    PROTECTION = "protection"
    """memory.min and low of pods, containers and those above."""
    THROTTLING = "throttling"
    """memory.high of containers. Few kubelets set that of a pod: there the number in the file decides."""


def is_kubelets(owns: Collection[Owned], file: cgroup_files.CgroupFile, *, container: bool) -> bool:
    """Return whether a kubelet that sets these files by its own policy sets this one, of a container or above."""
    if not owns or file is cgroup_files.SWAP_MAX:
        return False
    if file is cgroup_files.MEMORY_HIGH:
        return container and Owned.THROTTLING in owns
    return Owned.PROTECTION in owns


class Origin(enum.Enum):
    """How the agent found a pod's cgroup."""

    PREEXISTING = "preexisting"
    """The cgroup existed when the agent first started, or appeared while nothing was enforced."""
    APPEARED = "appeared"
    """The cgroup appeared while the agent enforced, or while no agent ran."""


def mode_of(state: spec.NodeSpec | None) -> names.Mode:
    """Return the mode in force. Before any state arrives, the agent enforces the records of earlier runs."""
    return names.Mode.ENFORCE if state is None else state.mode


def guards_others(state: spec.NodeSpec | None) -> names.KubeletGuard:
    """Return the answer to pods that stand still at another writer's memory.high: nothing is written in Audit."""
    if state is None or state.mode is names.Mode.RESTORE:
        return names.KubeletGuard.OFF
    report = state.mode is names.Mode.AUDIT and state.guard.kubelet is names.KubeletGuard.RELEASE
    return names.KubeletGuard.REPORT if report else state.guard.kubelet


def of_pod(
    state: spec.NodeSpec | None,
    pod: spec.PodEntry | None,
    *,
    mode: names.Mode,
    origin: Origin,
    last: int | None,
    file: cgroup_files.CgroupFile = cgroup_files.SWAP_MAX,
) -> DesiredValue:
    """Return the desired value of a file of a pod's cgroup.

    `state` is the state in force (None before the first one), `pod` its entry for this pod. `last` is the value from an
    earlier entry: a pod that ends is removed from the state before its cgroup is removed.
    """
    if mode is not names.Mode.ENFORCE:
        return Handling.RESTORE
    if pod is not None:
        setting = pod.settings.get(file.name)
        return Handling.RESTORE if setting is None else setting.value
    if last is not None:
        return last
    if origin is Origin.PREEXISTING:
        return Handling.UNMANAGED
    allow = state is not None and state.before_plan is names.BeforePlan.UNMANAGED
    if allow:
        return Handling.RESTORE
    return Handling.UNMANAGED if file.denied is None else file.denied


def awaits_entry(state: spec.NodeSpec | None, uid: str, *, origin: Origin, last: int | None) -> bool:
    """Return whether a pod that appeared while limits are enforced has never been named by a state."""
    unknown = state is None or uid not in state.pods
    return mode_of(state) is names.Mode.ENFORCE and unknown and origin is Origin.APPEARED and last is None


def of_root(state: spec.NodeSpec | None, *, mode: names.Mode) -> DesiredValue:
    """Return the desired value of the cgroup above all pods."""
    if state is None:
        return Handling.UNMANAGED
    return Handling.RESTORE if mode is not names.Mode.ENFORCE or state.kubepods is None else state.kubepods


def of_memory(
    state: spec.NodeSpec | None, settings: spec.FileSettings, file: cgroup_files.CgroupFile, *, mode: names.Mode
) -> DesiredValue:
    """Return the desired value of a file of memory in a cgroup above pods, or in a unit, with these settings."""
    if state is None:
        return Handling.UNMANAGED
    setting = settings.get(file.name) if mode is names.Mode.ENFORCE else None
    return Handling.RESTORE if setting is None else setting.value


def limit_of(target: DesiredValue, record: ledger.LimitRecord | None, observed: int) -> int | None:
    """Return the number that a file must hold if a smaller value of another writer stays, in bytes, or None.

    That is at most `target`, and never more than what another writer last gave the file, such as the kubelet or
    systemd. `record` is from the ledger, `observed` is the current value. None: the agent leaves the file alone.
    """
    before = to_restore(record, observed)
    return min(target, observed if before is None else before) if isinstance(target, int) else before


def to_restore(record: ledger.LimitRecord | None, observed: int) -> int | None:
    """Return the number that a file held before the agent, in bytes; None if the agent leaves the file alone.

    `record` is from the ledger, `observed` is the current value: a restore does not replace another writer's value.
    """
    if record is None or not (observed in record.wrote or (record.systemd_zero and observed == 0)):
        return None
    return record.found


def differs(target: DesiredValue, observed: int, *, at_most: bool) -> bool:
    """Return whether a file that holds `observed` must be written; with `at_most` a smaller value stays."""
    return isinstance(target, int) and (observed > target or (observed < target and not at_most))
