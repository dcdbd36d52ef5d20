"""What to do for another outcome than the one that a pod has, with the command where there is one. Pure.

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
from swapwarden.cli.kubectl.explain.planned import PlannedPod
from swapwarden.cli.kubectl.output.sizes import exact
from swapwarden.policy.observed import pods
from swapwarden.policy.profile import requirements
from swapwarden.policy.swap import limits

Reason = names.Reason

_SHOWN: Final = 2
"""How many ways to one outcome are shown."""


class Advice(msgspec.Struct, frozen=True, rename="camel", omit_defaults=True):
    """How to get another outcome."""

    outcome: str
    how: str
    command: str = ""


def changes(pod: workloads.DetailedPod, row: pods.PodRow, planned: PlannedPod | None) -> Iterator[Advice]:
    """What to do for another outcome, the likeliest first."""
    if planned is not None:
        yield from _by_plan(planned)
    elif row.policy == names.Policy.DISABLED:
        yield _by_policy(pod, "swap, where the node gives some", names.Policy.NO_PREFERENCE)
    else:
        yield _by_policy(pod, "no swap", names.Policy.DISABLED)


def _by_plan(planned: PlannedPod) -> Iterator[Advice]:
    reason = planned.trace.decision.reason
    if reason is Reason.NODE_INCOMPATIBLE:
        yield Advice(
            "limits that hold", "run it on a node with cgroup v2 and its swap controller", "kubectl swap nodes"
        )
        return
    if reason is Reason.INVALID_POLICY:
        yield Advice("what was meant", steps.corrected(planned).how)
        return
    if reason is Reason.REQUIREMENT_UNMET:
        for field, found in (requirements.unmet(planned.profile, planned.facts) or {}).items():
            yield Advice(f"{field} met", found)
    if reason is Reason.KUBELET_DECIDES and planned.profile.name == names.BUILT_IN_PROFILE:
        how = "a NodeSwapProfile that selects the node, with behavior LimitedSwap"
        yield Advice("limits by Swapwarden", how)
    elif reason is Reason.KUBELET_DECIDES:
        yield Advice("limits by Swapwarden", f"behavior LimitedSwap of {planned.profile.name}", planned.edit)
    yield from _more(planned)
    if planned.row.defaulted and reason is Reason.POLICY_DISABLED:
        command = f"kubectl swap policy namespace/{planned.row.namespace} --remove"
        yield Advice("no such default for new pods", "take the default of the namespace away", command)
    yield from _less(planned)
    if planned.trace.decision.swap_max != "0":
        yield _by_policy(planned.pod, "no swap", names.Policy.DISABLED)


def _by_policy(pod: workloads.DetailedPod, outcome: str, policy: names.Policy) -> Advice:
    how, command = steps.policy_words(pod, policy)
    return Advice(outcome, how, command)


# Towards more swap


def _more(planned: PlannedPod) -> Iterator[Advice]:
    """Yield ways to more swap than the pod has now: single steps, or else those that it takes together."""
    now = steps.bytes_of(planned)
    outcome = "swap" if now == 0 else "more"
    single = [step for step in _steps(planned) if steps.bytes_of(step.try_(planned)) > now][:_SHOWN]
    if single:
        yield from (Advice(outcome, step.how, step.command) for step in single)
        return
    several = _together(planned, now)
    for number, step in enumerate(several, start=1):
        yield Advice(f"{outcome}, {number} of {len(several)}", step.how, step.command)


def _together(planned: PlannedPod, now: int) -> list[steps.Remedy]:
    """The fewest steps found that give more only when all of them are made; empty where none are found."""
    paths = (_path([first], first.try_(planned), now) for first in _steps(planned))
    return min((_needed(path, planned, now) for path in paths if path), key=len, default=[])


def _path(taken: list[steps.Remedy], planned: PlannedPod, now: int) -> list[steps.Remedy]:
    """What follows on TAKEN until the pod has more; empty where nothing leads there."""
    while steps.bytes_of(planned) <= now:
        used = {step.what for step in taken}
        left = [step for step in _steps(planned) if step.what not in used]
        if not left:
            return []
        best = next((step for step in left if steps.bytes_of(step.try_(planned)) > now), left[0])
        taken, planned = [*taken, best], best.try_(planned)
    return taken


def _needed(path: list[steps.Remedy], planned: PlannedPod, now: int) -> list[steps.Remedy]:
    """PATH without the steps that make no difference in the end, and that no later one builds on."""
    for step in list(path):
        rest = [each for each in path if each is not step]
        if _leads(rest, planned, now):
            path = rest
    return path


def _leads(path: Sequence[steps.Remedy], planned: PlannedPod, now: int) -> bool:
    """Whether the pod has more after these steps, each of which is there to be made after those before it."""
    for step in path:
        if step.how not in {each.how for each in _steps(planned)}:
            return False
        planned = step.try_(planned)
    return steps.bytes_of(planned) > now


def _steps(planned: PlannedPod) -> list[steps.Remedy]:
    """What can be changed about the rule that decides, the likeliest first."""
    return list(steps.TOWARDS_SWAP[planned.trace.decision.reason](planned))


# Towards less


def _less(planned: PlannedPod) -> Iterator[Advice]:
    """Yield how the pod gets less, but some: by a limit of its own."""
    now = planned.trace.decision.swap_max
    if now in {None, "0"}:
        return
    below = min(planned.facts.swap_bytes, limits.in_bytes(now or "0"))
    how, limit = f" below {exact(below)},", below // 2
    if now == names.MAX_SWAP and below > steps.EXAMPLE_BYTES:
        how, limit = f": {steps.EXAMPLE}", steps.EXAMPLE_BYTES
    if 0 < steps.bytes_of(steps.annotation(names.LIMIT_ANNOTATION, limit)(planned)) < steps.bytes_of(planned):
        yield Advice("less", f"annotation {names.LIMIT_ANNOTATION}{how} in {planned.where}")
