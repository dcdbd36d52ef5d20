from __future__ import annotations

from typing import Any

import pytest
from swapwarden.api import names, state
from swapwarden.policy import plan
from swapwarden.policy.memory.settings import MemoryQoS
from swapwarden.policy.node import observations
from swapwarden.policy.node.observations import NodeProblem
from swapwarden.policy.node.settings import MIN_FREE, NodeOptions
from swapwarden.policy.observed import resources
from swapwarden.policy.swap import requirements
from swapwarden.policy.swap.settings import SwapOptions

from tests.unit.objects import GI, container, facts, pod, profile

ENCRYPTED = requirements.Require(encrypted=True)
TOO_MUCH = ((MIN_FREE, "99999999"), ("vm.swappiness", "60"))
CLEAR = state.SwapDevice("/dev/sda2", "partition", GI)


def observed(
    required: requirements.Require | None = None, kernel: tuple[tuple[str, str], ...] = (), **found: Any
) -> dict[NodeProblem, str]:
    return dict(observations.observe(NodeOptions(kernel=kernel), SwapOptions(require=required), facts(**found)))


def test_a_node_without_a_problem() -> None:
    safe = state.SwapDevice("/dev/zram0", "partition", GI, encrypted=True)
    assert observed(ENCRYPTED, (("vm.swappiness", "60"),), devices=(safe,)) == {}


def test_what_the_profile_requires_and_the_node_lacks() -> None:
    (message,) = observed(ENCRYPTED, devices=(CLEAR,)).values()
    assert message.startswith("encrypted: /dev/sda2: not known to be encrypted")


def test_settings_that_are_unsafe_for_the_node() -> None:
    found = observed(kernel=TOO_MUCH)
    assert list(found) == [NodeProblem.SETTINGS_REFUSED]
    assert found[NodeProblem.SETTINGS_REFUSED].startswith("vm.min_free_kbytes: 99999999 KiB")


@pytest.mark.parametrize(("counted", "swap"), [(0, GI), (2 * GI, GI), (GI, 0)])
def test_a_kubelet_that_counted_other_swap(counted: int, swap: int) -> None:
    found = observed(swap_bytes=swap, kubelet_swap_bytes=counted)
    assert list(found) == [NodeProblem.KUBELET_RESTART_NEEDED]
    assert found[NodeProblem.KUBELET_RESTART_NEEDED].endswith("; restart the kubelet")


def test_what_no_agent_has_reported_is_no_problem_yet() -> None:
    assert observed(ENCRYPTED, TOO_MUCH, reported=False, kubelet_swap_bytes=1) == {}


def soft(*requests: int, system_low: str = "5%", size: int = 8 * GI) -> dict[NodeProblem, str]:
    """Return the problems of a node with Burstable pods of such requests, all of them protected."""
    memory = MemoryQoS(names.ReservationPolicy.SOFT, system_low=system_low)
    asked, node = profile(names.Behavior.NO_SWAP, memory_qos=memory), facts(memory_bytes=size)
    pods = [pod(container(request=each), uid=f"uid-{number}") for number, each in enumerate(requests)]
    return dict(observations.observe(NodeOptions(), SwapOptions(), node, plan.plan_node(asked, node, pods)))


def test_pods_that_ask_for_more_protection_than_the_node_has() -> None:
    assert soft(4 * GI, 3 * GI) == {}
    assert list(soft(4 * GI, 3 * GI, GI)) == [NodeProblem.PROTECTION_OVERCOMMITTED]
    assert soft() == {}


@pytest.mark.parametrize("recursive", [True, False])
def test_guaranteed_pods_that_are_protected_twice_over_count_once(*, recursive: bool) -> None:
    """Without memory_recursiveprot, TieredReservation gives them memory.low beside memory.min."""
    tiered = profile(names.Behavior.NO_SWAP, memory_qos=MemoryQoS(names.ReservationPolicy.TIERED_RESERVATION))
    node = facts(recursive_protection=recursive)

    def problems(request: int) -> list[NodeProblem]:
        guaranteed = pod(container(request=request, limit=request), qos=resources.Class.GUARANTEED)
        planned = plan.plan_node(tiered, node, [guaranteed])
        return [each.problem for each in observations.observe(NodeOptions(), SwapOptions(), node, planned)]

    assert problems(5 * GI) == []
    assert problems(8 * GI) == [NodeProblem.PROTECTION_OVERCOMMITTED]


def test_a_node_whose_daemons_have_all_protection() -> None:
    assert list(soft(GI, system_low="8Gi")) == [NodeProblem.PROTECTION_OVERCOMMITTED]
    assert soft(system_low="8Gi") == {}
    assert soft(size=1) == {}
