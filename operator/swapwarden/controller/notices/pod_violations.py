"""Texts for pods whose limit is not as planned: notices when that begins and ends, and the pod's condition."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Final

from swapwarden.api import names
from swapwarden.api.violations import PRESENT, ViolationReason
from swapwarden.controller.inventory import states
from swapwarden.controller.notices import regarding
from swapwarden.kube.events import Notice
from swapwarden.policy.observed import pods

_MESSAGES: Final[dict[str, str]] = {
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
        " condition Drifted of the node's NodeSwapState has the details"
    ),
    ViolationReason.AUDIT: (
        "profile {profile} is in mode Audit on node {node}: nothing is written, and what this pod says of swap is not"
        " in force"
    ),
}

_REASONS: Final[dict[str, str]] = {
    ViolationReason.ACCESS_DENIED: "SwapLimitNotWritten",
    ViolationReason.DRAINING: "SwapDraining",
    ViolationReason.INTERNAL_ERROR: "SwapLimitNotWritten",
    ViolationReason.UNREADABLE: "SwapLimitNotWritten",
    ViolationReason.WRITE_FAILED: "SwapLimitNotWritten",
    ViolationReason.YIELDED: "SwapLimitContested",
}
"""Reasons of events by the violation that they report."""

DRAINED: Final = "SwapDrained"


def message(reason: str, node: str, profile: str) -> str:
    """Return the text for one reason of violations.PRESENT, of a pod of `node`, whose state follows `profile`."""
    return _MESSAGES[reason].format(node=node, profile=profile)


def worst(row: states.StateRow, key: str) -> str:
    """Return the reason that counts most of a pod's violations; empty if there is none."""
    found = {each.reason for each in row.violations if each.pod == key}
    return next((reason for reason in PRESENT if reason in found), "")


def notices(old: states.StateRow, new: states.StateRow, known: Iterable[pods.PodRow]) -> Iterator[Notice]:
    """Yield a notice for each of a node's pods that begins to violate its limit, or has drained."""
    if old.violations == new.violations:
        return
    before, now = _reasons(old), _reasons(new)
    for row in known:
        was, has = before.get(row.key, set()), now.get(row.key, set())
        for reason in has - was:
            text = message(reason, row.node, new.profile.name)
            yield Notice(regarding.pod(row), "Warning", _REASONS[reason], text)
        # A list that is cut says nothing by what it lacks.
        drained = ViolationReason.DRAINING in was - has
        if drained and not row.terminal and not new.unlisted and _enforces(new):
            text = f"this pod has no more in swap than it may have on node {row.node}"
            yield Notice(regarding.pod(row), "Normal", DRAINED, text)


def _reasons(row: states.StateRow) -> dict[str, set[str]]:
    found: dict[str, set[str]] = {}
    for each in row.violations:
        if each.reason in _REASONS:
            found.setdefault(each.pod, set()).add(each.reason)
    return found


def _enforces(row: states.StateRow) -> bool:
    return states.spec_view(row).mode in {"", names.Mode.ENFORCE}
