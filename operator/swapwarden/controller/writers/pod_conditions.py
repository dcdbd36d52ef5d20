"""Writes the condition by which pods learn whether their policy is enforced."""

from __future__ import annotations

import datetime
from typing import Any

import msgspec

from swapwarden.api import times
from swapwarden.api.conditions import ConditionType
from swapwarden.controller.writers.fenced import Writes
from swapwarden.policy.observed import pods


class PodVerdict(msgspec.Struct, frozen=True):
    """The desired condition of a pod."""

    status: str
    """True, False or Unknown."""
    reason: str
    message: str


async def write(writes: Writes, pod: pods.PodRow, verdict: PodVerdict) -> bytes:
    """Set a pod's condition. Raise ApiError: 404 if the pod was deleted, 409 if it has another uid."""
    path = f"/api/v1/namespaces/{pod.namespace}/pods/{pod.name}/status"
    return await writes.strategic_patch("pod_condition", path, body(pod, verdict, datetime.datetime.now(datetime.UTC)))


def body(pod: pods.PodRow, verdict: PodVerdict, now: datetime.datetime) -> dict[str, Any]:
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
