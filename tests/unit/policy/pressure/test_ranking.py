from __future__ import annotations

import random
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from swapwarden.api import state
from swapwarden.policy.pressure import ranking, words
from swapwarden.policy.pressure.candidates import Candidate
from swapwarden.policy.pressure.ranking import Spared
from swapwarden.policy.pressure.thresholds import Eviction

from tests.unit.objects import GI, MI
from tests.unit.policy.pressure.samples import CANDIDATES, NODE, REPORTS, candidate, report


def ordered(candidates: list[Candidate], found: state.PressureReport) -> list[str]:
    return [one.pod.name for one in ranking.rank(reversed(candidates), found, NODE)]


def test_without_swap_the_order_is_the_kubelets() -> None:
    """The case of the kubelet's own test of its whole order (k/k: TestOrderedByPriorityMemory)."""
    pods = {
        "p1": (-1, 0, 500),
        "p2": (-1, 0, 50),
        "p3": (1, 100, 600),
        "p4": (1, 100, 150),
        "p5": (-1, 1024, 800),
        "p6": (-1, 1024, 200),
        "p7": (1, 1024, 800),
        "p8": (1, 1024, 200),
    }
    candidates = [
        candidate(name, priority=priority, request=request * MI) for name, (priority, request, _) in pods.items()
    ]
    found = report(**{name: (memory,) for name, (_, _, memory) in pods.items()})
    assert ordered(candidates, found) == list(pods)


def test_among_equal_priorities_those_above_their_requests_come_first_the_largest_excess_before_others() -> None:
    """The case of the kubelet's test of memory relative to requests (k/k: TestOrderedByMemory)."""
    pods = {"b1": (0, 500), "b2": (0, 300), "b3": (100, 800), "b4": (100, 300), "g5": (1024, 800), "g6": (1024, 200)}
    candidates = [candidate(name, request=request * MI) for name, (request, _) in pods.items()]
    found = report(**{name: (memory,) for name, (_, memory) in pods.items()})
    assert ordered(candidates, found) == ["b3", "b1", "b2", "b4", "g5", "g6"]


def test_swap_counts_as_usage_and_accessible_swap_as_request() -> None:
    candidates = [
        candidate("within", request=100 * MI, swap=300 * MI),
        candidate("swaps", request=100 * MI, swap=100 * MI),
        candidate("grows", request=100 * MI),
    ]
    found = report(within=(200, 200), swaps=(50, 300), grows=(200,))
    # 0 within; 150 above; 100 above. By memory alone, the kubelet would take "within" or "grows", and "swaps" last.
    assert ordered(candidates, found) == ["swaps", "grows", "within"]


def test_priority_counts_before_the_excess_and_names_decide_last() -> None:
    candidates = [
        candidate("low", priority=-5, request=90 * MI),
        candidate("y", request=10 * MI),
        candidate("x", request=10 * MI),
        candidate("x0", namespace="b", name="w", request=10 * MI),
    ]
    found = report(low=(100,), y=(200,), x=(200,), x0=(200,))
    assert ordered(candidates, found) == ["low", "x", "y", "w"]


def test_pods_that_were_not_measured_come_first_and_are_never_chosen() -> None:
    ranked = ranking.rank([candidate("a"), candidate("b", priority=-1)], report(b=(900,)), NODE)
    assert [(one.pod.name, one.spared) for one in ranked] == [("a", Spared.NOT_MEASURED), ("b", None)]


@pytest.mark.parametrize(
    ("fields", "reason"),
    [
        ({"running": False}, Spared.NOT_RUNNING),
        ({"ending": True}, Spared.TERMINATING),
        ({"static": True}, Spared.STATIC),
        ({"critical": True}, Spared.CRITICAL),
        ({"namespace": "kube-system"}, Spared.NAMESPACE_EXCLUDED),
        ({"controller": "DaemonSet"}, Spared.DAEMON_SET),
        ({"controller": ""}, Spared.UNMANAGED),
        ({"kept": True}, Spared.KEPT_BY_OWNER),
        ({"request": 500 * MI, "swap": 400 * MI}, Spared.WITHIN_GRANT),
        ({"request": 500 * MI, "swap": 400 * MI - 1}, None),
        ({}, None),
    ],
)
def test_what_spares_a_pod(fields: dict[str, Any], reason: Spared | None) -> None:
    (one,) = ranking.rank([candidate("p", **fields)], report(p=(600, 300)), NODE)
    assert one.spared is reason
    if reason is not None:
        assert words.WHY_SPARED[reason]


@pytest.mark.parametrize(
    ("bounds", "owner", "other"),
    [(Eviction(daemon_sets=True), "DaemonSet", ""), (Eviction(unmanaged=True), "", "DaemonSet")],
    ids=["daemon sets", "unmanaged"],
)
def test_a_profile_may_have_a_kind_of_pods_evicted(bounds: Eviction, owner: str, other: str) -> None:
    pods = [
        candidate("it", controller=owner),
        candidate("within", controller=owner, request=GI),
        candidate("static", controller=owner, static=True),
        candidate("other", controller=other),
    ]
    found = report(it=(900,), within=(900,), static=(900,), other=(900,))
    spared = {one.pod.name: one.spared for one in ranking.rank(pods, found, NODE, bounds)}
    kept = Spared.DAEMON_SET if other else Spared.UNMANAGED
    assert spared == {"it": None, "within": Spared.WITHIN_GRANT, "static": Spared.STATIC, "other": kept}


def test_a_pod_below_a_hundredth_of_the_memory_is_spared() -> None:
    (small,) = ranking.rank([candidate("p")], report(p=(10, 71)), NODE)
    (large,) = ranking.rank([candidate("p")], report(p=(10, 72)), NODE)
    assert (small.spared, large.spared) == (Spared.SMALL, None)


@pytest.mark.parametrize(("swap", "refaults", "spared"), [(0, 0, True), (1, 0, False), (0, 1, False)])
def test_under_stall_only_pods_that_swap_are_chosen(swap: int, refaults: int, spared: bool) -> None:
    (one,) = ranking.rank([candidate("p")], report("Stall", p=(900, swap, refaults)), NODE)
    assert (one.spared is Spared.NOT_SWAPPING) is spared
    (other,) = ranking.rank([candidate("p")], report("Headroom", p=(900, swap, refaults)), NODE)
    assert other.spared is None


@given(CANDIDATES, REPORTS, st.randoms(use_true_random=False))
def test_the_order_is_total_and_does_not_depend_on_that_of_the_list(
    candidates: list[Candidate], found: state.PressureReport, shuffler: random.Random
) -> None:
    ranked = ranking.rank(candidates, found, NODE)
    assert len({one.order() for one in ranked}) == len(candidates)
    shuffled = list(candidates)
    shuffler.shuffle(shuffled)
    assert ranking.rank(shuffled, found, NODE) == ranked


SETTINGS = state.PressureSettings(
    state.HeadroomThresholds(below_bytes=400 * MI, clear_bytes=800 * MI, for_milliseconds=5000),
    state.StallThresholds(full_permille=400, over_milliseconds=10_000),
)


def test_the_arithmetic_in_words() -> None:
    (one,) = ranking.rank([candidate("p", request=512 * MI, swap=128 * MI)], report(p=(700, 212)), NODE)
    assert words.arithmetic(one) == "usage 912Mi (memory 700Mi + swap 212Mi) > request 512Mi + swap 128Mi; priority 0"
    (less,) = ranking.rank([candidate("p", request=GI)], report(p=(700, 212)), NODE)
    assert words.arithmetic(less) == "usage 912Mi (memory 700Mi + swap 212Mi) <= request 1024Mi + swap 0Mi; priority 0"


def test_a_small_excess_is_shown_in_bytes() -> None:
    (one,) = ranking.rank([candidate("p", request=MI - 1)], report(p=(1,)), NODE)
    assert words.arithmetic(one) == "usage 1048576 (memory 1048576 + swap 0) > request 1048575 + swap 0; priority 0"


@pytest.mark.parametrize(
    ("fields", "text"),
    [
        ({"headroom_bytes": 310 * MI}, "node headroom 310Mi < 400Mi"),
        ({"headroom_bytes": 500 * MI, "scope": "Pods"}, "pods headroom 500Mi < 800Mi"),
        ({"signal": "Stall", "stall_permille": 455}, "node stalled 45.5% > 40% of the time"),
        ({"signal": "Stall", "stall_permille": 250}, "node stalled 25% > 20% of the time"),
    ],
)
def test_the_signal_in_words(fields: dict[str, Any], text: str) -> None:
    found = state.PressureReport(**{"seq": 1, "signal": "Headroom", "scope": "Node", **fields})
    assert words.pressure(found, SETTINGS) == text
