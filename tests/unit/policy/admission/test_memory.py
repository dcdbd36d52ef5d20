"""Annotations about memory, for the webhook; tests/integration/webhook/test_memory.py has the policies' answers."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from swapwarden.api import names
from swapwarden.policy import plan
from swapwarden.policy.admission import pod_annotations
from swapwarden.policy.memory.settings import MemoryQoS
from swapwarden.policy.observed import pods
from swapwarden.webhook import review

from tests.contract import pod_memory
from tests.unit import objects
from tests.unit.webhook import reviews


def admit(case: pod_memory.Case, **more: str) -> review.Response:
    body = reviews.pod({**case.annotations, **more})
    return review.answer(review.decode(reviews.raw({**body, "spec": case.spec})))


@pytest.mark.parametrize("case", pod_memory.ACCEPTED)
def test_accepted(case: pod_memory.Case) -> None:
    response = admit(case)
    assert (response.allowed, response.status, response.warnings, response.patch) == (True, None, [], None)


@pytest.mark.parametrize("case", pod_memory.REFUSED)
def test_each_mistake_is_named_with_key_value_and_reason(case: pod_memory.Case) -> None:
    response = admit(case)
    assert response.status is not None
    causes: dict[str, str] = {}
    for cause in response.status.details.causes:
        causes[cause.field] = causes.get(cause.field, "") + cause.message
    assert causes.keys() == {f"metadata.annotations[{key}]" for key in case.said}
    for key, reason in case.said.items():
        message = causes[f"metadata.annotations[{key}]"]
        assert reason in message
        value = key.rpartition("/")[2] if reason == pod_annotations.NO_CONTAINER else case.annotations[key]
        assert f"alue: {pod_annotations.quoted(value)}: " in message


@pytest.mark.parametrize("case", pod_memory.WITHOUT_EFFECT)
def test_a_value_without_effect_gets_a_warning(case: pod_memory.Case) -> None:
    response = admit(case)
    assert response.allowed
    assert sorted(response.warnings) == sorted(
        f"metadata.annotations[{key}]: {reason}" for key, reason in case.said.items()
    )


@pytest.mark.parametrize(
    ("mode", "policy", "warned"),
    [
        ("Startup", "Disabled", True),
        ("Continuous", "Disabled", True),
        ("Off", "Disabled", False),
        ("Startup", "NoPreference", False),
    ],
)
def test_idle_memory_of_a_pod_without_swap_stays(mode: str, policy: str, *, warned: bool) -> None:
    case = pod_memory.Case({pod_memory.RECLAIM: mode}, pod_memory.BARE)
    response = admit(case, **{names.POLICY_ANNOTATION: policy})
    warning = f"metadata.annotations[{pod_memory.RECLAIM}]: {pod_annotations.RECLAIMS_NOTHING}"
    assert response.allowed
    assert response.warnings == ([warning] if warned else [])


@pytest.mark.parametrize(("value", "meant"), [("90", "90%"), ("0.9", "90%"), ("disable", "Disabled")])
def test_a_share_that_was_meant(value: str, meant: str) -> None:
    response = admit(pod_memory.Case({pod_memory.THROTTLING: value}, pod_memory.ONE))
    assert response.status is not None
    assert f'did you mean "{meant}"?' in response.status.message


def test_a_limit_of_memory_is_no_swap_limit() -> None:
    amounts = {pod_memory.LOW: "256Mi", pod_memory.HIGH: "512Mi", pod_memory.APP_HIGH: "512Mi"}
    case = pod_memory.Case(amounts, pod_memory.ONE)
    assert admit(case, **{names.POLICY_ANNOTATION: "Disabled"}).allowed
    assert admit(case, **{names.LIMIT_ANNOTATION: "1Mi"}).allowed


@pytest.mark.parametrize(
    "more",
    [
        {"resources": {"requests": {"memory": "2Gi"}, "limits": {"memory": "4Gi"}}},
        {"overhead": {"memory": "2Gi"}},
    ],
)
def test_what_the_pod_has_beside_its_containers_counts(more: dict[str, Any]) -> None:
    asked = {pod_memory.LOW: "2Gi", pod_memory.HIGH: "2560Mi"}
    assert not admit(pod_memory.Case(asked, pod_memory.ONE)).allowed
    assert admit(pod_memory.Case(asked, {**pod_memory.ONE, **more})).allowed


@pytest.mark.parametrize(
    "container",
    [
        {"name": "app"},
        {"name": "app", "resources": {}},
        {"name": "app", "resources": {"requests": {}, "limits": {}}},
    ],
)
def test_a_container_without_resources_requests_nothing(container: dict[str, Any]) -> None:
    case = pod_memory.Case({pod_memory.RESERVATION: "Soft"}, {"containers": [container]})
    assert admit(case).warnings == [f"metadata.annotations[{pod_memory.RESERVATION}]: {pod_annotations.NO_REQUEST}"]


def test_a_pod_is_refused_for_what_it_has_in_no_order_and_the_plan_protects_what_it_requests() -> None:
    init = (pod_memory.container("setup", "150Mi"), pod_memory.container("side", "50Mi", restartPolicy="Always"))
    spec = pod_memory.spec(pod_memory.container(request="100Mi"), init=init)
    assert admit(pod_memory.Case({pod_memory.LOW: "200Mi"}, spec)).allowed
    assert not admit(pod_memory.Case({pod_memory.LOW: "201Mi"}, spec)).allowed
    body = {**reviews.pod({pod_memory.LOW: "200Mi"}), "spec": spec}
    row = pods.project(msgspec.convert(body, pods.WirePod))
    planned = plan.plan_node(objects.profile(memory_qos=MemoryQoS()), objects.facts(), [row]).pods[row.key]
    assert planned.memory_low == str(150 * objects.MI)
