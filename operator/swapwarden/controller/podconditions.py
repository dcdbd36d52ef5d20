"""Tells in the status of pods with a policy whether it is enforced, for those who may read no nodes and no states.

The condition can be a pod's readiness gate. So it never goes back from True to what is not known: an agent that is
silent, or a state that is made anew, takes no limit away. It tells status and reason as they are now, and no numbers:
those of a busy node change all the time.
"""

from __future__ import annotations

import asyncio
import datetime
import logging
from collections.abc import Callable, Iterator
from typing import Any, Final

import msgspec

from swapwarden.api import names
from swapwarden.controller import cluster, deviations, reconciler, rows, throttle, workqueue
from swapwarden.kube import backoff, client, config
from swapwarden.policy import pods

log = logging.getLogger(__name__)

GATHER_SECONDS: Final = 0.2
"""How long changes gather before pods are looked at: of a pod's start come several at once."""
BACKOFF_SECONDS: Final = (1.0, 60.0)
QUEUE: Final = "pod_conditions"
"""Its name in the metric of queues."""


class Verdict(msgspec.Struct, frozen=True):
    """The condition of a pod, as it is to be."""

    status: str
    """True, False or Unknown."""
    reason: str
    message: str


class Pending(msgspec.Struct, frozen=True):
    """What a state says of a pod, and the first generation in which it was seen to."""

    entry: rows.ToldPod
    generation: int


def judge(pod: pods.PodRow, row: rows.StateRow, told: rows.Told, pending: Pending) -> Verdict:  # noqa: PLR0911 a table
    """Whether the policy of a pod is enforced, by its node's state `row`, which says `told` in all."""
    node, entry = pod.node, pending.entry
    if entry.reason == names.Reason.NODE_INCOMPATIBLE:
        return Verdict("False", entry.reason, f"node {node} cannot limit the swap of pods (it needs cgroup v2)")
    if told.mode == names.Mode.AUDIT:
        return Verdict("False", "Audit", deviations.said("Audit", node, told.profile.name))
    if told.mode == names.Mode.RESTORE:
        return Verdict("False", "Restore", f"node {node} puts back what was there before Swapwarden")
    if row.observed < pending.generation:
        return Verdict("Unknown", "AwaitingAgent", f"the agent of node {node} has not told that the limit is in force")
    found = {each.reason for each in row.deviating if each.pod == pod.key}
    for reason in deviations.REASONS:
        if reason in found:
            return Verdict("False", reason, deviations.said(reason, node, told.profile.name))
    if row.unlisted:
        return Verdict("Unknown", "NotListed", f"so much is wrong on node {node} that its agent cannot list it all")
    # Not the number: it may be another one with each pod that comes to the node, and be worth no write.
    return Verdict("True", entry.reason, f"the kernel holds what is planned for this pod on node {node}")


class PodConditions:
    """Owns the condition of all pods with a policy while `leads()` says so."""

    def __init__(
        self,
        api: client.Client,
        known: cluster.Cluster,
        *,
        leads: Callable[[], bool],
        writes: throttle.Throttle,
        gather: float = GATHER_SECONDS,
    ) -> None:
        self._api = api
        self._known = known
        self._leads = leads
        self._writes = writes
        self._gather = gather
        # In the order in which they came.
        self._nodes: dict[str, None] = {}
        # By node and pod: since when a state has said what it says of the pod.
        self._pending: dict[str, dict[str, Pending]] = {}
        self._changed = asyncio.Event()
        self._backoff = backoff.Backoff(*BACKOFF_SECONDS)

    def nudge(self, *nodes: str) -> None:
        """The pods of these nodes, or what is known of them, may have become others."""
        self._nodes.update(dict.fromkeys(filter(None, nodes)))
        self._changed.set()

    async def run(self) -> None:
        """Never returns."""
        while True:
            await self._changed.wait()
            await asyncio.sleep(self._gather)
            self._changed.clear()
            looked, self._nodes = list(self._nodes), {}
            if not self._leads():
                # Its first look is at all nodes.
                self._pending.clear()
                self._measure()
                continue
            for number, node in enumerate(looked):
                self._measure(len(looked) - number)
                try:
                    await self._look(node)
                except (client.ApiError, client.Unreachable, config.ConfigError) as error:
                    wait = max(self._backoff.next(), getattr(error, "retry_after", None) or 0.0)
                    log.warning(
                        "cannot write the conditions of pods on node %s: %s; trying again in %.1f s", node, error, wait
                    )
                    # It comes last: what one node's pods are refused must not keep the others waiting.
                    self.nudge(*looked[number + 1 :], node)
                    await asyncio.sleep(wait)
                    break
            else:
                self._backoff.reset()
            self._measure()

    def _measure(self, looked: int = 0) -> None:
        """Publish how many nodes wait, of which `looked` are no longer in the queue."""
        workqueue.DEPTH.set(looked + len(self._nodes), QUEUE)

    async def _look(self, node: str) -> None:
        """Bring the conditions of a node's pods up to date; what one is refused is raised after the others' turn."""
        refused = None
        for pod, verdict in list(self._due(node)):
            await asyncio.sleep(self._writes.wait())
            if not self._leads():
                return
            try:
                await self._write(pod, verdict)
            except client.ApiError as error:
                if error.status == 429 or error.status >= 500:
                    raise
                refused = error
        if refused is not None:
            raise refused

    def _due(self, node: str) -> Iterator[tuple[pods.PodRow, Verdict]]:
        """Yield the pods whose condition is to become another."""
        row = self._known.report_of(node)
        concerned = [pod for pod in self._known.pods_on(node) if _is_concerned(pod)]
        before = self._pending.pop(node, {})
        if row is None or not concerned:
            return
        told, pending = rows.told(row), {}
        for pod in concerned:
            entry = told.pods.get(pod.key)
            if entry is None:
                continue
            known = before.get(pod.key)
            if known is None or known.entry != entry:
                known = Pending(entry, row.generation)
            pending[pod.key] = known
            verdict = judge(pod, row, told, known)
            if _is_news(pod.enforced, verdict):
                yield pod, verdict
        self._pending[node] = pending

    async def _write(self, pod: pods.PodRow, verdict: Verdict) -> None:
        try:
            await reconciler.throttled(
                self._writes,
                "pod condition",
                self._api.request(
                    "PATCH",
                    f"/api/v1/namespaces/{pod.namespace}/pods/{pod.name}/status",
                    params=reconciler.FIELD_MANAGER,
                    body=msgspec.json.encode(body(pod, verdict, datetime.datetime.now(datetime.UTC))),
                    content_type=client.STRATEGIC_MERGE_PATCH,
                    timeout=reconciler.WRITE_TIMEOUT,
                ),
            )
        except client.ApiError as error:
            if error.status not in {404, 409}:  # the pod is gone, or another has its name: the watch will say so
                raise


def body(pod: pods.PodRow, verdict: Verdict, now: datetime.datetime) -> dict[str, Any]:
    """The strategic merge patch of a pod's status: of its list of conditions this one, by its type."""
    condition = {
        "type": names.ENFORCED_CONDITION,
        "status": verdict.status,
        "reason": verdict.reason,
        "message": verdict.message,
    }
    if pod.enforced is None or pod.enforced.status != verdict.status:
        condition["lastTransitionTime"] = now.strftime("%Y-%m-%dT%H:%M:%SZ")
    return {"metadata": {"uid": pod.uid}, "status": {"conditions": [condition]}}


def _is_news(before: pods.Enforced | None, verdict: Verdict) -> bool:
    """Whether a pod's condition is to become another one. What is in force, or is not, never becomes unknown again."""
    if before is None:
        return True
    known = verdict.status != "Unknown" or before.status == "Unknown"
    return known and (before.status, before.reason) != (verdict.status, verdict.reason)


def _is_concerned(pod: pods.PodRow) -> bool:
    """Whether the pod has a policy, is not over, and is no mirror of a static one, whose status is the kubelet's."""
    return pod.policy is not None and not pod.terminal and pod.key == pod.uid
