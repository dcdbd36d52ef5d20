"""Reports in the status of each pod with a policy whether it is enforced, for users who cannot read nodes and states.

The condition can be a pod's readiness gate. Therefore it never turns from True to Unknown: a silent agent, or a new
state of the node, removes no limit. It has the present status and reason, and no numbers: on a busy node they change
all the time.
"""

from __future__ import annotations

import asyncio
import datetime
import logging
from collections.abc import Iterator
from typing import Any, Final

import msgspec

from swapwarden.api import names, runtime_link, times
from swapwarden.api.conditions import ConditionType
from swapwarden.api.violations import ViolationReason
from swapwarden.controller import supervise, workqueue
from swapwarden.controller.notices import pod_notices
from swapwarden.controller.term import TermOver
from swapwarden.controller.writers.fenced import Fenced, Writes, unless_superseded
from swapwarden.kube import errors
from swapwarden.policy.fleet.inventory import NodeInventory
from swapwarden.policy.observed import pods, states

log = logging.getLogger(__name__)

RESERVE: Final = 0.25
"""Share of the writes of a second that is reserved for states: conditions of one tenant's pods must not delay
limits."""
GATHER_SECONDS: Final = 0.2
"""How long changes are gathered before pods are judged: the start of a pod makes several."""
BACKOFF_SECONDS: Final = (1.0, 60.0)
WORKERS: Final = 8
"""Writes at a time."""
QUEUE: Final = "pod_conditions"
"""The queue's name in metrics."""


class PodVerdict(msgspec.Struct, frozen=True):
    """The desired condition of a pod."""

    status: str
    """True, False or Unknown."""
    reason: str
    message: str
    holder: str = ""
    """Who holds the limit, of names.Holder; empty if that is not known."""


class Pending(msgspec.Struct, frozen=True):
    """The part of a state about a pod, and the first generation that has it."""

    entry: states.PodInSpec
    generation: int


def judge(pod: pods.PodRow, row: states.StateRow, spec: states.SpecView, pending: Pending) -> PodVerdict:  # noqa: PLR0911 a table
    """Judge whether the policy of a pod is enforced, by its node's state `row` and the decoded `spec` of that."""
    node, entry = pod.node, pending.entry
    if entry.reason == names.Reason.NODE_INCOMPATIBLE:
        return PodVerdict("False", entry.reason, f"node {node} cannot limit the swap of pods (it needs cgroup v2)")
    if spec.mode == names.Mode.AUDIT:
        return PodVerdict(
            "False",
            ViolationReason.AUDIT,
            pod_notices.violation_message(ViolationReason.AUDIT, node, spec.profile_ref.name),
        )
    if spec.mode == names.Mode.RESTORE:
        return PodVerdict("False", "Restore", f"node {node} restores the values from before Swapwarden")
    if row.observed < pending.generation:
        return PodVerdict(
            "Unknown", "AwaitingAgent", f"the agent of node {node} has not reported that the limit is in force"
        )
    reason = pod_notices.worst_violation(row, pod.key)
    if reason:
        return PodVerdict("False", reason, pod_notices.violation_message(reason, node, spec.profile_ref.name))
    if row.unlisted:
        return PodVerdict("Unknown", "NotListed", f"so much is wrong on node {node} that its agent cannot list it all")
    # Without the number: it may change with each new pod of the node, and that needs no write.
    message = f"the kernel holds the planned swap limit of this pod on node {node}"
    no_nri = any(
        each.type == ConditionType.NRI_UNAVAILABLE and each.reason == runtime_link.Away.NO_SOCKET
        for each in row.abnormal_conditions
    )
    holder = pods.holder_of(pod.key, entry.swap_max, row.holds, no_nri=no_nri)
    return PodVerdict("True", entry.reason, message + pods.held_by(holder) if holder else message, holder)


class ConditionPublisher:
    """Publishes the condition of all pods with a policy for one term."""

    def __init__(self, known: NodeInventory, writes: Fenced, *, gather: float = GATHER_SECONDS) -> None:
        self._known = known
        self._writes = writes
        self._gather = gather
        # In the order of their changes.
        self.nodes: dict[str, None] = {}
        # By node and pod: the first generation with the pod's present entry.
        self._pending: dict[str, dict[str, Pending]] = {}
        self._changed = asyncio.Event()
        # By the pod's uid. Each is written by itself, so that a refusal or a delay concerns one pod only.
        self.desired: dict[str, tuple[pods.PodRow, PodVerdict]] = {}
        self.queue = workqueue.WorkQueue(QUEUE, hold=lambda: writes.delay(reserve=RESERVE), waits=BACKOFF_SECONDS)

    def request_sync(self, *nodes: str) -> None:
        """Request that the pods on these nodes are judged again."""
        self.nodes.update(dict.fromkeys(filter(None, nodes)))
        self._changed.set()

    async def run(self) -> None:
        """Run until cancelled."""
        async with asyncio.TaskGroup() as group:
            group.create_task(self.queue.serve(WORKERS, self._publish, self._failed))
            group.create_task(self._keep_judging())

    async def _keep_judging(self) -> None:
        while True:
            await self._changed.wait()
            await asyncio.sleep(self._gather)
            self._changed.clear()
            due, self.nodes = self.nodes, {}
            for node in due:
                try:
                    self.judge_node(node)
                except Exception:
                    # A fault of one node must not keep the others waiting.
                    supervise.FAULTS.inc(QUEUE)
                    log.exception("cannot judge the pods of node %s", node)

    def judge_node(self, node: str) -> None:
        """Queue the pods on a node whose condition must change."""
        due = {pod.uid: (pod, verdict) for pod, verdict in self._due(node)}
        for pod in self._known.pods_on(node):
            if pod.uid not in due:
                self.desired.pop(pod.uid, None)
        self.desired.update(due)
        for uid, (pod, _) in due.items():
            self.queue.add(uid, owner=pod.namespace)

    async def _publish(self, uid: str) -> None:
        """Write a pod's condition."""
        desired = self.desired.get(uid)
        if desired is None:
            return
        try:
            await unless_superseded(_write_condition(self._writes, *desired))
        except (errors.KubeError, TermOver):
            # The Lease may have been renewed since the write began: then nobody else writes it.
            if uid in self.desired and self._writes.term.is_valid():
                raise
        # A newer verdict is in the queue again.
        if self.desired.get(uid) is desired:
            del self.desired[uid]

    def _failed(self, uid: str, error: Exception, wait: float) -> None:
        if isinstance(error, errors.KubeError):
            pod = self.desired[uid][0]
            log.warning(
                "cannot write the condition of pod %s/%s on node %s: %s; trying again in %.1f s",
                *(pod.namespace, pod.name, pod.node, error, wait),
            )
        elif not isinstance(error, TermOver):
            self.desired.pop(uid, None)
            supervise.FAULTS.inc(QUEUE)
            log.error("cannot write the condition of the pod with uid %s", uid, exc_info=error)

    def _due(self, node: str) -> Iterator[tuple[pods.PodRow, PodVerdict]]:
        """Yield the pods whose condition must change."""
        row = self._known.report_of(node)
        concerned = [pod for pod in self._known.pods_on(node) if _is_concerned(pod)]
        before = self._pending.pop(node, {})
        if row is None or not concerned:
            return
        spec, pending = states.spec_view(row), {}
        for pod in concerned:
            entry = spec.pod(pod.key)
            if entry is None:
                continue
            known = before.get(pod.key)
            if known is None or known.entry != entry:
                known = Pending(entry, row.generation)
            pending[pod.key] = known
            verdict = judge(pod, row, spec, known)
            if _is_news(pod.enforced, verdict):
                yield pod, verdict
        self._pending[node] = pending


def _is_news(before: pods.Enforced | None, verdict: PodVerdict) -> bool:
    """Return whether a pod's condition must be written. True and False never become Unknown again."""
    if before is None:
        return True
    known = verdict.status != "Unknown" or before.status == "Unknown"
    moved = verdict.holder not in {"", before.holder}
    return known and (moved or (before.status, before.reason) != (verdict.status, verdict.reason))


def _is_concerned(pod: pods.PodRow) -> bool:
    """Return whether a pod has a policy, has not ended, and is no mirror of a static pod, which the kubelet owns."""
    return pod.policy is not None and not pod.terminal and pod.key == pod.uid


async def _write_condition(writes: Writes, pod: pods.PodRow, verdict: PodVerdict) -> bytes:
    """Set a pod's condition. Raise ApiError: 404 if the pod was deleted, 409 if it has another uid."""
    path = f"/api/v1/namespaces/{pod.namespace}/pods/{pod.name}/status"
    return await writes.strategic_patch(
        "pod_condition", path, condition_patch(pod, verdict, datetime.datetime.now(datetime.UTC))
    )


def condition_patch(pod: pods.PodRow, verdict: PodVerdict, now: datetime.datetime) -> dict[str, Any]:
    """Return the strategic merge patch of a pod's status: this condition in the list, by its type."""
    condition = {
        "type": ConditionType.SWAP_POLICY_ENFORCED,
        "status": verdict.status,
        "reason": verdict.reason,
        "message": verdict.message,
    }
    if pod.enforced is None or pod.enforced.status != verdict.status:
        condition["lastTransitionTime"] = times.rfc3339(now.timestamp())
    return {"metadata": {"uid": pod.uid}, "status": {"conditions": [condition]}}
