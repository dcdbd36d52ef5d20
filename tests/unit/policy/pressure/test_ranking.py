from __future__ import annotations

import random
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from swapwarden.api import state
from swapwarden.policy.pressure import choice, ranking, words
from swapwarden.policy.pressure.candidates import Candidate
from swapwarden.policy.pressure.choice import HoldReason
from swapwarden.policy.pressure.ranking import Spared

from tests.unit.policy.rows import GI, MI

NODE = 8 * GI


def candidate(key: str, **fields: Any) -> Candidate:
    """A pod that nothing spares while it exceeds its request."""
    return Candidate(**{"key": key, "uid": key, "namespace": "a", "name": key, "controller": "ReplicaSet", **fields})


def report(signal: str = "Headroom", /, **usage: tuple[int, ...]) -> state.PressureReport:
    """Working set, swap in MiB, and refaults by pod."""
    found = []
    for name, (memory, *more) in usage.items():
        swap, refaults = [*more, 0, 0][:2]
        found.append(state.PressuredPod(name, memory * MI, swap * MI, refaults))
    return state.PressureReport(1, signal, "Node", pods=found)


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
        ({"evicted": True}, Spared.TERMINATING),
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


KINDS = st.sampled_from(["ReplicaSet", "Job", "DaemonSet", ""])
CANDIDATES = st.lists(
    st.builds(
        Candidate,
        key=st.sampled_from([f"p{n}" for n in range(8)]),
        uid=st.sampled_from([f"p{n}" for n in range(8)]),
        namespace=st.sampled_from(["a", "b", "kube-system"]),
        name=st.sampled_from(["x", "y"]),
        priority=st.integers(-2, 2),
        request=st.integers(0, 4).map(lambda n: n * 100 * MI),
        swap=st.integers(0, 4).map(lambda n: n * 100 * MI),
        running=st.booleans(),
        ending=st.booleans(),
        evicted=st.booleans(),
        static=st.booleans(),
        critical=st.booleans(),
        controller=KINDS,
        kept=st.booleans(),
    ),
    max_size=8,
    unique_by=lambda one: one.uid,
)
REPORTS = st.builds(
    state.PressureReport,
    seq=st.just(1),
    signal=st.sampled_from(["Headroom", "Stall"]),
    pods=st.lists(
        st.builds(
            state.PressuredPod,
            pod=st.sampled_from([f"p{n}" for n in range(8)]),
            working_set_bytes=st.integers(0, 9).map(lambda n: n * 100 * MI),
            swap_bytes=st.integers(0, 9).map(lambda n: n * 100 * MI),
            refaults=st.integers(0, 1),
        ),
        max_size=8,
        unique_by=lambda one: one.pod,
    ),
)


@given(CANDIDATES, REPORTS, st.randoms(use_true_random=False))
def test_the_order_is_total_and_does_not_depend_on_that_of_the_list(
    candidates: list[Candidate], found: state.PressureReport, shuffler: random.Random
) -> None:
    ranked = ranking.rank(candidates, found, NODE)
    assert len({one.order() for one in ranked}) == len(candidates)
    shuffled = list(candidates)
    shuffler.shuffle(shuffled)
    assert ranking.rank(shuffled, found, NODE) == ranked


@given(CANDIDATES, REPORTS, st.sets(st.sampled_from([f"p{n}" for n in range(8)])), st.booleans(), st.booleans())
def test_no_pod_within_its_grant_is_ever_chosen_nor_one_that_must_stay(
    candidates: list[Candidate], found: state.PressureReport, blocked: set[str], fresh: bool, wide: bool
) -> None:
    ranked = ranking.rank(candidates, found, NODE)
    chosen = choice.choose(ranked, NODE, blocked, fresh=fresh, wide=wide)
    assert (chosen.victim is not None) == (chosen.hold is HoldReason.OBSERVE)
    if chosen.victim is None:
        return
    assert fresh
    assert not wide
    pod, usage = chosen.victim.pod, {one.pod: one.working_set_bytes + one.swap_bytes for one in found.pods}
    assert usage[pod.key] > pod.request + pod.swap
    assert pod.uid not in blocked
    assert pod.controller not in {"", "DaemonSet"}
    assert pod.running
    assert pod.namespace != "kube-system"
    assert not any((pod.static, pod.critical, pod.kept, pod.ending, pod.evicted))


def decided(
    candidates: list[Candidate], found: state.PressureReport, blocked: tuple[str, ...] = (), **flags: bool
) -> choice.Choice:
    flags = {"fresh": True, "wide": False, **flags}
    return choice.choose(ranking.rank(candidates, found, NODE), NODE, blocked, **flags)


def test_the_first_that_is_neither_spared_nor_blocked_is_chosen() -> None:
    pods = [candidate("a", critical=True), candidate("b"), candidate("c")]
    found = report(a=(900,), b=(800,), c=(700,))
    for blocked, name in (((), "b"), (("b",), "c")):
        chosen = decided(pods, found, blocked)
        assert chosen.victim is not None
        assert chosen.victim.pod.name == name
    assert decided(pods, found, ("b", "c")) == choice.Choice(HoldReason.BLOCKED)


def test_holds_in_their_order() -> None:
    pods, found = [candidate("a", ending=True), candidate("b", evicted=True)], report(a=(900,), b=(900,))
    assert decided(pods, found, fresh=False, wide=True).hold is HoldReason.STALE
    assert decided(pods, found, wide=True).hold is HoldReason.WIDESPREAD
    assert decided(pods, found).hold is HoldReason.KUBELET_EVICTING
    assert decided(pods[:1], found).hold is HoldReason.POD_TERMINATING
    assert decided([candidate("a", request=GI)], found).hold is HoldReason.NO_CANDIDATE


def test_a_pod_that_ends_and_frees_nothing_holds_nothing() -> None:
    """One that a finalizer keeps has no cgroup any more."""
    pods = [candidate("a", ending=True), candidate("b"), candidate("c", ending=True)]
    assert decided(pods, report(a=(1,), b=(900,))).hold is HoldReason.OBSERVE


@pytest.mark.parametrize(
    ("pressed", "nodes", "wide"),
    [(2, 2, False), (3, 3, True), (3, 5, True), (3, 6, False), (55, 100, False), (56, 100, True)],
)
def test_pressure_of_most_nodes_is_widespread(pressed: int, nodes: int, wide: bool) -> None:
    assert choice.is_widespread(pressed, nodes) is wide


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
