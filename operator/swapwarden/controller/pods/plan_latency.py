"""Measures how long new pods on a node wait until their limits hold, as far as the controller can see it.

Pure but for the metrics. Only the leader plans, so only pods that arrived while this instance leads are followed.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Container

import msgspec

from swapwarden.policy.observed import pods, states
from swapwarden.telemetry import metrics

ENFORCED = metrics.histogram(
    "swapwarden_pod_bind_to_enforced_seconds",
    "Time from when the controller sees a new pod on its node until it sees that the agent applied the state with the"
    " pod's limit. Agents gather these answers for up to 5 seconds, so this is an upper bound:"
    " swapwarden_agent_pod_enforced_seconds has the agent's own measurement. Only the leader has it.",
    buckets=(0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 7.5, 10.0, 15.0, 30.0, 60.0, 300.0),
)
AWAITING = metrics.gauge(
    "swapwarden_pods_awaiting_state",
    "Pods that arrived at a node while this instance leads, and that no state it wrote includes yet.",
)


class _Wait(msgspec.Struct):
    since: float
    written: tuple[str, int] | None = None
    """UID and generation of the first state that names the pod."""


class PlanLatency:
    """Follows each new pod until its node's agent has answered. Times in seconds of `clock`."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self.now = clock
        self._waits: dict[str, dict[str, _Wait]] = {}
        self._awaiting = 0

    def clear(self) -> None:
        """Forget all pods: this instance no longer leads."""
        self._waits.clear()
        self._count(-self._awaiting)

    def pod_changed(self, old: pods.PodRow | None, new: pods.PodRow | None) -> None:
        """Take in a pod that was created (from None), changed or deleted (to None) while this instance leads."""
        if old is not None and old.node and (new is None or new.terminal or new.node != old.node):
            self._drop(old.node, old.key)
        if new is not None and new.node and not new.terminal and (old is None or old.node != new.node):
            self._drop(new.node, new.key)  # forged mirrors of static pods share a key
            self._waits.setdefault(new.node, {})[new.key] = _Wait(self.now())
            self._count(1)

    def planned(self, node: str, row: states.StateRow | None, named: Container[str], came: float) -> None:
        """Note that `row` is the node's state now, with the limits of the pods `named`.

        The plan has the pods that arrived until `came` (seconds of the clock); one that is not named needs no limit.
        """
        for key, wait in list(self._waits.get(node, {}).items()):
            if wait.written is not None or wait.since > came:
                continue
            if key in named and row is not None:
                wait.written = row.uid, row.generation
                self._count(-1)
            else:
                self._drop(node, key)

    def observed(self, name: str, row: states.StateRow | None) -> None:
        """Take in a node's state, which its agent may have answered; None: it was deleted."""
        for key, wait in list(self._waits.get(name, {}).items()):
            if wait.written is None:
                continue
            uid, generation = wait.written
            if row is None or row.uid != uid:
                self._drop(name, key)
            elif row.observed >= generation:
                self._drop(name, key)
                ENFORCED.observe(self.now() - wait.since)

    def node_went(self, name: str) -> None:
        """Forget the pods of a deleted Node."""
        for key in list(self._waits.get(name, ())):
            self._drop(name, key)

    def _drop(self, node: str, key: str) -> None:
        waits = self._waits.get(node, {})
        wait = waits.pop(key, None)
        if wait is not None and wait.written is None:
            self._count(-1)
        if not waits:
            self._waits.pop(node, None)

    def _count(self, change: int) -> None:
        self._awaiting += change
        AWAITING.set(self._awaiting)
