"""Reports in the status of each pod with a policy whether it is enforced, for users who cannot read nodes and states.

The condition can be a pod's readiness gate. Therefore it never turns from True to Unknown: a silent agent, or a new
state of the node, removes no limit. It has the present status and reason, and no numbers: on a busy node they change
all the time.
"""

from __future__ import annotations

import datetime
import logging
from typing import Any, Final

from swapwarden.api import formats
from swapwarden.api.conditions import ConditionType
from swapwarden.controller import supervise, workqueue
from swapwarden.controller.pods import verdicts
from swapwarden.controller.term import TermOver
from swapwarden.controller.writers.fenced import Fenced, Writes, unless_superseded
from swapwarden.kube import errors
from swapwarden.policy.fleet.inventory import NodeInventory
from swapwarden.policy.observed import pods
from swapwarden.policy.verdict.pod import PodVerdict

log = logging.getLogger(__name__)

RESERVE: Final = 0.25
"""Share of the writes of a second that is reserved for states: conditions of one tenant's pods must not delay
limits."""
BACKOFF_SECONDS: Final = (1.0, 60.0)
WORKERS: Final = 8
"""Conditions that are written at a time."""
QUEUE: Final = "pod_conditions"
"""The queue's name in metrics."""


class ConditionPublisher:
    """Publishes the condition of all pods with a policy for one term."""

    def __init__(self, known: NodeInventory, writes: Fenced) -> None:
        self._known = known
        self._writes = writes
        # By the pod's uid. Each is written by itself, so that a refusal or a delay concerns one pod only.
        self.desired: dict[str, tuple[pods.PodRow, PodVerdict]] = {}
        self.queue = workqueue.WorkQueue(QUEUE, hold=lambda: writes.delay(reserve=RESERVE), waits=BACKOFF_SECONDS)

    async def run(self) -> None:
        """Write until cancelled."""
        await self.queue.serve(WORKERS, self._publish, self._failed)

    def publish(self, node: str, judged: verdicts.Judged) -> None:
        """Queue the pods on a node whose condition differs from their verdict."""
        due = {pod.uid: (pod, verdict) for pod, verdict in judged if _is_news(pod.enforced, verdict)}
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


def _is_news(before: pods.Enforced | None, verdict: PodVerdict) -> bool:
    """Return whether a pod's condition must be written: it is planned, and the condition says something else."""
    if not verdicts.is_planned(verdict):
        return False
    if before is None:
        return True
    if verdict.status == "Unknown" and before.status == "True":
        # A readiness gate must not close for lack of a report: the kernel keeps limits that were set.
        return False
    moved = verdict.holder not in {"", before.holder}
    return moved or (before.status, before.reason) != (verdict.status, verdict.reason)


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
        # The row of a pod reads the holder back from the end.
        "message": verdict.sentence + (pods.held_by(verdict.holder) if verdict.holder else ""),
    }
    if pod.enforced is None or pod.enforced.status != verdict.status:
        condition["lastTransitionTime"] = formats.rfc3339(now.timestamp())
    return {"metadata": {"uid": pod.uid}, "status": {"conditions": [condition]}}
