"""The problems that `kubectl swap check` knows: how bad each is, and its remedy."""

from __future__ import annotations

import enum
from collections.abc import Iterable, Mapping
from typing import Final

import msgspec

import swapwarden
from swapwarden.api import names
from swapwarden.api.conditions import ConditionType
from swapwarden.api.violations import ViolationReason
from swapwarden.policy.node.observations import NodeProblem
from swapwarden.policy.verdict import words


class Severity(enum.StrEnum):
    """How bad it is."""

    ERROR = "Error"
    """A promise is not kept, or will not be; or something is refused."""
    WARNING = "Warning"
    """Something has no effect, or not the one that was meant; or fails later unless somebody looks at it."""


class Check(enum.StrEnum):
    """The kind of a problem, by the object that it is about. In the order of report."""

    NOT_INSTALLED = "NotInstalled"
    OTHER_VERSION = "OtherVersion"
    NO_LEADER = "NoLeader"
    NO_ADMISSION = "NoAdmission"
    ADMISSION_FAILS = "AdmissionFails"
    WEBHOOK_CERTIFICATE = "WebhookCertificate"
    WEBHOOK_NOT_READY = "WebhookNotReady"
    FAILURE_POLICY = "FailurePolicy"
    NO_STATE = "NoState"
    NO_AGENT = "NoAgent"
    AGENT_BEHIND = "AgentBehind"
    PLUGIN_NOT_READY = "PluginNotReady"
    NODE_CONDITION = "NodeCondition"
    INVALID_PROFILE = "InvalidProfile"
    PROFILE_CONFLICT = "ProfileConflict"
    GOVERNS_NO_NODE = "GovernsNoNode"
    ROLLOUT_STOPPED = "RolloutStopped"
    NAMESPACE_POLICY = "NamespacePolicy"
    POD_NOT_ENFORCED = "PodNotEnforced"
    SWAP_AGAINST_POLICY = "SwapAgainstPolicy"
    NO_EFFECT = "NoEffect"
    REFUSED = "Refused"
    """The API server would refuse the manifest."""


class ClusterProblem(msgspec.Struct, frozen=True, rename="camel"):
    """One thing that is wrong with one object."""

    severity: Severity
    check: Check
    reason: str
    """One word for programs: the node's condition, the pod's reason, or the check itself."""
    object: str
    """kind/name, with the namespace where there is one: pod/NAMESPACE/NAME; of a file, the place in it."""
    message: str
    remedy: str


_INSTALL: Final = "install the chart or the manifests again (docs/install.md)"
_PODS: Final = "-l app.kubernetes.io/component"
CORRECT: Final = "correct it in the manifest"


def _error(remedy: str) -> tuple[Severity, str]:
    return Severity.ERROR, remedy


def _warning(remedy: str) -> tuple[Severity, str]:
    return Severity.WARNING, remedy


USUAL: Final[Mapping[Check, tuple[Severity, str]]] = {
    Check.NOT_INSTALLED: _error(_INSTALL),
    Check.OTHER_VERSION: _warning(
        f"use the kubectl swap of the version that is installed (this one is {swapwarden.__version__}), or upgrade"
    ),
    Check.NO_LEADER: _error(
        "check that the controller's pods run, and their log (app.kubernetes.io/component=controller)"
    ),
    Check.NO_ADMISSION: _error(_INSTALL),
    Check.ADMISSION_FAILS: _error(
        "check that the webhook's pods are Ready, and that API servers reach its Service: network policies,"
        " firewalls between control plane and nodes (docs/install.md)"
    ),
    Check.WEBHOOK_CERTIFICATE: _error(
        "see the log of the controller, which makes and renews it, or cert-manager's (docs/admission.md)"
    ),
    Check.WEBHOOK_NOT_READY: _error(
        "find the cause by kubectl describe and the log of pods with app.kubernetes.io/component=webhook"
    ),
    Check.FAILURE_POLICY: _warning("install with admission.failurePolicy: Fail, unless this is intended"),
    Check.NO_STATE: _error(
        f"check that the controller runs, and its log: kubectl -n {{where}} logs {_PODS}=controller"
    ),
    Check.NO_AGENT: _error(
        f"kubectl -n {{where}} get pods {_PODS}=agent -o wide shows where they run; the DaemonSet must tolerate the"
        " taints of the node"
    ),
    Check.AGENT_BEHIND: _error(
        f"check the agent's log, and whether it reaches the API server: kubectl -n {{where}} logs {_PODS}=agent"
    ),
    Check.PLUGIN_NOT_READY: _warning(
        f"find the cause by kubectl -n {{where}} describe pods {_PODS}=nri; the DaemonSet must tolerate the taints of"
        " the node"
    ),
    Check.NODE_CONDITION: _warning("see kubectl swap nodes -o wide and the agent's log"),
    Check.INVALID_PROFILE: _error("correct it; kubectl explain nodeswapprofile.spec has what each field takes"),
    Check.PROFILE_CONFLICT: _warning("give them different priorities, or selectors that do not overlap"),
    Check.GOVERNS_NO_NODE: _warning("correct nodeSelector, or label the nodes"),
    Check.ROLLOUT_STOPPED: _warning(
        "repair the named nodes, or let the change proceed: rollout.maxUnavailable: 100%, rollout.onSwapInUse: Proceed"
    ),
    Check.NAMESPACE_POLICY: _error(f"set it to one of {', '.join(names.Policy)}, or remove it"),
    Check.POD_NOT_ENFORCED: _warning("docs/semantics.md has the reasons and what each needs"),
    Check.SWAP_AGAINST_POLICY: _warning(words.ENFORCEMENT[ViolationReason.DRAINING].remedy),
    Check.NO_EFFECT: _warning(words.CORRECT_TEMPLATE),
    Check.REFUSED: _error(CORRECT),
}
"""The severity and the remedy of a problem, where its object says nothing else. {where} is the release's namespace."""

CONDITIONS: Final[Mapping[str, tuple[Severity, str]]] = {
    ConditionType.COMPATIBLE: _error(
        "boot the node with cgroup v2 (systemd.unified_cgroup_hierarchy=1) and a kernel with swap accounting, or"
        " keep pods with a policy off it"
    ),
    ConditionType.DEGRADED: _error("see kubectl swap nodes -o wide and the agent's log; docs/agent.md has the reasons"),
    ConditionType.DRIFTED: _warning(
        "find the other writer of memory.swap.max there; docs/agent.md lists the usual ones"
    ),
    ConditionType.SETTINGS_APPLIED: _warning("docs/node-settings.md has each reason and its remedy"),
    ConditionType.MEMORY_QOS: _warning(
        "leave memory to the kubelet's policy or to the profile's memoryQoS; docs/agent.md has each reason"
    ),
    ConditionType.STRICT_IN_EFFECT: _warning("docs/strict.md has each reason and its remedy"),
}
"""Remedies for conditions of a node's state whose messages do not end with one."""
NODE_PROBLEMS: Final[Mapping[NodeProblem, str]] = {
    NodeProblem.REQUIREMENT_UNMET: (
        "meet the profile's requirements on the node, or require less (swap.requirements, swap.allowedBacking)"
    ),
    NodeProblem.SETTINGS_REFUSED: "docs/node-settings.md has the bounds",
    NodeProblem.KUBELET_RESTART_NEEDED: "restart the kubelet",
    NodeProblem.PROTECTION_OVERCOMMITTED: "lower memoryQoS.reservationPercent or the pods' requests",
}
"""Remedies of what follows from a node's profile and facts."""

WORST_REASONS: Final = frozenset[str]({names.Reason.NODE_INCOMPATIBLE, names.Reason.INVALID_POLICY})
"""Reasons of pods' verdicts that are errors, whatever the pod's policy."""


def problem(
    check: Check,
    here: str,
    message: str,
    *,
    reason: str = "",
    severity: Severity | None = None,
    remedy: str = "",
    where: str = "",
) -> ClusterProblem:
    """Return a problem of the object `here`, by default with the check's usual reason, severity and remedy."""
    usual, advice = USUAL[check]
    return ClusterProblem(
        severity or usual, check, reason or check, here, message, remedy or advice.replace("{where}", where)
    )


def worst_first(problems: Iterable[ClusterProblem]) -> list[ClusterProblem]:
    """Return each problem once, by severity, then by check and reason, then by object."""
    order, checks = list(Severity), list(Check)
    return sorted(
        set(problems),
        key=lambda one: (
            order.index(one.severity),
            checks.index(one.check),
            one.reason,
            one.remedy,
            one.object,
            one.message,
        ),
    )
