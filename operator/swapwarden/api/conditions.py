"""Types of the conditions of NodeSwapStates, NodeSwapProfiles and pods, and what they say of health.

This module imports nothing of the package, so that every process can have it for free.
"""

from __future__ import annotations

import enum
from typing import Final

# As metav1.Condition (k/k: staging/src/k8s.io/apimachinery/pkg/apis/meta/v1/types.go).
TYPE_PATTERN: Final = (
    r"^([a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*/)?"
    r"(([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9])$"
)
REASON_PATTERN: Final = r"^[A-Za-z]([A-Za-z0-9_,:]*[A-Za-z0-9_])?$"


class ConditionType(enum.StrEnum):
    """All types of conditions that Swapwarden writes."""

    # Of a NodeSwapState.
    READY = "Ready"
    """Also a condition of NodeSwapProfiles."""
    COMPATIBLE = "Compatible"
    APPLIED = "Applied"
    DEGRADED = "Degraded"
    """Also a condition of NodeSwapProfiles."""
    DRIFTED = "Drifted"
    SETTINGS_APPLIED = "SettingsApplied"
    STRICT_IN_EFFECT = "StrictInEffect"
    MEMORY_QOS = "MemoryQoS"
    """Present only where the state sets memory.min, low or high."""

    # Of a NodeSwapState, present only while true.
    KUBELET_WILL_NOT_START = "KubeletWillNotStart"
    KUBELET_SETS_NO_LIMITS = "KubeletSetsNoLimits"
    EVICTION_BEFORE_SWAP = "EvictionBeforeSwap"
    OOM_KILL_BEFORE_EVICTION = "OOMKillBeforeEviction"
    SECRETS_ON_DISK = "SecretsOnDisk"
    EVENTS_LOST = "EventsLost"
    NRI_UNAVAILABLE = "NriUnavailable"
    """The container runtime does not hold the limits of containers: it offers no NRI, or its plugin is not there."""
    THROTTLING_STORM = "ThrottlingStorm"
    """Many pods stood still at their memory.high at once."""
    PROTECTION_INEFFECTIVE = "ProtectionIneffective"
    """A cgroup above all pods protects less memory than the plan has for them."""

    # Of a NodeSwapProfile.
    PROGRESSING = "Progressing"
    CONFLICTED = "Conflicted"
    REQUIREMENTS_MET = "RequirementsMet"

    # Of a pod, which may name it as a readiness gate.
    SWAP_POLICY_ENFORCED = "swapwarden.dev/SwapPolicyEnforced"


DIAGNOSTICS: Final = (
    ConditionType.KUBELET_WILL_NOT_START,
    ConditionType.KUBELET_SETS_NO_LIMITS,
    ConditionType.EVICTION_BEFORE_SWAP,
    ConditionType.OOM_KILL_BEFORE_EVICTION,
    ConditionType.SECRETS_ON_DISK,
    ConditionType.EVENTS_LOST,
    ConditionType.NRI_UNAVAILABLE,
    ConditionType.THROTTLING_STORM,
    ConditionType.PROTECTION_INEFFECTIVE,
)
"""Conditions of a NodeSwapState that are present only while true. Their messages end with the remedy."""

ABNORMAL_STATUS: Final[dict[str, str]] = {
    ConditionType.COMPATIBLE: "False",
    ConditionType.SETTINGS_APPLIED: "False",
    ConditionType.STRICT_IN_EFFECT: "False",
    ConditionType.MEMORY_QOS: "False",
    ConditionType.DEGRADED: "True",
    ConditionType.DRIFTED: "True",
    **dict.fromkeys(DIAGNOSTICS, "True"),
}
"""The status by which a condition of a NodeSwapState reports a problem, by type."""

REWRITTEN: Final = "Rewritten"
"""Reason of Drifted: systemd writes its own values at a reload, and the agent repairs them."""


def is_abnormal(kind: str, status: str, reason: str) -> bool:
    """Whether a condition of a NodeSwapState reports a problem that somebody can solve."""
    return status == ABNORMAL_STATUS.get(kind) and (kind, reason) != (ConditionType.DRIFTED, REWRITTEN)


class MemoryQoSReason(enum.StrEnum):
    """Reasons of the condition MemoryQoS."""

    KUBELET_OWNED = "KubeletOwned"
    """The kubelet, or another writer with numbers of its own, sets some of the files: they are left to it."""
    AS_SPECIFIED = "AsSpecified"


class AppliedReason(enum.StrEnum):
    """Reasons of the condition Applied. Where a violation keeps it False, that violation's reason stands there."""

    INCOMPATIBLE = "Incompatible"
    """The node cannot limit the swap of pods."""
    NO_POD_TREE = "NoPodTree"
    """The agent cannot locate the cgroups of pods."""
    RECONCILING = "Reconciling"
    """Some cgroups have not been seen to hold their value yet."""
    RESTORING = "Restoring"
    """Some files still hold a value of Swapwarden's and should not."""
    RESTORED = "Restored"
    AS_SPECIFIED = "AsSpecified"
