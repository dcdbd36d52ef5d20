"""Problems of a node that follow from its profile, its Node and its agent's facts."""

from __future__ import annotations

import enum
from collections.abc import Iterable, Mapping
from typing import NamedTuple

from swapwarden.policy.node import kernel_settings
from swapwarden.policy.observed import nodes
from swapwarden.policy.profile import requirements

_MIB = 1 << 20


class NodeProblem(enum.StrEnum):
    """Their kinds, for programs."""

    REQUIREMENT_UNMET = "RequirementUnmet"
    SETTINGS_REFUSED = "SettingsRefused"
    KUBELET_RESTART_NEEDED = "KubeletRestartNeeded"


class NodeObservation(NamedTuple):
    """One problem, with the remedy."""

    problem: NodeProblem
    message: str


def observe(
    required: requirements.Require | None, kernel: Iterable[tuple[str, str]], facts: nodes.NodeFacts
) -> tuple[NodeObservation, ...]:
    """Return the problems under a profile that requires this, and has these settings of the kernel.

    There are none before an agent has reported: unknown facts are no problem yet.
    """
    if not facts.reported:
        return ()
    found = {
        NodeProblem.REQUIREMENT_UNMET: _listed(requirements.unmet(required, facts) or {}),
        NodeProblem.SETTINGS_REFUSED: _listed(kernel_settings.plan(kernel, facts).refused),
        NodeProblem.KUBELET_RESTART_NEEDED: _restart(facts),
    }
    return tuple(NodeObservation(problem, message) for problem, message in found.items() if message)


def _listed(found: Mapping[str, str]) -> str:
    return "; ".join(f"{name}: {text}" for name, text in found.items())


def _restart(facts: nodes.NodeFacts) -> str:
    counted = facts.kubelet_swap_bytes
    if counted is None:
        return ""
    return (
        f"the kubelet found {counted / _MIB:.0f} MiB of swap at its start, the node now has"
        f" {facts.swap_bytes / _MIB:.0f} MiB: it computes limits from the old size; restart the kubelet"
    )
