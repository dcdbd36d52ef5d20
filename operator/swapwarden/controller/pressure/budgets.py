"""Asks the API server to evict a pod, or whether it would: disruption budgets hold for both.

In k/k: pkg/registry/core/pod/storage/eviction.go.
"""

from __future__ import annotations

import enum
import urllib.parse
from typing import Final

import msgspec

from swapwarden.controller.term import Term
from swapwarden.kube import client, errors
from swapwarden.policy.pressure.candidates import Candidate
from swapwarden.telemetry import metrics

TIMEOUT: Final = 15.0
"""Seconds. The API server itself retries conflicts for 10 s."""
_BUDGET: Final = "DisruptionBudget"
_SEVERAL: Final = "more than one PodDisruptionBudget"

ANSWERS = metrics.counter(
    "swapwarden_controller_eviction_dry_runs_total",
    "Answers of the API server to whether it would evict a pod of a node under memory pressure: Allowed, Budget,"
    " SeveralBudgets, Replaced, Gone or Error. Nothing is evicted by them.",
    labels=("answer",),
)


class EvictionAnswer(enum.StrEnum):
    """The API server's answer."""

    ALLOWED = "Allowed"
    BUDGET = "Budget"
    """A disruption budget forbids it now."""
    SEVERAL_BUDGETS = "SeveralBudgets"
    """The pod has several budgets: it can never be evicted."""
    REPLACED = "Replaced"
    """Another pod has the name now."""
    GONE = "Gone"


async def ask(api: client.Client, pod: Candidate) -> EvictionAnswer:
    """Ask by a dry run, which writes nothing and uses up no disruption. Any other refusal raises errors.KubeError."""
    try:
        await _post(api, pod, pod.grace, {"dryRun": "All"})
    except errors.ApiError as error:
        answer = _refusal(error)
        if answer is None:
            ANSWERS.inc("Error")
            raise
    except errors.KubeError:
        ANSWERS.inc("Error")
        raise
    else:
        answer = EvictionAnswer.ALLOWED
    ANSWERS.inc(answer)
    return answer


async def evict(api: client.Client, term: Term, pod: Candidate, grace: int) -> EvictionAnswer:
    """Evict a pod, which then has at most `grace` seconds to end.

    Any other refusal raises errors.KubeError; TermOver if the term ends first. Then the pod may be evicted or not.
    """
    try:
        await term.write(_post(api, pod, grace, {}))
    except errors.ApiError as error:
        answer = _refusal(error)
        if answer is None:
            raise
        return answer
    return EvictionAnswer.ALLOWED


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


def _refusal(error: errors.ApiError) -> EvictionAnswer | None:
    """Return the answer in a refusal; None if it is about something else, as overload (429) is."""
    if error.status == 429 and _BUDGET in error.causes:
        return EvictionAnswer.BUDGET
    if error.status == 500 and _SEVERAL in error.message:
        return EvictionAnswer.SEVERAL_BUDGETS
    return {404: EvictionAnswer.GONE, 409: EvictionAnswer.REPLACED}.get(error.status)
