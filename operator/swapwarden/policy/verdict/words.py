"""One sentence and one remedy for each reason of a pod's verdict, for conditions, events, `explain` and `check`."""

from __future__ import annotations

import enum
from collections.abc import Mapping
from typing import Final

import msgspec

from swapwarden.api import names
from swapwarden.api.violations import ViolationReason
from swapwarden.policy.observed import pods


class PodReason(enum.StrEnum):
    """Reasons of verdicts beside the rule that gave the pod its limit and the violations that agents list."""

    RESTORE = "Restore"
    """Swapwarden is being removed."""
    NO_STATE = "NoState"
    """The node has no NodeSwapState."""
    NOT_PLANNED = "NotPlanned"
    """The node's NodeSwapState does not name the pod."""
    NO_AGENT = "NoAgent"
    """No agent is Ready, and none has reported on the pod's present limit."""
    AWAITING_AGENT = "AwaitingAgent"
    """The agent has not reported on the pod's present limit yet."""
    NOT_LISTED = "NotListed"
    """The agent's list of violations is cut."""


class Words(msgspec.Struct, frozen=True):
    """The text for one reason. `message` and `remedy` may contain {node}, {profile}, {qos} and {result}."""

    message: str
    remedy: str
    event: str = ""
    """Reason of the Event about the pod; empty if there is none."""

    def about(self, pod: pods.PodRow, profile: str, *, audit: bool = False) -> Words:
        """Return the text about one pod, whose node's state follows a profile; `audit`: its mode is Audit."""
        known = {
            "node": pod.node,
            "profile": profile,
            "qos": pod.qos,
            "result": "would get no swap in mode Enforce" if audit else "gets no swap",
        }
        return Words(self.message.format(**known), self.remedy.format(**known), self.event)


def sentence(message: str, remedy: str) -> str:
    """Return a message with its remedy, as conditions and events show them."""
    return f"{message}; {remedy}" if remedy else message


AUDIT_REMEDY: Final = "set mode: Enforce in the profile once its reports are as intended"
NODE_INCOMPATIBLE: Final = Words(
    "node {node} cannot limit the swap of pods (it needs cgroup v2 with the swap controller): this pod's swap policy is"
    " not enforced there",
    "see the node's condition Compatible, or keep such pods off it",
    names.Reason.NODE_INCOMPATIBLE,
)
HELD: Final = Words("the kernel holds the planned swap limit of this pod on node {node}", "")
UNREPAIRED: Final = Words(
    HELD.message,
    "no agent is Ready there, so external writes are not repaired: check the pods of the agent's DaemonSet",
)
_NOT_WRITTEN: Final = "SwapLimitNotWritten"
ENFORCEMENT: Final[Mapping[str, Words]] = {
    names.Reason.NODE_INCOMPATIBLE: NODE_INCOMPATIBLE,
    names.Mode.AUDIT: Words(
        "profile {profile} is in mode Audit on node {node}: nothing is written, and the swap policy and limits of"
        " this pod are not in force",
        AUDIT_REMEDY,
        names.Mode.AUDIT,
    ),
    PodReason.RESTORE: Words(
        "node {node} restores the values from before Swapwarden", "install Swapwarden again to have limits enforced"
    ),
    PodReason.NO_STATE: Words(
        "the controller has not planned node {node}: it has no NodeSwapState", "check that the controller runs"
    ),
    PodReason.NOT_PLANNED: Words(
        "the state of node {node} does not name this pod yet",
        "if it stays, check the controller's log, and delete pods on this node that never run",
    ),
    ViolationReason.WRITE_FAILED: Words(
        "the kernel of node {node} refuses this pod's swap limit",
        "the node's NodeSwapState has the kernel's error, and docs/agent.md its causes",
        _NOT_WRITTEN,
    ),
    ViolationReason.ACCESS_DENIED: Words(
        "a container of this pod closed its own cgroup to the agent on node {node}, so that its own limit is not known"
        " to hold; the pod's limit is held",
        "let the container's cgroup be read (chmod), or give it none to own",
        _NOT_WRITTEN,
    ),
    ViolationReason.UNREADABLE: Words(
        "a cgroup of this pod cannot be read on node {node}", "the node's NodeSwapState says why", _NOT_WRITTEN
    ),
    ViolationReason.INTERNAL_ERROR: Words(
        "the agent on node {node} met an unexpected error with this pod, and tries again",
        "its log has the error: please report it",
        _NOT_WRITTEN,
    ),
    ViolationReason.DRAINING: Words(
        "this pod has more in swap than it may have on node {node}: nothing is taken from it by force, so it keeps what"
        " it has there, gets little more, and gives back what it touches",
        "restart the pod, which frees it; docs/agent.md has the causes",
        "SwapDraining",
    ),
    ViolationReason.YIELDED: Words(
        "another writer on node {node} keeps lowering this pod's swap limit, and is left its value for a time",
        "find that writer: the condition Drifted of the node's NodeSwapState has the details",
        "SwapLimitContested",
    ),
    PodReason.NO_AGENT: Words(
        "no agent runs on node {node}: nothing enforces or reports this pod's swap limit there",
        "check the pods of the agent's DaemonSet, which must tolerate the taints of the node",
    ),
    PodReason.AWAITING_AGENT: Words(
        "the agent of node {node} has not reported that the limit is in force",
        "wait some seconds; if it stays, check the agent's log",
    ),
    PodReason.NOT_LISTED: Words(
        "so much is wrong on node {node} that its agent cannot list it all",
        "see the conditions of the node's NodeSwapState",
    ),
}
"""The text by the reason of a verdict that is not True."""


CORRECT_TEMPLATE: Final = "correct the template of the workload that made it"
_WITHOUT_EFFECT: Final = "this pod's swap limit has no effect"
_LESS: Final = "this pod gets less swap than its limit"
SHORTFALL: Final[Mapping[str, Words]] = {
    names.Reason.NODE_INCOMPATIBLE: NODE_INCOMPATIBLE,
    names.Reason.INVALID_POLICY: Words(
        f"a swap annotation of this pod is not understood, so it {{result}}: {names.POLICY_ANNOTATION} takes"
        f" {', '.join(names.Policy)}, and swap limits are quantities such as 512Mi",
        CORRECT_TEMPLATE,
    ),
    names.Reason.REQUIREMENT_UNMET: Words(
        "profile {profile} gives swap only to nodes that have what it requires, and node {node} does not:"
        f" {_WITHOUT_EFFECT}",
        "see by `kubectl swap nodes -o wide` what the node lacks, or have policy Required place the pod",
    ),
    names.Reason.PROFILE_NO_SWAP: Words(
        f"profile {{profile}} gives no swap to pods on node {{node}}: {_WITHOUT_EFFECT}",
        "remove the limit, or have policy Required bring the pod onto nodes that give swap",
    ),
    names.Reason.QOS_NOT_ELIGIBLE: Words(
        "profile {profile} gives swap to Burstable pods only on node {node} (behavior LimitedSwap), and this pod is"
        " {qos}: its swap limit has no effect",
        "make the pod Burstable, or have a profile of behavior WorkloadControlled",
    ),
    names.Reason.CRITICAL_POD: Words(
        "profile {profile} gives no swap to critical pods on node {node} (behavior LimitedSwap):"
        f" {_WITHOUT_EFFECT}",
        "remove the limit, or have a profile of behavior WorkloadControlled",
    ),
    names.Reason.OVERRIDE_DISABLED: Words(
        "an override of profile {profile}, which governs node {node}, gives no swap to this pod",
        "ask the owner of the profile, or remove the pod's policy and limits",
    ),
    names.Reason.OVERRIDE_LIMIT: Words(
        f"{_LESS}: an override of profile {{profile}}, which governs node {{node}}, allows no more",
        "lower the pod's limit, or raise swap.limit of the override",
    ),
    names.Reason.BOUNDED: Words(
        f"{_LESS}: profile {{profile}} or node {{node}} allows no more",
        "lower the pod's limit, or raise maxPerPod or maxPerContainer of the profile",
    ),
    names.Reason.OVERCOMMIT_REACHED: Words(
        f"{_LESS}: what profile {{profile}} lets the pods of node {{node}} have in all (overcommitPercent) went to pods"
        " that were there before",
        "lower limits, move pods to other nodes, or raise overcommitPercent",
    ),
}
"""The text for a plan that gives a pod less than it asks for, by the rule that gave the limit."""
