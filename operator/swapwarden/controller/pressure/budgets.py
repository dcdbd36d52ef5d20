"""Asks the API server to evict a pod, or whether it would: disruption budgets hold for both.

In k/k: pkg/registry/core/pod/storage/eviction.go.
"""

from __future__ import annotations

import urllib.parse
from collections.abc import Coroutine
from typing import Any, Final

import msgspec

from swapwarden.controller.term import Term
from swapwarden.kube import client, errors
from swapwarden.policy.pressure.candidates import Candidate
from swapwarden.policy.pressure.handling import EvictionAnswer
from swapwarden.telemetry import metrics

TIMEOUT: Final = 15.0
"""Seconds. The API server itself retries conflicts for 10 s."""
_BUDGET: Final = "DisruptionBudget"
_SEVERAL: Final = "more than one PodDisruptionBudget"
_ABSENT: Final = {404: EvictionAnswer.GONE, 409: EvictionAnswer.REPLACED}

ANSWERS = metrics.counter(
    "swapwarden_controller_eviction_dry_runs_total",
    "Answers of the API server to whether it would evict a pod of a node under memory pressure: Allowed, Budget,"
    " SeveralBudgets, Replaced, Gone or Error. Nothing is evicted by them.",
    labels=("answer",),
)


async def ask(api: client.Client, pod: Candidate) -> EvictionAnswer:
    """Ask by a dry run, which writes nothing and uses up no disruption. Any other refusal raises errors.KubeError."""
    try:
        answer = await _answer(_post(api, pod, pod.grace, {"dryRun": "All"}))
    except errors.KubeError:
        ANSWERS.inc("Error")
        raise
    ANSWERS.inc(answer)
    return answer


async def evict(api: client.Client, term: Term, pod: Candidate, grace: int) -> EvictionAnswer:
    """Evict a pod, which then has at most `grace` seconds to end.

    Any other refusal raises errors.KubeError; TermOver if the term ends first. Then the pod may be evicted or not.
    """
    return await _answer(term.write(_post(api, pod, grace, {})))


async def _post(api: client.Client, pod: Candidate, grace: int, params: dict[str, str]) -> bytes:
    namespace, name = (urllib.parse.quote(part, safe="") for part in (pod.namespace, pod.name))
    body = {
        "apiVersion": "policy/v1",
        "kind": "Eviction",
        "metadata": {"name": pod.name, "namespace": pod.namespace},
        "deleteOptions": {
            "preconditions": {"uid": pod.uid},
            # Never 0, which removes a pod before its containers have ended.
            "gracePeriodSeconds": max(1, min(pod.grace, grace)),
        },
    }
    path = f"/api/v1/namespaces/{namespace}/pods/{name}/eviction"
    return await api.post(path, msgspec.json.encode(body), params=params, timeout=TIMEOUT)


async def _answer(request: Coroutine[Any, Any, bytes]) -> EvictionAnswer:
    try:
        await request
    except errors.ApiError as error:
        # Overload has status 429 too, and says nothing of the pod.
        if error.status == 429 and _BUDGET in error.causes:
            return EvictionAnswer.BUDGET
        if error.status == 500 and _SEVERAL in error.message:
            return EvictionAnswer.SEVERAL_BUDGETS
        if error.status not in _ABSENT:
            raise
        return _ABSENT[error.status]
    return EvictionAnswer.ALLOWED
