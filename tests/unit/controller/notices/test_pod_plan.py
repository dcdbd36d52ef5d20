from __future__ import annotations

from typing import Any

import pytest
from swapwarden.api import names
from swapwarden.api.notices import Notice
from swapwarden.policy import plan
from swapwarden.policy.observed import pods, resources
from swapwarden.policy.profile import compiled
from swapwarden.policy.swap import requirements
from swapwarden.policy.verdict import pod_events

from tests.unit.objects import container, facts, make_override, pod, profile

NO_SWAP, KUBELET, WORKLOAD = names.Behavior.NO_SWAP, names.Behavior.KUBELET, names.Behavior.WORKLOAD_CONTROLLED


LIMITED = names.Behavior.LIMITED_SWAP


def found(row: pods.PodRow, behavior: names.Behavior, *, compatible: bool = True, **more: Any) -> list[Notice]:
    overcommit = 50 if row.swap_limit == "3Gi" else None
    spec = plan.plan_node(profile(behavior, overcommit_percent=overcommit, **more), facts(compatible=compatible), [row])
    return list(pod_events.notices_about([row], spec))


@pytest.mark.parametrize(
    ("row", "behavior", "compatible", "expected"),
    [
        (pod(container()), NO_SWAP, True, []),
        (pod(container(), swap_limit="1Mi"), NO_SWAP, True, ["ProfileNoSwap"]),
        (pod(container(swap_limit="1Mi")), NO_SWAP, True, ["ProfileNoSwap"]),
        (pod(container(swap_resource=2**20)), NO_SWAP, True, ["ProfileNoSwap"]),
        (pod(container(), policy="NoPreference"), NO_SWAP, True, []),
        (pod(container(), policy="Disabled"), KUBELET, True, []),
        (pod(container(), policy="Disabled"), KUBELET, False, ["NodeIncompatible"]),
        (pod(container()), KUBELET, False, []),
        (pod(container(), policy="Sometimes"), KUBELET, True, ["InvalidPolicy"]),
        (pod(container(), swap_limit="much"), KUBELET, True, ["InvalidPolicy"]),
        (pod(container(), policy="Disabled", terminal=True), KUBELET, False, []),
        (pod(container(), swap_limit="1Mi"), WORKLOAD, True, []),
        (pod(container(), swap_limit="5Gi"), WORKLOAD, True, ["Bounded"]),
        (pod(container(), swap_limit="3Gi"), WORKLOAD, True, ["OvercommitReached"]),
        (pod(container(request=2**20), swap_limit="1Mi"), LIMITED, True, []),
        (pod(container(), swap_limit="1Mi", qos=resources.Class.BEST_EFFORT), LIMITED, True, ["QoSNotEligible"]),
        (pod(container(), policy="NoPreference", qos=resources.Class.GUARANTEED), LIMITED, True, []),
        (pod(container(swap_limit="1Mi"), critical=True), LIMITED, True, ["CriticalPod"]),
    ],
)
def test_whom_it_concerns(row: pods.PodRow, behavior: names.Behavior, compatible: bool, expected: list[str]) -> None:
    assert [notice.reason for notice in found(row, behavior, compatible=compatible)] == expected


@pytest.mark.parametrize(
    ("row", "behavior", "compatible", "expected"),
    [
        (pod(container(), policy="Disabled"), KUBELET, True, ["Audit"]),
        (pod(container(), swap_limit="1Mi"), NO_SWAP, True, ["Audit"]),
        (pod(container(), swap_limit="5Gi"), WORKLOAD, True, ["Audit"]),
        (pod(container(), swap_limit="1Mi"), WORKLOAD, True, ["Audit"]),
        (pod(container(), policy="NoPreference"), NO_SWAP, True, []),
        (pod(container()), NO_SWAP, True, []),
        (pod(container(), policy="Sometimes"), KUBELET, True, ["InvalidPolicy"]),
        (pod(container(), policy="Disabled"), KUBELET, False, ["NodeIncompatible"]),
    ],
)
def test_under_audit_nothing_is_reported_as_done(
    row: pods.PodRow, behavior: names.Behavior, compatible: bool, expected: list[str]
) -> None:
    told = found(row, behavior, compatible=compatible, mode=names.Mode.AUDIT)
    assert [notice.reason for notice in told] == expected
    for notice in told:
        assert " gets " not in notice.message
        assert " gives " not in notice.message


def test_a_limit_has_no_effect_where_something_required_is_missing() -> None:
    rows = [pod(container(), swap_limit="1Mi"), pod(container(), uid="uid-2", policy="Required")]
    require = requirements.Require(encrypted=True)
    (notice,) = pod_events.notices_about(rows, plan.plan_node(profile(WORKLOAD, require=require), facts(), rows))
    assert (notice.reason, notice.regarding.uid) == ("RequirementUnmet", "uid-1")
    assert "node node-1 does not" in notice.message


def test_the_message_names_the_accepted_values() -> None:
    row = pod(container(), policy="disabled")
    (notice,) = pod_events.notices_about([row], plan.plan_node(profile(KUBELET), facts(), [row]))
    assert "swapwarden.dev/swap-policy takes NoPreference, Disabled" in notice.message


DISABLED, LIMIT = make_override(policy=names.Policy.DISABLED), make_override(swap_limit=2**20)


@pytest.mark.parametrize(
    ("row", "override", "expected"),
    [
        (pod(container()), DISABLED, []),
        (pod(container(), policy="NoPreference"), DISABLED, ["OverrideDisabled"]),
        (pod(container(), swap_limit="1Gi"), DISABLED, ["OverrideDisabled"]),
        (pod(container(), policy="NoPreference", defaulted=True), DISABLED, []),
        (pod(container(), policy="NoPreference", defaulted=True, swap_limit="1Gi"), DISABLED, ["OverrideDisabled"]),
        (pod(container(), policy="Disabled"), DISABLED, []),
        (pod(container()), LIMIT, []),
        (pod(container(), policy="NoPreference"), LIMIT, []),
        (pod(container(), swap_limit="1Gi"), LIMIT, ["OverrideLimit"]),
        (pod(container(), swap_limit="1Ki"), LIMIT, []),
    ],
)
def test_owners_whose_pods_an_override_concerns_get_a_notice(
    row: pods.PodRow, override: compiled.Override, expected: list[str]
) -> None:
    spec = plan.plan_node(profile(KUBELET, overrides=(override,)), facts(), [row])
    told = list(pod_events.notices_about([row], spec))
    assert [notice.reason for notice in told] == expected
    assert all("an override of profile test" in notice.message for notice in told)
