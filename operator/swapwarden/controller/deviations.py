"""What is said of a pod whose limit is not as planned, in its condition and in events, by the violation's reason."""

from __future__ import annotations

from typing import Final

from swapwarden.api.violations import ViolationReason

_SAID: Final[dict[str, str]] = {
    ViolationReason.WRITE_FAILED: (
        "the kernel of node {node} refuses this pod's swap limit; the node's NodeSwapState has its words"
    ),
    ViolationReason.ACCESS_DENIED: (
        "a container of this pod closed its own cgroup to the agent on node {node}, so that its own limit is not known"
        " to hold; the pod's limit is held. Let the container's cgroup be read (chmod), or give it none to own"
    ),
    ViolationReason.UNREADABLE: "a cgroup of this pod cannot be read on node {node}; the node's NodeSwapState says why",
    ViolationReason.INTERNAL_ERROR: (
        "the agent on node {node} met an unexpected error with this pod, and tries again; its log has it: please"
        " report it"
    ),
    ViolationReason.DRAINING: (
        "this pod has more in swap than it may have on node {node}: nothing is taken from it by force, so it keeps what"
        " it has there, gets little more, and gives back what it touches"
    ),
    ViolationReason.YIELDED: (
        "another writer on node {node} keeps lowering this pod's swap limit, and is left its value for a time; the"
        " condition Drift of the node's NodeSwapState says what is known of it"
    ),
    ViolationReason.AUDIT: (
        "profile {profile} is in mode Audit on node {node}: nothing is written, and what this pod says of swap is not"
        " in force"
    ),
}

REASONS: Final = tuple(_SAID)
"""Reasons of violations that tell of a limit that is not as planned now; what counts more comes first."""


def said(reason: str, node: str, profile: str) -> str:
    """The sentence for one of REASONS, of a pod of `node`, whose state follows `profile`."""
    return _SAID[reason].format(node=node, profile=profile)
