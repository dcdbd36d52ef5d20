"""Advice for another outcome than the one that a pod has, with the command where there is one. Pure.

Nothing is advised that was not tried: each remedy is applied to the pod, to the profile or to the node, and planned
again. Those that do not lead where they should are not shown; where only several together do, they are numbered.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final

import msgspec

from swapwarden.api import names
from swapwarden.cli.kubectl.cluster import workloads
from swapwarden.cli.kubectl.explain import steps
from swapwarden.cli.kubectl.explain.advice import EXAMPLE_BYTES, Advice, AdviceKind, advise, bytes_of, policy, tried
from swapwarden.cli.kubectl.explain.planned import PlannedPod
from swapwarden.policy.observed import pods
from swapwarden.policy.profile import requirements
from swapwarden.policy.swap import limits

Reason = names.Reason

_SHOWN: Final = 2
"""How many ways to one outcome are shown."""


def changes(pod: workloads.DetailedPod, row: pods.PodRow, planned: PlannedPod | None) -> Iterator[Advice]:
    """Yield advice for other outcomes, the likeliest first."""
    if planned is not None:
        yield from _by_plan(planned)
    elif row.policy == names.Policy.DISABLED:
        yield policy(pod, names.Policy.NO_PREFERENCE, "swap, where the node gives some")
    else:
        yield policy(pod, names.Policy.DISABLED, "no swap")


def _by_plan(planned: PlannedPod) -> Iterator[Advice]:
    reason = planned.trace.decision.reason
    if reason is Reason.NODE_INCOMPATIBLE:
        yield advise(planned, AdviceKind.CGROUP, outcome="limits that hold")
        return
    if reason is Reason.INVALID_POLICY:
        yield from _towards("what was meant", *steps.correct(planned))
        return
    if reason is Reason.REQUIREMENT_UNMET:
        for field, found in (requirements.unmet(planned.profile.require, planned.facts) or {}).items():
            yield advise(planned, AdviceKind.REQUIREMENT, found, target=field, outcome=f"{field} met")
    if reason is Reason.KUBELET_DECIDES and planned.profile.name == names.BUILT_IN_PROFILE:
        yield advise(planned, AdviceKind.NEW_PROFILE, outcome="limits by Swapwarden")
    elif reason is Reason.KUBELET_DECIDES:
        yield steps.to_behavior(planned, names.Behavior.LIMITED_SWAP, "limits by Swapwarden")
    yield from _more(planned)
    if planned.row.defaulted and reason is Reason.POLICY_DISABLED:
        yield advise(planned, AdviceKind.NAMESPACE_DEFAULT, outcome="no such default for new pods")
    yield from _less(planned)
    if planned.trace.decision.swap_max != "0":
        yield policy(planned.pod, names.Policy.DISABLED, "no swap")


def _towards(outcome: str, *found: Advice) -> Iterator[Advice]:
    yield from (msgspec.structs.replace(each, outcome=outcome) for each in found)


def _more(planned: PlannedPod) -> Iterator[Advice]:
    """Yield ways to more swap than the pod has now: single steps, or else those that it takes together."""
    now = bytes_of(planned)
    outcome = "swap" if now == 0 else "more"
    single = [step for step in steps.towards_swap(planned) if bytes_of(tried(planned, step)) > now][:_SHOWN]
    if single:
        yield from _towards(outcome, *single)
        return
    several = _together(planned, now)
    for number, step in enumerate(several, start=1):
        yield from _towards(f"{outcome}, {number} of {len(several)}", step)


def _together(planned: PlannedPod, now: int) -> list[Advice]:
    """Return the fewest steps found that give more only when all of them are made; empty if none are found."""
    paths = (_path([first], tried(planned, first), now) for first in steps.towards_swap(planned))
    return min((_needed(path, planned, now) for path in paths if path), key=len, default=[])


def _path(taken: list[Advice], planned: PlannedPod, now: int) -> list[Advice]:
    """Return `taken` and the next steps until the pod has more; empty if no steps lead there."""
    while bytes_of(planned) <= now:
        used = {(step.kind, step.target) for step in taken}
        left = [step for step in steps.towards_swap(planned) if (step.kind, step.target) not in used]
        if not left:
            return []
        best = next((step for step in left if bytes_of(tried(planned, step)) > now), left[0])
        taken, planned = [*taken, best], tried(planned, best)
    return taken


def _needed(path: list[Advice], planned: PlannedPod, now: int) -> list[Advice]:
    """Return `path` without the steps that change nothing in the end and that no later step builds on."""
    for step in list(path):
        rest = [each for each in path if each is not step]
        if _leads(rest, planned, now):
            path = rest
    return path


def _leads(path: Sequence[Advice], planned: PlannedPod, now: int) -> bool:
    """Return whether the pod has more after these steps, each of which must be possible after those before it."""
    for step in path:
        if step not in steps.towards_swap(planned):
            return False
        planned = tried(planned, step)
    return bytes_of(planned) > now


def _less(planned: PlannedPod) -> Iterator[Advice]:
    """Yield how the pod gets less, but some: by a limit of its own."""
    now = planned.trace.decision.swap_max
    if now in {None, "0"}:
        return
    below = min(planned.facts.swap_bytes, limits.in_bytes(now or "0"))
    advice = advise(planned, AdviceKind.LOWER_LIMIT, target=names.LIMIT_ANNOTATION, below=below, outcome="less")
    if now == names.MAX_SWAP and below > EXAMPLE_BYTES:
        advice = advise(planned, AdviceKind.FIRST_LIMIT, target=names.LIMIT_ANNOTATION, outcome="less")
    if 0 < bytes_of(tried(planned, advice)) < bytes_of(planned):
        yield advice
