"""Types of the conditions of NodeSwapStates, NodeSwapProfiles and pods, and what they say of health.

This module imports nothing of the package, so that every process can have it for free.
"""

from __future__ import annotations

import enum
from typing import Final


class ConditionType(enum.StrEnum):
    """All types of conditions that Swapwarden writes."""

    # Of a NodeSwapState.
    COMPATIBLE = "Compatible"
    APPLIED = "Applied"
    DEGRADED = "Degraded"
    """Of a NodeSwapProfile also."""
    DRIFT = "Drift"
    NODE_SETTINGS = "NodeSettings"
    STRICT = "Strict"

    # Of a NodeSwapState, present only while true.
    KUBELET_WILL_NOT_START = "KubeletWillNotStart"
    KUBELET_SETS_NO_LIMITS = "KubeletSetsNoLimits"
    EVICTION_BEFORE_SWAP = "EvictionBeforeSwap"
    SECRETS_ON_DISK = "SecretsOnDisk"
    EVENTS_LOST = "EventsLost"

    # Of a NodeSwapProfile.
    READY = "Ready"
    PROGRESSING = "Progressing"
    CONFLICTED = "Conflicted"
    REQUIREMENTS_MET = "RequirementsMet"

    # Of a pod, which may name it as a readiness gate.
    SWAP_POLICY_ENFORCED = "swapwarden.dev/SwapPolicyEnforced"


DIAGNOSTICS: Final = (
    ConditionType.KUBELET_WILL_NOT_START,
    ConditionType.KUBELET_SETS_NO_LIMITS,
    ConditionType.EVICTION_BEFORE_SWAP,
    ConditionType.SECRETS_ON_DISK,
    ConditionType.EVENTS_LOST,
)
"""Conditions of a NodeSwapState that are present only while true. Their messages end with the remedy."""

ABNORMAL_STATUS: Final[dict[str, str]] = {
    ConditionType.COMPATIBLE: "False",
    ConditionType.NODE_SETTINGS: "False",
    ConditionType.STRICT: "False",
    ConditionType.DEGRADED: "True",
    ConditionType.DRIFT: "True",
    **dict.fromkeys(DIAGNOSTICS, "True"),
}
"""The status by which a condition of a NodeSwapState reports a problem, by type."""

REWRITTEN: Final = "Rewritten"
"""Reason of Drift: systemd writes its own values at a reload, and the agent repairs them."""


def is_abnormal(kind: str, status: str, reason: str) -> bool:
    """Whether a condition of a NodeSwapState reports a problem that somebody can solve."""
    return status == ABNORMAL_STATUS.get(kind) and (kind, reason) != (ConditionType.DRIFT, REWRITTEN)


class AppliedReason(enum.StrEnum):
    """Reasons of the condition Applied. Where a violation keeps it False, that violation's reason stands there."""

    INCOMPATIBLE = "Incompatible"
    """The node cannot limit the swap of pods."""
    NO_POD_TREE = "NoPodTree"
    """The agent has not found the cgroups of pods."""
    RECONCILING = "Reconciling"
    """Some cgroups have not been seen to hold their value yet."""
    RESTORING = "Restoring"
    """Some files still hold a value of Swapwarden's and should not."""
    RESTORED = "Restored"
    AS_SPECIFIED = "AsSpecified"
