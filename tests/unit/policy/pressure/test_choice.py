from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from swapwarden.api import state
from swapwarden.policy.pressure import choice, ranking, words
from swapwarden.policy.pressure.candidates import Candidate
from swapwarden.policy.pressure.choice import HoldReason, Situation
from swapwarden.policy.pressure.thresholds import Eviction

from tests.unit.objects import GI
from tests.unit.policy.pressure.samples import CANDIDATES, NODE, REPORTS, candidate, report

SITUATIONS = st.builds(
    Situation,
    fresh=st.booleans(),
    wide=st.booleans(),
    enforce=st.booleans(),
    settling=st.booleans(),
    kubelet=st.booleans(),
    limited=st.sampled_from([None, HoldReason.NODE_LIMIT, HoldReason.RATE_LIMIT]),
)

BOUNDS = st.builds(Eviction, daemon_sets=st.booleans(), unmanaged=st.booleans())


@given(CANDIDATES, REPORTS, st.sets(st.sampled_from([f"p{n}" for n in range(8)])), SITUATIONS, BOUNDS)
def test_no_pod_within_its_grant_is_ever_chosen_nor_one_that_must_stay(
    candidates: list[Candidate], found: state.PressureReport, blocked: set[str], situation: Situation, bounds: Eviction
) -> None:
    ranked = ranking.rank(candidates, found, NODE, bounds)
    chosen = choice.choose(ranked, NODE, blocked, situation)
    if isinstance(chosen, choice.NoVictim):
        assert words.WHY_HELD[chosen.hold]
        return
    assert situation.fresh
    assert not situation.wide
    assert not situation.kubelet
    assert isinstance(chosen, choice.Evict) == situation.enforce
    assert not (situation.enforce and (situation.settling or situation.limited))
    pod, usage = chosen.victim.pod, {one.pod: one.working_set_bytes + one.swap_bytes for one in found.pods}
    assert usage[pod.key] > pod.request + pod.swap
    assert pod.uid not in blocked
    assert pod.controller or bounds.unmanaged
    assert pod.controller != "DaemonSet" or bounds.daemon_sets
    assert pod.running
    assert pod.namespace != "kube-system"
    assert not any((pod.static, pod.critical, pod.kept, pod.ending))


def decided(
    candidates: list[Candidate], found: state.PressureReport, blocked: tuple[str, ...] = (), **fields: Any
) -> choice.Choice:
    situation = Situation(**{"fresh": True, "wide": False, **fields})
    return choice.choose(ranking.rank(candidates, found, NODE), NODE, blocked, situation)


def test_the_first_that_is_neither_spared_nor_blocked_is_chosen() -> None:
    pods = [candidate("a", critical=True), candidate("b"), candidate("c")]
    found = report(a=(900,), b=(800,), c=(700,))
    for blocked, name in (((), "b"), (("b",), "c")):
        chosen = decided(pods, found, blocked)
        assert chosen.victim is not None
        assert chosen.victim.pod.name == name
    assert decided(pods, found, ("b", "c")) == choice.NoVictim(HoldReason.BLOCKED)


def test_holds_in_their_order() -> None:
    pods, found = [candidate("a", ending=True), candidate("b")], report(a=(900,), b=(900,))
    assert decided(pods, found, fresh=False, kubelet=True).hold is HoldReason.STALE
    assert decided(pods, found, kubelet=True, wide=True).hold is HoldReason.KUBELET_EVICTING
    assert decided(pods, found, wide=True).hold is HoldReason.WIDESPREAD
    assert decided(pods, found).hold is HoldReason.POD_TERMINATING
    assert decided([candidate("a", request=GI)], found).hold is HoldReason.NO_CANDIDATE


def test_what_past_evictions_forbid() -> None:
    pods, found = [candidate("a"), candidate("b", request=GI)], report(a=(900,), b=(900,))
    limited: dict[str, Any] = {"enforce": True, "limited": HoldReason.NODE_LIMIT}
    assert isinstance(decided(pods, found, enforce=True), choice.Evict)
    assert decided(pods, found, enforce=True, settling=True, kubelet=True) == choice.NoVictim(HoldReason.SETTLING)
    assert decided(pods, found, **limited) == choice.NoVictim(HoldReason.NODE_LIMIT)
    assert decided(pods, found, wide=True, **limited) == choice.NoVictim(HoldReason.WIDESPREAD)
    # The node's pods need not be known.
    assert decided([], found, **limited) == choice.NoVictim(HoldReason.NODE_LIMIT)


def test_mode_observe_knows_no_evictions() -> None:
    chosen = decided([candidate("a")], report(a=(900,)), settling=True, limited=HoldReason.RATE_LIMIT)
    assert isinstance(chosen, choice.WouldEvict)


def test_a_pod_that_ends_and_frees_nothing_holds_nothing() -> None:
    """One that a finalizer keeps has no cgroup any more."""
    pods = [candidate("a", ending=True), candidate("b"), candidate("c", ending=True)]
    assert decided(pods, report(a=(1,), b=(900,))).hold == choice.OBSERVE


@pytest.mark.parametrize(
    ("pressed", "nodes", "wide"),
    [(2, 2, False), (3, 3, True), (3, 5, True), (3, 6, False), (55, 100, False), (56, 100, True)],
)
def test_pressure_of_most_nodes_is_widespread(pressed: int, nodes: int, wide: bool) -> None:
    assert choice.is_widespread(pressed, nodes) is wide
