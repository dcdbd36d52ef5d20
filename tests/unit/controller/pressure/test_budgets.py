"""Answers that a real API server gives too rarely; tests/integration/controller/test_pressure.py has the others."""

from __future__ import annotations

import asyncio
from typing import Any, cast

import pytest
from swapwarden.controller.pressure import budgets
from swapwarden.kube import client, errors
from swapwarden.policy.pressure.candidates import Candidate

POD = Candidate("uid", "uid", "a", "p")


class Api:
    """In place of the client: refuses with this error."""

    def __init__(self, error: errors.KubeError) -> None:
        self._error = error

    async def post(self, *_: Any, **__: Any) -> bytes:
        raise self._error


def asked(error: errors.KubeError) -> str:
    return asyncio.run(budgets.ask(cast("client.Client", Api(error)), POD))


@pytest.mark.parametrize(
    "error",
    [
        errors.ApiError(429, "TooManyRequests", "too many requests", 7.0),
        errors.ApiError(403, "Forbidden", "cannot create pods/eviction"),
        errors.ApiError(500, "InternalError", "etcd is away"),
        errors.Unreachable("no answer"),
    ],
    ids=["overload", "no right", "fault", "away"],
)
def test_what_says_nothing_of_the_pod_is_no_answer_about_it(error: errors.KubeError) -> None:
    with pytest.raises(type(error)) as raised:
        asked(error)
    assert raised.value is error


def test_a_budget_differs_from_overload_by_the_cause() -> None:
    error = errors.ApiError(429, "TooManyRequests", "...", causes=frozenset({"DisruptionBudget"}))
    assert asked(error) == "Budget"
