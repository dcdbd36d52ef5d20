"""Compute how much of a memory.low or memory.min is in effect: the kernel counts a cgroup's only within its parent's.

Linux: mm/page_counter.c, effective_protection (before 6.11 in mm/memcontrol.c). Numbers are bytes.
"""

from __future__ import annotations

import enum
import itertools
from collections.abc import Mapping, Sequence
from typing import Final

import msgspec

from swapwarden.api import names, state
from swapwarden.api.conditions import ConditionType
from swapwarden.policy.observed import resources

ROOT: Final = "kubepods"
"""The cgroup above all pods, in violations."""
BURSTABLE: Final = "burstable"
"""The cgroup above all Burstable pods, in violations."""
POD: Final = "pod"


class ProtectedCgroup(msgspec.Struct, frozen=True):
    """A cgroup on the way to a pod."""

    name: str
    setting: int
    """The cgroup's own memory.low or memory.min, all of which it uses."""
    siblings: int = 0
    """The sum of those of the other cgroups with the same parent."""


class Share(msgspec.Struct, frozen=True):
    """The protection that is in effect for the last of several levels."""

    amount: int
    cut_by: str = ""
    """The highest cgroup that has less than the last one, or whose children together have more than it has; empty if
    there is none."""


def along(levels: Sequence[ProtectedCgroup]) -> Share:
    """Return the protection in effect for the last level, below all others; the first is a child of the root."""
    effective, cut_by, desired = levels[0].setting, "", levels[-1].setting
    if effective < desired:
        cut_by = levels[0].name
    for parent, level in itertools.pairwise(levels):
        claims = level.setting + level.siblings
        if not cut_by and claims > effective:
            cut_by = parent.name
        if not cut_by and level.setting < desired:
            cut_by = level.name
        effective = level.setting * effective // claims if claims > effective else level.setting
    return Share(effective, cut_by if effective < desired else "")


class Effect(enum.StrEnum):
    """Whether a pod's planned protection is in effect."""

    IN_EFFECT = "InEffect"
    """All of it is in effect."""
    ANCESTOR_HAS_LESS = "AncestorHasLess"
    """A cgroup above the pod has less, or has too little for all of its pods."""
    NODE_HAS_LESS = "NodeHasLess"
    """A cgroup above the one of all pods has less: the condition ProtectionIneffective names it."""
    POD_HAS_LESS = "PodHasLess"
    """The pod's own cgroup does not hold its value."""
    NOT_WRITTEN = "NotWritten"
    """The mode is Audit or Restore."""
    KUBELET_OWNED = "KubeletOwned"
    """Some files are left to the kubelet or to another writer."""
    UNKNOWN = "Unknown"
    """The agent has not reported, or has not listed all deviations."""


class InEffect(msgspec.Struct, frozen=True):
    """The effective part of a pod's planned protection, if all pods use theirs."""

    effect: Effect
    amount: int | None = None
    """None: unknown."""
    cgroup: str = ""
    """The cgroup that has less."""


def in_effect(node_state: state.NodeSwapState, key: str, own: resources.Class, *, hard: bool) -> InEffect | None:
    """Return the effective part of a pod's planned memory.low (`hard`: memory.min); None if none is planned.

    An agent reports deviations only: unlisted cgroups hold the values of the spec.
    """
    spec, status = node_state.spec, node_state.status
    planned = 0 if spec is None else _planned(spec.pods.get(key), hard=hard)
    if spec is None or not planned:
        return None
    hidden = _hidden(spec, status)
    if hidden is not None:
        return InEffect(hidden)
    setting = "memoryMin" if hard else "memoryLow"
    held = {
        each.pod: int(each.observed)
        for each in status.violations
        if each.setting == setting and not each.container and each.observed.isdecimal()
    }
    share = along(_levels(spec, key, own, held, hard=hard))
    if share.amount >= planned:
        return InEffect(Effect.IN_EFFECT, share.amount)
    effect = Effect.ANCESTOR_HAS_LESS if share.cut_by else Effect.POD_HAS_LESS
    return InEffect(effect, share.amount, share.cut_by or POD)


def _hidden(spec: state.StateSpec, status: state.StateStatus) -> Effect | None:
    """Return why the values that the cgroups hold do not follow from the state; None if they do."""
    if spec.mode is not names.Mode.ENFORCE:
        return Effect.NOT_WRITTEN
    if any(each.type == ConditionType.MEMORY_QOS and each.status == "False" for each in status.conditions):
        return Effect.KUBELET_OWNED
    if any(each.type == ConditionType.PROTECTION_INEFFECTIVE and each.status == "True" for each in status.conditions):
        return Effect.NODE_HAS_LESS
    return Effect.UNKNOWN if not status.observed_generation or status.violations_omitted else None


def _levels(
    spec: state.StateSpec, key: str, own: resources.Class, held: Mapping[str, int], *, hard: bool
) -> list[ProtectedCgroup]:
    """Return the cgroups from the top to the pod, with the values that the agent last observed in them.

    A state does not say of which class its pods are. The value above all Burstable pods is the sum of theirs, unless
    that is more than the node has; then the split with the least for this pod is assumed.
    """
    planned = sum(_planned(each, hard=hard) for each in spec.pods.values())
    top, middle = _planned(spec.kubepods, hard=hard), _planned(spec.burstable, hard=hard)
    mine, others = _planned(spec.pods[key], hard=hard), max(0, planned - middle)
    root = ProtectedCgroup(ROOT, held.get(ROOT, top))
    pod = ProtectedCgroup(POD, held.get(key, mine))
    if own is not resources.Class.BURSTABLE:
        siblings = max(0, others - mine) + held.get(BURSTABLE, middle)
        return [root, msgspec.structs.replace(pod, siblings=siblings)]
    if planned > top and middle >= top:
        others = (planned - top) // 2
    level = ProtectedCgroup(BURSTABLE, held.get(BURSTABLE, middle), siblings=others)
    return [root, level, msgspec.structs.replace(pod, siblings=max(0, planned - others - mine))]


def _planned(cgroup: state.CgroupSettings | None, *, hard: bool) -> int:
    value = None if cgroup is None else cgroup.memory_min if hard else cgroup.memory_low
    return 1 << 62 if value == names.MAX_SWAP else int(value or 0)
