"""What to do for another outcome than the one that a pod has, with the command where there is one. Pure."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

import msgspec

from swapwarden.api import names
from swapwarden.cli.kubectl import workloads
from swapwarden.cli.kubectl.planned import Planned
from swapwarden.policy import phases, pods, qos, requirements, swap

Reason = names.Reason


class Change(msgspec.Struct, frozen=True, rename="camel", omit_defaults=True):
    """How to get another outcome."""

    outcome: str
    how: str
    command: str = ""


def changes(pod: workloads.Pod, row: pods.PodRow, planned: Planned | None) -> Iterator[Change]:
    """What to do for another outcome, the likeliest first."""
    if planned is not None:
        yield from _CHANGES.get(planned.trace.decision.reason, _nothing)(planned)
        if row.policy != names.Policy.DISABLED and planned.trace.decision.swap_max != "0":
            yield _by_policy(pod, "no swap", names.Policy.DISABLED)
    elif row.policy == names.Policy.DISABLED:
        yield _by_policy(pod, "swap, where the node gives some", names.Policy.NO_PREFERENCE)
    else:
        yield _by_policy(pod, "no swap", names.Policy.DISABLED)


def _by_policy(pod: workloads.Pod, outcome: str, policy: names.Policy) -> Change:
    if pod.is_mirror:
        how = f"write the annotation {names.POLICY_ANNOTATION}: {policy} into the pod's file on its node"
        return Change(outcome, how)
    command = f"kubectl swap policy -n {pod.metadata.namespace} pod/{pod.metadata.name} {policy}"
    return Change(outcome, f"the policy {policy}, for pods that are made from then on", command)


def _nothing(_: Planned) -> Iterator[Change]:
    yield from ()


def _compatible_node(_: Planned) -> Iterator[Change]:
    yield Change("limits that hold", "run it on a node with cgroup v2 and its swap controller", "kubectl swap nodes")


def _not_disabled(planned: Planned) -> Iterator[Change]:
    yield _by_policy(planned.pod, "swap, as the profile gives it", names.Policy.NO_PREFERENCE)
    if planned.row.defaulted:
        yield Change(
            "swap for all new pods of the namespace",
            "take its default away",
            f"kubectl swap policy namespace/{planned.row.namespace} --remove",
        )


def _understandable(planned: Planned) -> Iterator[Change]:
    yield Change("what was meant", f"correct the annotation in {planned.where}")


def _override(planned: Planned) -> Iterator[Change]:
    yield Change("another limit", f"change overrides[{planned.trace.override}] of {planned.profile.name}", planned.edit)


def _requirements(planned: Planned) -> Iterator[Change]:
    for field, found in (requirements.unmet(planned.profile, planned.facts) or {}).items():
        yield Change(f"{field} met", found)
    yield Change("swap without it", f"take it out of swap.require of {planned.profile.name}", planned.edit)


def _behavior(planned: Planned) -> Iterator[Change]:
    yield Change("swap", f"another behavior of {planned.profile.name}, such as LimitedSwap", planned.edit)


def _kubelet(planned: Planned) -> Iterator[Change]:
    yield Change("less", f"annotation {names.LIMIT_ANNOTATION}: 512Mi in {planned.where}")
    if planned.profile.name == names.BUILT_IN_PROFILE:
        yield Change("limits by Swapwarden", "a NodeSwapProfile that selects the node, with behavior LimitedSwap")
    else:
        yield Change("limits by Swapwarden", f"behavior LimitedSwap of {planned.profile.name}", planned.edit)


def _uncritical(planned: Planned) -> Iterator[Change]:
    yield Change("a share of swap", "a priority class below 2000000000; LimitedSwap gives critical pods none")
    yield Change(
        "swap all the same", f"behavior WorkloadControlled of {planned.profile.name}, and a limit", planned.edit
    )


def _burstable(planned: Planned) -> Iterator[Change]:
    how = (
        "a container with a memory request below its limit, which makes the pod Burstable"
        if planned.row.qos is qos.Class.GUARANTEED
        else "a memory request, which makes the pod Burstable"
    )
    yield Change("a share of swap", f"{how}, in {planned.where}")


def _share_of_swap(planned: Planned) -> Iterator[Change]:
    facts = planned.facts
    if not swap.available(planned.profile, facts):
        how = "turn swap on" if not facts.swap_bytes else f"less systemReserved in {planned.profile.name}"
        yield Change("swap", f"the node has none for pods: {how}", planned.edit if facts.swap_bytes else "")
        return
    idle = [one.name for one in planned.row.containers if one.request == one.limit or not one.request]
    idle = [name for name in idle if name in {one.name for one in planned.row.containers if _can_ask(one)}]
    which = f" of {', '.join(idle)}" if idle else ""
    yield Change("more", f"a larger memory request{which}, below the memory limit, in {planned.where}")
    yield Change("less", f"annotation {names.LIMIT_ANNOTATION} in {planned.where}")


def _can_ask(one: pods.ContainerRow) -> bool:
    return one.kind is not phases.Kind.EPHEMERAL


def _own_limit(planned: Planned) -> Iterator[Change]:
    yield Change("another limit", f"annotation {names.LIMIT_ANNOTATION} in {planned.where}")


def _no_limit(planned: Planned) -> Iterator[Change]:
    yield Change("swap", f"annotation {names.LIMIT_ANNOTATION}: 512Mi in {planned.where}")


def _bounds(planned: Planned) -> Iterator[Change]:
    yield Change(
        "more", f"larger workloadControlled bounds, or less systemReserved, in {planned.profile.name}", planned.edit
    )


def _overcommit(planned: Planned) -> Iterator[Change]:
    yield Change("more", f"a larger overcommitPercent in {planned.profile.name}, or another node", planned.edit)


_CHANGES: Final = {
    Reason.NODE_INCOMPATIBLE: _compatible_node,
    Reason.POLICY_DISABLED: _not_disabled,
    Reason.INVALID_POLICY: _understandable,
    Reason.OVERRIDE_DISABLED: _override,
    Reason.OVERRIDE_LIMIT: _override,
    Reason.REQUIREMENT_UNMET: _requirements,
    Reason.PROFILE_NO_SWAP: _behavior,
    Reason.KUBELET_DECIDES: _kubelet,
    Reason.CRITICAL_POD: _uncritical,
    Reason.QOS_NOT_ELIGIBLE: _burstable,
    Reason.LIMITED_SWAP: _share_of_swap,
    Reason.WORKLOAD_LIMIT: _own_limit,
    Reason.NO_LIMIT: _no_limit,
    Reason.BOUNDED: _bounds,
    Reason.OVERCOMMIT_REACHED: _overcommit,
}
