"""What is said of pods that the policies pass by which stand in for the webhook."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from swapwarden.cli.kubectl.cluster import admissionpolicies, registration

from tests.unit.cli.kubectl.explained import pod

POLICY, LIMIT = "swapwarden.dev/swap-policy", "swapwarden.dev/swap-limit"
DEFAULT = {"swapwarden.dev/default-swap-policy": "Disabled"}
EXCLUDED = {"key": "kubernetes.io/metadata.name", "operator": "NotIn", "values": ["kube-system", "swapwarden-system"]}
HAS_DEFAULT = {"key": "swapwarden.dev/default-swap-policy", "operator": "In", "values": ["Disabled", "Required"]}
CONDITIONS = {
    "pod-completion": ["is-no-mirror-pod", "has-a-policy"],
    "pod-default": ["is-no-mirror-pod", "has-no-policy-of-its-own"],
    "pod-contradictions": ["is-no-mirror-pod", "has-a-key-of-our-domain"],
}
TEAM = {"matchLabels": {"team": "shop"}}


def policy(name: str, *conditions: str, **constraints: Any) -> admissionpolicies.WirePolicy:
    """One of the chart's, with other constraints; a part that is none of the three stands in for nothing."""
    own = [HAS_DEFAULT] if name == "pod-default" else []
    spec = {
        "matchConstraints": {"namespaceSelector": {"matchExpressions": [EXCLUDED, *own]}, **constraints},
        "matchConditions": [{"name": each} for each in (*CONDITIONS.get(name, ()), *conditions)],
    }
    return msgspec.convert({"metadata": {"name": f"swapwarden-{name}"}, "spec": spec}, admissionpolicies.WirePolicy)


def binding(name: str, **resources: Any) -> admissionpolicies.WireBinding:
    spec = {"policyName": f"swapwarden-{name}", **({"matchResources": resources} if resources else {})}
    return msgspec.convert({"spec": spec}, admissionpolicies.WireBinding)


PARTS = ("pod-completion", "pod-default", "pod-contradictions", "pod-without-effect")
BINDINGS = [binding(part) for part in PARTS]
INSTALLED = admissionpolicies.join([policy(part) for part in PARTS], BINDINGS)


@pytest.mark.parametrize("annotations", [{}, {POLICY: "Required"}, {LIMIT: "1Gi"}])
def test_what_is_installed_passes_by_no_pod(annotations: dict[str, str]) -> None:
    assert admissionpolicies.missed(INSTALLED, pod(annotations=annotations), DEFAULT) == ""
    assert admissionpolicies.missed((), pod(annotations=annotations), DEFAULT) == ""


def test_a_namespace_that_is_excluded() -> None:
    for known in (None, DEFAULT):
        text = admissionpolicies.missed(INSTALLED, pod(annotations={POLICY: "Avoid"}, namespace="kube-system"), known)
        assert text == (
            "the API server's policies are not asked about pods like it: the namespaceSelector does not match namespace"
            " kube-system (swapwarden-pod-completion, swapwarden-pod-contradictions); its policy places it nowhere, and"
            " contradictions in what it says are not noticed"
        )
    limited = admissionpolicies.missed(INSTALLED, pod(annotations={LIMIT: "1Gi"}, namespace="kube-system"), None)
    assert limited.endswith("(swapwarden-pod-contradictions); contradictions in what it says are not noticed")


def test_a_default_that_does_not_reach_it() -> None:
    inside = pod(namespace="kube-system")
    assert admissionpolicies.missed(INSTALLED, inside, DEFAULT).endswith(
        "does not match namespace kube-system (swapwarden-pod-default); the default Disabled of its namespace does not"
        " reach it"
    )
    assert admissionpolicies.missed(INSTALLED, inside, {"swapwarden.dev/default-swap-policy": "disabled"}) == ""
    given = {POLICY: "Disabled", "swapwarden.dev/policy-source": "namespace"}
    assert admissionpolicies.missed(INSTALLED, pod(annotations=given, namespace="kube-system"), DEFAULT) == ""


def test_an_object_selector() -> None:
    found = admissionpolicies.join([policy(part, objectSelector=TEAM) for part in PARTS], BINDINGS)
    text = admissionpolicies.missed(found, pod(), DEFAULT)
    assert "the objectSelector does not match its labels (swapwarden-pod-default)" in text
    assert admissionpolicies.missed(found, pod(labels={"team": "shop"}), DEFAULT) == ""


def test_static_pods_are_not_looked_at() -> None:
    mirror = pod(annotations={POLICY: "Disabled", "kubernetes.io/config.mirror": "x"})
    assert "it is a static pod" in admissionpolicies.missed(INSTALLED, mirror, None)


def test_bindings_select_too_and_one_of_them_is_enough() -> None:
    asking = pod(annotations={LIMIT: "1Gi"})
    part = "pod-contradictions"
    elsewhere = binding(part, namespaceSelector={"matchLabels": {"kubernetes.io/metadata.name": "other"}})
    found = admissionpolicies.join([policy(part)], [elsewhere])
    assert "does not match namespace batch" in admissionpolicies.missed(found, asking, None)
    found = admissionpolicies.join([policy(part)], [elsewhere, binding(part), binding("another")])
    assert admissionpolicies.missed(found, asking, None) == ""
    assert "no binding puts them in force" in admissionpolicies.missed(
        admissionpolicies.join([policy(part)], [binding("another")]), asking, None
    )


def test_expressions_of_others_are_not_judged() -> None:
    found = admissionpolicies.join([policy("pod-contradictions", "ours", "theirs")], BINDINGS)
    text = admissionpolicies.missed(found, pod(annotations={LIMIT: "1Gi"}), None)
    assert text == (
        "the API server's policies are asked about it only if ours, theirs holds (matchConditions of"
        " swapwarden-pod-contradictions); else contradictions in what it says are not noticed"
    )


def test_when_the_namespace_has_to_be_looked_at() -> None:
    assert not admissionpolicies.needs_namespace(INSTALLED, pod())
    assert admissionpolicies.needs_namespace(INSTALLED, pod(namespace="kube-system"))
    assert not admissionpolicies.needs_namespace(INSTALLED, pod(annotations={POLICY: "Avoid"}, namespace="kube-system"))
    opted = binding("pod-default", namespaceSelector={"matchLabels": {"swap": "on"}})
    found = admissionpolicies.join([policy("pod-default")], [opted])
    assert admissionpolicies.needs_namespace(found, pod())
    assert admissionpolicies.missed(found, pod(), {**DEFAULT, "swap": "on"}) == ""
    assert "does not match namespace batch" in admissionpolicies.missed(found, pod(), DEFAULT)


def test_whether_there_is_a_webhook() -> None:
    def named(*entries: str) -> registration.Registration:
        webhooks = [{"name": each} for each in entries]
        return msgspec.convert({"metadata": {"name": "a"}, "webhooks": webhooks}, registration.Registration)

    assert registration.is_there([named("others.example.org"), named("warnings.pods.swapwarden.dev")])
    assert registration.is_there([named("pods.swapwarden.dev")])
    assert not registration.is_there([named("others.example.org", "notpods.swapwarden.dev"), named()])
