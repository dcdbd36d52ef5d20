"""Swap of pods by policy, QoS class, behavior and the kubelet's mode, from the planning code: docs/concepts.md.

A cell has the swap that a pod's one container can use: the lower value of its own cgroup and its pod's.
"""

import enum
import itertools
import math
from collections.abc import Iterable, Mapping

from swapwarden.api import names, state
from swapwarden.policy import plan
from swapwarden.policy.observed import nodes, pods, resources
from swapwarden.policy.profile import compiled
from swapwarden.policy.swap import limits
from swapwarden.policy.swap.settings import SwapOptions

MIB = 2**20
REQUEST, LIMIT = 1024 * MIB, 2048 * MIB
SWAP_LIMIT = 256 * MIB
NODE = nodes.NodeFacts(compatible=True, memory_bytes=8192 * MIB, swap_bytes=4096 * MIB)
RESERVED = "25%"
_ID = "0"


class Kubelet(enum.StrEnum):
    """The kubelet's limits for containers."""

    NO_SWAP = "`NoSwap`"
    LIMITED_SWAP = "`LimitedSwap`"
    NO_LIMITS = "`LimitedSwap`, but it [sets no limits](node-check.md#what-falls-short)"


class Kind(enum.StrEnum):
    """Kinds of pods with different amounts."""

    GUARANTEED = "Guaranteed"
    BURSTABLE = "Burstable"
    BEST_EFFORT = "BestEffort"
    CRITICAL = "critical"


_POLICIES = {
    "nothing": None,
    **{f"`{each}`": str(each) for each in names.Policy},
    "a policy that is not understood": "Never",
}
_LIMITS = {"none": None, "one": str(SWAP_LIMIT)}
_WITH = {("none",): "", ("one",): "; and a swap limit", ("none", "one"): "; with or without a swap limit"}
_Cells = tuple[str, ...]


def table() -> list[str]:
    """Return the matrix in Markdown. Policies, behaviors and modes that make no difference share a row."""
    head = ["the pod says", "behavior of the profile", "kubelet", *Kind]
    lines = [_row(head), _row(["---"] * len(head))]
    ways = list(itertools.product(names.Behavior, Kubelet))
    alike: dict[tuple[_Cells, ...], dict[str, list[str]]] = {}
    for (policy, value), (limit, amount) in itertools.product(_POLICIES.items(), _LIMITS.items()):
        outcome = tuple(_cells(behavior, kubelet, value, amount) for behavior, kubelet in ways)
        alike.setdefault(outcome, {}).setdefault(policy, []).append(limit)
    for outcome, policies in alike.items():
        said = _said(policies)
        by_cells: dict[_Cells, dict[str, list[str]]] = {}
        for (behavior, kubelet), cells in zip(ways, outcome, strict=True):
            by_cells.setdefault(cells, {}).setdefault(f"`{behavior}`", []).append(kubelet)
        lines += [_row([said, *_which(behaviors), *cells]) for cells, behaviors in by_cells.items()]
    return lines


def _row(cells: Iterable[str]) -> str:
    return f"| {' | '.join(cells)} |"


def _said(policies: Mapping[str, list[str]]) -> str:
    """Policies that have the same effect with the same limits: all of a group must agree."""
    (limits,) = {tuple(each) for each in policies.values()}
    return f"{', '.join(policies)}{_WITH[limits]}"


def _which(behaviors: Mapping[str, list[str]]) -> tuple[str, str]:
    (kubelets,) = {tuple(each) for each in behaviors.values()}
    every = len(behaviors) == len(names.Behavior)
    return "any" if every else ", ".join(behaviors), "any" if len(kubelets) == len(Kubelet) else "; ".join(kubelets)


def _cells(behavior: names.Behavior, kubelet: Kubelet, policy: str | None, limit: str | None) -> _Cells:
    return tuple(_cell(behavior, kubelet, kind, policy, limit) for kind in Kind)


def _cell(behavior: names.Behavior, kubelet: Kubelet, kind: Kind, policy: str | None, limit: str | None) -> str:
    container, row = _pod(kind, policy, limit)
    reserved = None if behavior in {names.Behavior.KUBELET, names.Behavior.NO_SWAP} else RESERVED
    profile = compiled.Profile(name="matrix", swap=SwapOptions(behavior=behavior, reserved=reserved))
    spec = plan.plan_node(profile, NODE, [row])
    planned = spec.pods[row.key]
    return (
        f"{_shown(_effective(planned, _from_kubelet(kubelet, container, row)))}<br>`{state.reason_of(spec, planned)}`"
    )


def _pod(kind: Kind, policy: str | None, limit: str | None) -> tuple[pods.ContainerRow, pods.PodRow]:
    request, memory_limit, of_class = {
        Kind.GUARANTEED: (LIMIT, LIMIT, resources.Class.GUARANTEED),
        Kind.BEST_EFFORT: (0, 0, resources.Class.BEST_EFFORT),
    }.get(kind, (REQUEST, LIMIT, resources.Class.BURSTABLE))
    container = pods.ContainerRow("app", resources.Kind.APP, request, memory_limit, id=_ID)
    row = pods.PodRow(
        key="uid",
        uid="uid",
        namespace="default",
        name="pod",
        node="node",
        terminal=False,
        critical=kind is Kind.CRITICAL,
        qos=of_class,
        policy=policy,
        swap_limit=limit,
        created="",
        started="",
        containers=(container,),
    )
    return container, row


def _from_kubelet(kubelet: Kubelet, container: pods.ContainerRow, row: pods.PodRow) -> float:
    """Return the kubelet's value for the container; calcSwapForBurstablePods of it is swap.container_swap."""
    if kubelet is Kubelet.NO_LIMITS:
        return math.inf
    if kubelet is Kubelet.NO_SWAP or row.critical or row.qos is not resources.Class.BURSTABLE:
        return 0
    return limits.container_swap(container.request, container.limit, NODE.memory_bytes, NODE.swap_bytes)


def _effective(planned: state.PodSettings, kubelet: float) -> float:
    container = kubelet
    settings = next(iter(planned.containers.values()), planned.container_default)
    if settings is not None and settings.swap_max is not None:
        container = limits.in_bytes(settings.swap_max)
    elif settings is not None and settings.swap_at_most is not None:
        container = min(limits.in_bytes(settings.swap_at_most), kubelet)
    # No kubelet limits pods yet.
    return min(container, limits.in_bytes(planned.swap_max or planned.swap_at_most or names.MAX_SWAP))


def _shown(amount: float) -> str:
    return "all" if amount > NODE.swap_bytes else f"{amount // MIB:.0f}Mi" if amount else "0"
