"""The order in which pods would leave a node under memory pressure, as KEP-2400 has it, and which of them never do.

The kubelet orders by memory alone (k/k: pkg/kubelet/eviction/helpers.go, rankMemoryPressure). KEP-2400 adds swap to a
pod's usage, and the swap that it may use to its request; the kubelet does not have that part.
"""

from __future__ import annotations

import enum
from collections.abc import Iterable, Mapping
from typing import Final

import msgspec

from swapwarden.api import names, state
from swapwarden.policy.pressure.candidates import Candidate
from swapwarden.policy.pressure.thresholds import Eviction

_DEFAULTS: Final = Eviction()
LEAST_PERCENT: Final = 1
"""The share of the node's memory that a pod must use to be worth an eviction."""


class Spared(enum.StrEnum):
    """Why a pod is not chosen, the first that applies."""

    NOT_MEASURED = "NotMeasured"
    """The pod is not among the largest ones in the agent's report."""
    NOT_RUNNING = "NotRunning"
    TERMINATING = "Terminating"
    STATIC = "Static"
    CRITICAL = "Critical"
    NAMESPACE_EXCLUDED = "NamespaceExcluded"
    DAEMON_SET = "DaemonSet"
    UNMANAGED = "Unmanaged"
    """No controller would replace it."""
    KEPT_BY_OWNER = "KeptByOwner"
    SMALL = "Small"
    NOT_SWAPPING = "NotSwapping"
    """The node stalls, and the pod has no part in that: it has nothing in swap, and reads nothing back."""
    WITHIN_GRANT = "WithinGrant"
    """The pod uses at most its memory request and the swap that it may use."""


class Ranked(msgspec.Struct, frozen=True):
    """A pod and its usage. Sizes in bytes."""

    pod: Candidate
    measured: state.PressuredPod | None = None
    """The agent's measurement of the pod; None: the agent did not report it."""
    small: bool = False
    """Whether the node would hardly notice that the pod is gone."""
    spared: Spared | None = None

    @property
    def usage(self) -> int:
        """Return its working set and swap; 0 if it was not measured."""
        return 0 if self.measured is None else self.measured.working_set_bytes + self.measured.swap_bytes

    @property
    def excess(self) -> int:
        """Return its usage above its grant; below zero if it keeps within."""
        return self.usage - self.pod.grant

    def order(self) -> tuple[bool, bool, int, int, str, str, str]:
        """Return the sort key: a total order, in which no two pods of a node are equal."""
        known = self.measured is not None
        excess = self.excess if known else 0
        pod = self.pod
        return known, known and excess <= 0, pod.priority, -excess, pod.namespace, pod.name, pod.uid


def rank(
    candidates: Iterable[Candidate],
    report: state.PressureReport,
    memory_bytes: int,
    bounds: Eviction = _DEFAULTS,
) -> tuple[Ranked, ...]:
    """Return all pods of a node in the order in which they would leave, each with the reason that spares it.

    `bounds` are the profile's.
    """
    measured = {one.pod: one for one in report.pods}
    ranked = (Ranked(one, measured.get(one.key)) for one in candidates)
    sized = (msgspec.structs.replace(one, small=one.usage * 100 < memory_bytes * LEAST_PERCENT) for one in ranked)
    judged = (msgspec.structs.replace(one, spared=_spared(one, report.signal, bounds)) for one in sized)
    return tuple(sorted(judged, key=Ranked.order))


def _spared(one: Ranked, signal: str, bounds: Eviction) -> Spared | None:
    pod, measured = one.pod, one.measured
    if measured is None:
        return Spared.NOT_MEASURED
    idle = signal == names.PressureSignal.STALL and not (measured.swap_bytes or measured.refaults)
    checks: Mapping[Spared, bool] = {
        Spared.NOT_RUNNING: not pod.running,
        Spared.TERMINATING: pod.ending,
        Spared.STATIC: pod.static,
        Spared.CRITICAL: pod.critical,
        Spared.NAMESPACE_EXCLUDED: pod.namespace in bounds.excluded,
        Spared.DAEMON_SET: pod.controller == "DaemonSet" and not bounds.daemon_sets,
        Spared.UNMANAGED: not pod.controller and not bounds.unmanaged,
        Spared.KEPT_BY_OWNER: pod.kept,
        Spared.SMALL: one.small,
        Spared.NOT_SWAPPING: idle,
        Spared.WITHIN_GRANT: one.excess <= 0,
    }
    return next((reason for reason, holds in checks.items() if holds), None)
