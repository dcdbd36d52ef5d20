"""What is said of pods that the webhook is not asked about."""

from __future__ import annotations

import pathlib
from typing import Any

import msgspec
import pytest
import yaml
from swapwarden.cli.kubectl.cluster import registration

from tests.unit.cli.kubectl.explained import pod

POLICY, LIMIT = "swapwarden.dev/swap-policy", "swapwarden.dev/swap-limit"
MANIFEST = pathlib.Path(__file__).parents[5] / "deploy/manifests/webhook-registration.yaml"
SHIPPED = yaml.safe_load(MANIFEST.read_text(encoding="utf-8"))
DEFAULT = {"swapwarden.dev/default-swap-policy": "Disabled"}
TEAM = {"matchExpressions": [{"key": "team", "operator": "In", "values": ["shop", "bank"]}]}


def registered(**fields: Any) -> registration.Registration:
    """What is installed, each of its entries with these fields."""
    webhooks = [{**one, **fields} for one in SHIPPED["webhooks"]]
    return msgspec.convert({**SHIPPED, "webhooks": webhooks}, registration.Registration)


def missed(space: dict[str, str] | None = None, selector: dict[str, Any] | None = None, **fields: Any) -> str:
    found = registered(objectSelector=selector) if selector else registered()
    return registration.missed([found], pod(**fields), space)


@pytest.mark.parametrize("annotations", [{}, {POLICY: "Required"}, {LIMIT: "1Gi"}])
def test_what_is_installed_hides_no_pod(annotations: dict[str, str]) -> None:
    assert missed(DEFAULT, annotations=annotations) == ""
    assert registration.missed([], pod(annotations=annotations), DEFAULT) == ""


@pytest.mark.parametrize("annotations", [{POLICY: "Required"}, {LIMIT: "1Gi"}])
def test_a_policy_of_its_own(annotations: dict[str, str]) -> None:
    text = missed(selector=TEAM, annotations=annotations)
    assert text == (
        "the webhook is not asked about pods like it: the objectSelector does not match its labels (swapwarden,"
        " pods.swapwarden.dev); its policy places it nowhere, and contradictions in what it says are not noticed"
    )
    assert missed(selector=TEAM, annotations=annotations, labels={"team": "bank"}) == ""


def test_a_default_of_its_namespace() -> None:
    text = missed(DEFAULT, TEAM)
    assert "(swapwarden, disabled.default.pods.swapwarden.dev); the default Disabled of its namespace does not" in text
    assert missed(DEFAULT, TEAM, labels={"team": "shop"}) == ""
    for labels in (None, {}, {"swapwarden.dev/default-swap-policy": "disabled"}):
        assert missed(labels, TEAM) == ""
    # It came by the webhook, whatever that is asked about now.
    given = {POLICY: "Disabled", "swapwarden.dev/policy-source": "namespace"}
    assert missed(DEFAULT, TEAM, annotations=given) == ""


def test_a_namespace_that_must_start_without_the_webhook() -> None:
    for labels in (None, {"a": "b"}):
        text = missed(labels, annotations={POLICY: "Avoid"}, namespace="kube-system")
        assert "the namespaceSelector does not match namespace kube-system" in text


def test_labels_of_a_namespace_that_are_not_known_exclude_nothing() -> None:
    found = registered(namespaceSelector={"matchLabels": {"swap": "on"}})
    asking = pod(annotations={POLICY: "Avoid"})
    assert registration.missed([found], asking, None) == ""
    assert registration.missed([found], asking, {"swap": "on"}) == ""
    assert "the namespaceSelector does not match namespace batch" in registration.missed([found], asking, {})


def test_static_pods_are_not_sent() -> None:
    text = missed(annotations={POLICY: "Disabled", "kubernetes.io/config.mirror": "x"})
    assert "it is a static pod" in text


def test_expressions_of_others_are_not_judged() -> None:
    found = registered(matchConditions=[{"name": "is-no-mirror-pod"}, {"name": "ours"}, {"name": "theirs"}])
    text = registration.missed([found], pod(annotations={POLICY: "Avoid"}), None)
    assert text.startswith("the webhook is asked about it only if ours, theirs holds (matchConditions of swapwarden,")


def test_when_the_namespace_has_to_be_looked_at() -> None:
    assert registration.needs_namespace([registered(objectSelector=TEAM)], pod())
    assert not registration.needs_namespace([registered(objectSelector=TEAM)], pod(labels={"team": "shop"}))
    assert not registration.needs_namespace([registered(objectSelector=TEAM)], pod(annotations={POLICY: "Avoid"}))
    assert not registration.needs_namespace([registered()], pod())
    assert registration.needs_namespace([registered()], pod(namespace="kube-system"))
    by_label = registered(namespaceSelector={"matchLabels": {"swap": "on"}})
    assert registration.needs_namespace([by_label], pod())
    assert registration.needs_namespace([by_label], pod(annotations={POLICY: "Avoid"}))
