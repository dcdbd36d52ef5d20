from __future__ import annotations

import pytest
from swapwarden.api import names
from swapwarden.controller import warnings
from swapwarden.policy import plan, pods

from tests.unit.policy.rows import container, facts, pod, profile

NO_SWAP, KUBELET, WORKLOAD = names.Behavior.NO_SWAP, names.Behavior.KUBELET, names.Behavior.WORKLOAD_CONTROLLED


def reasons(row: pods.PodRow, behavior: names.Behavior, *, compatible: bool = True) -> list[str]:
    overcommit = 50 if row.swap_limit == "3Gi" else None
    spec = plan.plan_node(profile(behavior, overcommit_percent=overcommit), facts(compatible=compatible), [row])
    return [warning.reason for warning in warnings.about([row], spec)]


@pytest.mark.parametrize(
    ("row", "behavior", "compatible", "expected"),
    [
        (pod(container()), NO_SWAP, True, []),
        (pod(container(), swap_limit="1Mi"), NO_SWAP, True, ["ProfileNoSwap"]),
        (pod(container(swap_limit="1Mi")), NO_SWAP, True, ["ProfileNoSwap"]),
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
    ],
)
def test_whom_it_concerns(row: pods.PodRow, behavior: names.Behavior, compatible: bool, expected: list[str]) -> None:
    assert reasons(row, behavior, compatible=compatible) == expected


def test_the_message_names_what_is_accepted() -> None:
    row = pod(container(), policy="disabled")
    (warning,) = warnings.about([row], plan.plan_node(profile(KUBELET), facts(), [row]))
    assert "swapwarden.dev/swap-policy takes NoPreference, Disabled" in warning.message
