"""Conclusions from the API server's answer to the pod of a dry run."""

from __future__ import annotations

import json
from typing import Any, cast

import pytest
from swapwarden.cli.kubectl.check import installation
from swapwarden.cli.kubectl.check.catalogue import ClusterProblem
from swapwarden.cli.kubectl.cluster import session

UNTRUSTED = 'failed to call webhook: Post "https://a.b.svc:443/pods": tls: failed to verify certificate: x509: unknown'


def refused(why: str, name: str = "pods.swapwarden.dev") -> str:
    return f'POST /api/v1/namespaces/shop/pods: Internal error occurred: failed calling webhook "{name}": {why} (500)'


@pytest.mark.parametrize(
    ("message", "reason"),
    [
        (refused(UNTRUSTED), "Untrusted"),
        (
            refused("x509: certificate is valid for a.svc, not b.svc", "required.default.pods.swapwarden.dev"),
            "Untrusted",
        ),
        (refused('Post "https://a.b.svc:443/pods?timeout=5s": context deadline exceeded'), "NoAnswer"),
        (refused('service "swapwarden-webhook" not found'), "NoAnswer"),
    ],
)
def test_a_webhook_that_cannot_be_asked(message: str, reason: str) -> None:
    problem = installation.refused("shop", message)
    assert isinstance(problem, ClusterProblem)
    assert (problem.severity, problem.check, problem.reason) == ("Error", "AdmissionFails", reason)
    assert problem.object == "namespace/shop"
    assert problem.message.endswith(message.rpartition('": ')[2] if reason != "Untrusted" else "(500)")


@pytest.mark.parametrize(
    "message",
    [
        'pods is forbidden: User "a" cannot create resource "pods" (403)',
        'pods "swap-check-x" is forbidden: exceeded quota: small (403)',
        refused(UNTRUSTED, "pods.example.org"),
        refused(UNTRUSTED, "notpods.swapwarden.dev"),
    ],
)
def test_refusals_of_others_prove_nothing(message: str) -> None:
    untried = installation.refused("shop", message)
    assert isinstance(untried, str)
    assert untried.endswith(message)


@pytest.mark.parametrize(
    ("spec", "reason"),
    [
        ({"nodeSelector": {"node.swapwarden.dev/swap": "true"}}, None),
        ({"nodeSelector": {"node.swapwarden.dev/swap": "false"}}, "NotCompleted"),
        ({}, "NotCompleted"),
    ],
)
def test_a_pod_that_would_be_created(spec: dict[str, Any], reason: str | None) -> None:
    problem = installation.admitted("shop", json.dumps({"metadata": {"name": "swap-check-x"}, "spec": spec}).encode())
    assert (problem.reason if isinstance(problem, ClusterProblem) else problem) == reason


def test_an_answer_that_is_none() -> None:
    assert "invalid" in str(installation.admitted("shop", b"<html>"))


class Slow:
    """An API server that answers all but this."""

    def namespaced(self, group: str, plural: str, namespace: str) -> str:
        return f"/{group}/namespaces/{namespace}/{plural}"

    async def dry_run(self, path: str, *_: object) -> bytes:
        raise session.ApiUnreachableError(f"no answer from {path} within 30 s")


async def test_admission_that_takes_too_long_hides_nothing_else() -> None:
    untried = await installation.try_admission(cast("session.Session", Slow()), "shop")
    assert isinstance(untried, str)
    assert untried.endswith("no answer from /api/v1/namespaces/shop/pods within 30 s")
