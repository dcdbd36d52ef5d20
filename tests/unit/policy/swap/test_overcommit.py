from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from swapwarden.api import names, state
from swapwarden.policy import plan
from swapwarden.policy.observed import nodes, pods
from swapwarden.policy.profile import compiled
from swapwarden.policy.swap import limits

from tests.unit.objects import GI, MI, PAGE, container, facts, pod, profile

WORKLOAD = names.Behavior.WORKLOAD_CONTROLLED


def planned(found: list[pods.PodRow], percent: int | None, **fields: object) -> dict[str, tuple[str | None, str]]:
    """Each pod's value and reason on a node with 4 GiB of swap."""
    spec = plan.plan_node(profile(WORKLOAD, overcommit_percent=percent, **fields), facts(), found)
    return {key: (one.swap_max, str(state.reason_of(spec, one))) for key, one in spec.pods.items()}


def at(second: int) -> str:
    return f"2026-01-01T00:{second // 60:02}:{second % 60:02}Z"


@pytest.mark.parametrize(
    ("behavior", "percent", "reserved", "wanted"),
    [
        (WORKLOAD, None, None, None),
        (names.Behavior.LIMITED_SWAP, 100, None, None),
        (WORKLOAD, 100, None, 4 * GI),
        (WORKLOAD, 150, "1Gi", 4 * GI + GI // 2),
        (WORKLOAD, 1, None, 4 * GI // 100),
    ],
)
def test_the_budget(behavior: names.Behavior, percent: int | None, reserved: str | None, wanted: int | None) -> None:
    made = profile(behavior, overcommit_percent=percent, reserved=reserved)
    assert limits.overcommit_budget(made.swap, facts()) == wanted


def test_later_pods_get_the_rest_with_the_reason() -> None:
    found = [
        pod(container(), uid="third", swap_limit="2Gi", started=at(3)),
        pod(container(), uid="first", swap_limit="3Gi", started=at(1), created=at(1)),
        pod(container(), uid="second", swap_limit="2Gi", started=at(2), created=at(0)),
        pod(container(), uid="none", policy="Disabled", started=at(0)),
    ]
    assert planned(found, 100) == {
        "none": ("0", "PolicyDisabled"),
        "first": (str(3 * GI), "WorkloadLimit"),
        "second": (str(GI), "OvercommitReached"),
        "third": ("0", "OvercommitReached"),
    }
    assert planned(found, None)["third"] == (str(2 * GI), "WorkloadLimit")


def test_an_old_pod_that_starts_now_takes_nothing_from_running_ones() -> None:
    running = [pod(container(), uid="running", swap_limit="4Gi", started=at(9), created=at(9))]
    late = pod(container(), uid="late", swap_limit="1Gi", created=at(0))
    assert planned([late, *running], 100)["running"] == (str(4 * GI), "WorkloadLimit")
    assert planned([late, *running], 100)["late"] == ("0", "OvercommitReached")


def test_of_waiting_pods_the_older_is_first_then_the_smaller_uid() -> None:
    def order(*found: pods.PodRow) -> list[str]:
        return [row.key for row in sorted(found, key=limits.served_order)]

    waiting = [pod(uid="a", created=at(2)), pod(uid="b", created=at(1)), pod(uid="c", created=at(1))]
    assert order(*waiting, pod(uid="d", created=at(3), started=at(3))) == ["d", "b", "c", "a"]


def test_containers_have_no_more_than_their_pod() -> None:
    found = [
        pod(container(), uid="first", swap_limit="3Gi", started=at(1)),
        pod(container("big", swap_limit="2Gi"), container("small", swap_limit="1Mi"), uid="second", started=at(2)),
    ]
    spec = plan.plan_node(profile(WORKLOAD, overcommit_percent=100), facts(), found)
    assert spec.pods["second"].swap_max == str(GI)
    assert {name: one.swap_max for name, one in spec.pods["second"].containers.items()} == {
        "big": str(GI),
        "small": str(MI),
    }


PODS = st.lists(
    st.builds(
        lambda started, created, limit, app: (started, created, limit, app),
        st.one_of(st.just(""), st.integers(0, 3).map(at)),
        st.integers(0, 3).map(at),
        st.one_of(st.none(), st.integers(0, 3 * GI).map(str)),
        st.one_of(st.none(), st.integers(0, 3 * GI).map(str)),
    ),
    max_size=8,
).map(
    lambda all_: [
        pod(container(swap_limit=app), uid=f"uid-{at_}", started=started, created=created, swap_limit=limit)
        for at_, (started, created, limit, app) in enumerate(all_)
    ]
)


@given(PODS, st.integers(1, 300), st.integers(0, 100))
def test_the_sum_of_limits_is_never_more_than_it_may_be(found: list[pods.PodRow], percent: int, reserved: int) -> None:
    made: compiled.Profile = profile(WORKLOAD, overcommit_percent=percent, reserved=f"{reserved}%")
    node: nodes.NodeFacts = facts()
    spec = plan.plan_node(made, node, found)
    total = limits.overcommit_budget(made.swap, node)
    assert total is not None
    given_ = [int(one.swap_max or 0) for one in spec.pods.values()]
    assert sum(given_) <= total
    assert all(value % PAGE == 0 for value in given_)
    # Nothing is left unused while a pod lacks some.
    short = [one for one in spec.pods.values() if one.reason is names.Reason.OVERCOMMIT_REACHED]
    assert not short or total - sum(given_) < PAGE * len(found)


@given(PODS, st.integers(1, 300))
def test_a_new_pod_takes_nothing_from_earlier_ones(found: list[pods.PodRow], percent: int) -> None:
    before = planned(found, percent)
    came = pod(container(), uid="came", created=at(0), swap_limit="4Gi")
    after = planned([came, *found], percent)
    running = [row.key for row in found if row.started]
    assert {key: before[key] for key in running} == {key: after[key] for key in running}
