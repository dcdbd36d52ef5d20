"""Notices about pods that must not swap and did, and the metric of what they hold in swap."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Final

from swapwarden.api import names
from swapwarden.controller.inventory import states
from swapwarden.controller.notices import regarding
from swapwarden.kube.events import Notice
from swapwarden.policy.observed import pods
from swapwarden.telemetry import metrics

HELD = metrics.gauge(
    "swapwarden_controller_disabled_pods_swap_bytes",
    "Swap in use by pods that must have none by their policy, as the node's agent reports; only nodes with such pods.",
    labels=("node",),
)

REASON: Final = "SwappedAgainstPolicy"

_FORBID: Final = {names.Reason.POLICY_DISABLED, names.Reason.INVALID_POLICY, names.Reason.OVERRIDE_DISABLED}


class Exposures:
    """Reports each growth once, even if it leaves the node's status and returns, or two leaders see it.

    An agent's sums only grow, for as long as they have the same beginning. So this keeps the beginning and the last
    sum of each pod that an agent reported, until the pod is gone.
    """

    def __init__(self) -> None:
        self.sums: dict[str, dict[str, tuple[str, int]]] = {}
        """By node and pod."""

    def forget(self, node: str | None = None) -> None:
        """Forget one node, or all."""
        if node is None:
            self.sums.clear()
        else:
            self.sums.pop(node, None)

    def notices(self, row: states.StateRow, known: Iterable[pods.PodRow]) -> Iterator[Notice]:
        """Yield a notice for each of a node's pods, the `known` ones, that took swap which was not reported before."""
        before = self.sums.pop(row.name, {})
        if not before and not row.exposed_pods:
            return
        there = {pod.key: pod for pod in known}
        noticed = {key: sums for key, sums in before.items() if key in there}
        grown = []
        for found in row.exposed_pods:
            since, size = noticed.get(found.pod, ("", 0))
            if found.pod in there and (found.since != since or found.swap_bytes > size):
                noticed[found.pod] = found.since, found.swap_bytes
                grown.append(found)
        if noticed:
            self.sums[row.name] = noticed
        reasons = states.reasons(row) if grown else {}
        for found in grown:
            if reasons.get(found.pod) in _FORBID:
                yield _notice(there[found.pod], found, _now(row, found.pod))


def _now(row: states.StateRow, key: str) -> str:
    """Return the present state of a pod's limit after it took swap, as far as it is known."""
    held = next((each.swap_bytes for each in row.draining_pods if each.pod == key), 0)
    if held:
        return f"; {held} bytes are still in use, and the limit is above 0 only where memory has no room for them"
    if row.unlisted or any(each.pod == key for each in row.violations):
        return ""
    return "; the limit is in force again"


def _notice(pod: pods.PodRow, found: states.WireExposure, now: str) -> Notice:
    since = f" since {found.since}" if found.since else ""
    most = "" if names.UNWATCHED.isdisjoint(found.causes) else "at most "
    message = (
        f"{most}{found.swap_bytes} bytes of this pod, which must not swap, went to swap on node {pod.node} while its"
        f" limit was undone, or not there yet ({', '.join(found.causes)}), for {found.milliseconds} ms"
        f" in all{since}{now}"
    )
    key = f"{found.pod}/{found.since}/{found.swap_bytes}"
    return Notice(regarding.pod(pod), "Warning", REASON, message, key, urgent=True)


def measure(name: str, row: states.StateRow | None) -> None:
    """Publish what pods of a node hold in swap although their policy forbids it; None: the node's state is gone.

    Pods that have none by anything else, as by their QoS class, are not counted. An agent lists at most
    state.MAX_VIOLATIONS deviations, so that of very many such pods the sum is a lower bound.
    """
    held = 0
    if row is not None and row.draining_pods:
        reasons = states.reasons(row)
        held = sum(each.swap_bytes for each in row.draining_pods if reasons.get(each.pod) in _FORBID)
    if held:
        HELD.set(held, name)
    else:
        HELD.remove(name)
