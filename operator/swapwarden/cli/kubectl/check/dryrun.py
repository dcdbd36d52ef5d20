"""Whether admission works: the API server is asked for a pod in a dry run, which keeps nothing.

Only API servers know whether they reach the webhook and accept its certificate, and only a request for a pod shows it.
"""

from __future__ import annotations

import re
from typing import Final

import msgspec

from swapwarden.api import decoding, names
from swapwarden.cli.kubectl.check import installation
from swapwarden.cli.kubectl.check.catalogue import Check, ClusterProblem, Severity, problem
from swapwarden.cli.kubectl.cluster import session
from swapwarden.policy.observed.pods import WirePod

_FAILED: Final = re.compile(r'failed calling webhook "([^"]{1,253})": (.*)', re.DOTALL)
_TRUST: Final = re.compile(r"x509|tls:|certificate")
_CONTAINER: Final = {
    "name": "check",
    "image": "registry.k8s.io/pause:3.10",
    "resources": {"requests": {"cpu": "1m", "memory": "1Mi"}, "limits": {"cpu": "1m", "memory": "2Mi"}},
    "securityContext": {"allowPrivilegeEscalation": False, "capabilities": {"drop": ["ALL"]}},
}
POD: Final = {
    "apiVersion": "v1",
    "kind": "Pod",
    "metadata": {"generateName": "swap-check-", "annotations": {names.POLICY_ANNOTATION: names.Policy.REQUIRED.value}},
    "spec": {
        "containers": [_CONTAINER],
        # As the strictest of the Pod Security Standards wants it.
        "securityContext": {"runAsNonRoot": True, "runAsUser": 65532, "seccompProfile": {"type": "RuntimeDefault"}},
    },
}
"""Admission must give it a node selector."""


Trial = ClusterProblem | str | None
"""The problem, why there is no result (another webhook or policy refused the pod), or None if admission works."""


async def attempt(asked: session.Session, namespace: str) -> Trial:
    """Ask for the pod in a namespace: if that has no answer in time, the other requests may still have one."""
    path = asked.namespaced("api/v1", "pods", namespace)
    try:
        answer = await asked.dry_run(path, POD)
    except session.ApiUnreachableError as error:
        return f"the API server does not answer for the pod of the dry run: {error.message}"
    except session.CommandError as error:
        return refused(namespace, error.message)
    return admitted(namespace, answer)


def admitted(namespace: str, answer: bytes) -> Trial:
    """Return the result if the pod would have been created like this."""
    try:
        found = decoding.decode(answer, WirePod)
    except msgspec.MsgspecError as error:
        return f"the API server's answer is invalid: {error}"
    if (found.spec.node_selector or {}).get(names.SWAP_LABEL) == "true":
        return None
    return _problem(
        "NotCompleted",
        namespace,
        f"a new pod with the policy {names.Policy.REQUIRED} is not placed: admission is not called for it,"
        " or does not answer and its failurePolicy is Ignore",
        severity=Severity.WARNING,
        remedy="try another namespace with -n, and without -n see the problems of admission and of the webhook;"
        " docs/admission.md lists the pods that admission leaves alone",
    )


def refused(namespace: str, message: str) -> Trial:
    """Return the result if the pod would not have been created, by the API server's message."""
    failed = _FAILED.search(message)
    if failed is None or not installation.is_ours(failed[1]):
        return f"the pod of the dry run is refused before or after: {message}"
    if _TRUST.search(failed[2]):
        remedy = (
            "caBundle must hold the authority of the webhook's certificate, and the certificate must name its Service:"
            " see the log of the controller, which makes and renews both, or cert-manager's (docs/admission.md)"
        )
        return _problem("Untrusted", namespace, _refusal(failed[2]), remedy=remedy)
    return _problem("NoAnswer", namespace, _refusal(failed[2]))


def _refusal(why: str) -> str:
    return f"a new pod with a policy is refused, as API servers cannot ask the webhook: {why}"


def _problem(
    reason: str, namespace: str, message: str, *, severity: Severity | None = None, remedy: str = ""
) -> ClusterProblem:
    here = f"namespace/{namespace}"
    return problem(Check.ADMISSION_FAILS, here, message, reason=reason, severity=severity, remedy=remedy)
