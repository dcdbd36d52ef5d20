"""Problems of a node that follow from its profile, its Node and its agent's facts."""

from __future__ import annotations

import enum
from collections.abc import Mapping
from typing import NamedTuple

from swapwarden.api import state
from swapwarden.policy.memory.settings import SYSTEM_SLICE
from swapwarden.policy.node import settings
from swapwarden.policy.observed import nodes
from swapwarden.policy.swap import requirements
from swapwarden.policy.swap.settings import SwapOptions

_MIB = 1 << 20
OVERCOMMITTED = (
    "its pods ask for more protected memory than it has beside system.slice: the kernel gives each a part;"
    " lower memoryQoS.reservationPercent or the pods' requests"
)


class NodeProblem(enum.StrEnum):
    """The kinds of problems of a node, for programs."""

    REQUIREMENT_UNMET = "RequirementUnmet"
    SETTINGS_REFUSED = "SettingsRefused"
    KUBELET_RESTART_NEEDED = "KubeletRestartNeeded"
    PROTECTION_OVERCOMMITTED = "ProtectionOvercommitted"


class NodeObservation(NamedTuple):
    """One problem of a node, with the remedy."""

    problem: NodeProblem
    message: str


def observe(
    own: settings.NodeOptions,
    swap: SwapOptions,
    facts: nodes.NodeFacts,
    planned: state.StateSpec | None = None,
) -> tuple[NodeObservation, ...]:
    """Return the problems of a node under a profile with these settings; `planned` is its plan.

    There are none before an agent has reported: unknown facts are no problem yet.
    """
    if not facts.reported:
        return ()
    messages = {
        NodeProblem.REQUIREMENT_UNMET: listed(requirements.unmet(swap.require, facts) or {}),
        NodeProblem.SETTINGS_REFUSED: listed(settings.plan_kernel(own.kernel, facts).refused),
        NodeProblem.KUBELET_RESTART_NEEDED: _restart(facts),
        NodeProblem.PROTECTION_OVERCOMMITTED: "" if planned is None else _overcommitted(planned, facts),
    }
    return tuple(NodeObservation(problem, message) for problem, message in messages.items() if message)


def listed(texts: Mapping[str, str]) -> str:
    """Return names and texts, joined."""
    return "; ".join(f"{name}: {text}" for name, text in texts.items())


def _restart(facts: nodes.NodeFacts) -> str:
    counted = facts.kubelet_swap_bytes
    if counted is None:
        return ""
    return (
        f"the kubelet found {counted / _MIB:.0f} MiB of swap at its start, the node now has"
        f" {facts.swap_bytes / _MIB:.0f} MiB: it computes limits from the old size; restart the kubelet"
    )


def _overcommitted(planned: state.StateSpec, facts: nodes.NodeFacts) -> str:
    """Report that the plan protects all memory that there is: it never protects more."""
    own, of_pods = (
        state.protected_bytes(each, recursive=facts.recursive_protection)
        for each in (planned.units.get(SYSTEM_SLICE), planned.kubepods)
    )
    top = max(0, facts.memory_bytes - own) // facts.page_size * facts.page_size
    return OVERCOMMITTED if own + of_pods and top <= of_pods else ""
