"""Judges the pods with a policy on each node whose state or pods change, counts the verdicts, and hands them on."""

from __future__ import annotations

import asyncio
import collections
import logging
from collections.abc import Callable, Sequence
from typing import Final

import msgspec

from swapwarden.controller import supervise
from swapwarden.policy.fleet.inventory import NodeInventory
from swapwarden.policy.observed import pods, states
from swapwarden.policy.verdict import pod as verdict
from swapwarden.policy.verdict.pod import PodVerdict
from swapwarden.policy.verdict.words import PodReason
from swapwarden.telemetry import metrics

log = logging.getLogger(__name__)

PODS = metrics.gauge(
    "swapwarden_controller_policy_pods",
    "Pods with a swap policy, by whether it is enforced (True, False or Unknown) and why, as in their condition"
    " SwapPolicyEnforced. Only the leader has it.",
    labels=("status", "reason"),
)
PART: Final = "pod_verdicts"
GATHER_SECONDS: Final = 0.2
"""How long changes are gathered before pods are judged: the start of a pod makes several."""

Judged = Sequence[tuple[pods.PodRow, PodVerdict]]
"""Pods of one node with their verdicts."""


class _Memory(msgspec.Struct, frozen=True):
    """The memory of one pod, for as long as it is on its node."""

    verdict: PodVerdict
    """The present verdict."""
    enforced: pods.Enforced | None
    """The last verdict while the state named the pod: a report that does not cover the pod leaves it as it was."""
    entry: states.PodInSpec | None
    """The pod in the state's spec."""
    since: int
    """The first generation with that entry."""


class PodVerdicts:
    """The verdicts of one term."""

    def __init__(
        self,
        known: NodeInventory,
        publish: Callable[[str, Judged], None] | None = None,
        *,
        gather: float = GATHER_SECONDS,
    ) -> None:
        """`publish` takes the verdicts about a node's pods each time that they are judged."""
        self._known = known
        self._publish = publish
        self._gather = gather
        # In the order of their changes.
        self.nodes: dict[str, None] = {}
        self._changed = asyncio.Event()
        # By node and UID of the pod.
        self._last: dict[str, dict[str, _Memory]] = {}
        self._sums: collections.Counter[tuple[str, str]] = collections.Counter()

    def request_sync(self, *nodes: str) -> None:
        """Request that the pods on these nodes are judged again."""
        self.nodes.update(dict.fromkeys(filter(None, nodes)))
        self._changed.set()

    async def run(self) -> None:
        """Run until cancelled; the next leader counts by itself."""
        try:
            while True:
                await self._changed.wait()
                await asyncio.sleep(self._gather)
                self._changed.clear()
                due, self.nodes = self.nodes, {}
                for node in due:
                    self._try(node)
        finally:
            self.close()

    def close(self) -> None:
        """Forget all counts."""
        for node in list(self._last):
            self._count(node, {})

    def _try(self, node: str) -> None:
        try:
            judged = self.judge_node(node)
            if self._publish is not None:
                self._publish(node, judged)
        except Exception:
            # A fault of one node must not keep the others waiting.
            supervise.FAULTS.inc(PART)
            log.exception("cannot judge the pods of node %s", node)

    def judge_node(self, node: str) -> Judged:
        """Judge and count the pods with a policy on a node."""
        concerned = [pod for pod in self._known.pods_on(node) if _is_concerned(pod)]
        if not concerned:
            self._count(node, {})
            return ()
        report = verdict.ReadState.of(self._known.report_of(node), has_agent=self._known.has_agent(node))
        generation = 0 if report.row is None else report.row.generation
        before, now = self._last.get(node, {}), dict[str, _Memory]()
        for pod in concerned:
            last, entry = before.get(pod.uid), report.spec.pod(pod.key)
            enforced = pod.enforced if last is None or last.enforced is None else last.enforced
            # A recreated state counts its generations from 1.
            since = min(last.since, generation) if last is not None and last.entry == entry else generation
            judged = verdict.judge(pod, report, enforced, since)
            if is_planned(judged):
                enforced = pods.Enforced(judged.status, judged.reason, judged.holder)
            now[pod.uid] = _Memory(judged, enforced, entry, since)
        self._count(node, now)
        return [(pod, now[pod.uid].verdict) for pod in concerned]

    def _count(self, node: str, now: dict[str, _Memory]) -> None:
        before = self._last.pop(node, {})
        if now:
            self._last[node] = now
        counts = collections.Counter((one.verdict.status, one.verdict.reason) for one in now.values())
        counts.subtract((one.verdict.status, one.verdict.reason) for one in before.values())
        for labels, change in counts.items():
            if change:
                self._sums[labels] += change
                if self._sums[labels]:
                    PODS.set(self._sums[labels], *labels)
                else:
                    del self._sums[labels]
                    PODS.remove(*labels)


def is_planned(judged: PodVerdict) -> bool:
    """Return whether the state of the pod's node names it: before that, there is nothing to enforce or to publish."""
    return judged.reason not in {PodReason.NO_STATE, PodReason.NOT_PLANNED}


def _is_concerned(pod: pods.PodRow) -> bool:
    """Return whether a pod has a policy, has not ended, and is no mirror of a static pod, which the kubelet owns."""
    return pod.policy is not None and not pod.terminal and pod.key == pod.uid
