from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from swapwarden.api import names, state
from swapwarden.policy import plan
from swapwarden.policy.memory import protection, settings
from swapwarden.policy.memory.protection import Effect, InEffect, ProtectedCgroup, Share
from swapwarden.policy.observed.resources import Class

from tests.unit.objects import GI, MI, PAGE, container, facts, pod, profile

SOFT = settings.MemoryQoS(reservation=names.ReservationPolicy.SOFT, system_low="0")
TIERED = settings.MemoryQoS(reservation=names.ReservationPolicy.TIERED_RESERVATION, system_low="0")
sizes = st.integers(0, 2**40)


def along(*settings: int) -> Share:
    named = zip(("top", "middle", "leaf"), settings, strict=False)
    return protection.along([ProtectedCgroup(name, setting) for name, setting in named])


# The kernel's rules, with a victim of 120 MiB beside a hog of 420


def test_all_is_in_effect_if_each_cgroup_above_has_as_much() -> None:
    assert along(120, 120, 120) == Share(120)


@pytest.mark.parametrize(
    ("values", "cut_by"),
    [((0, 120, 120), "top"), ((120, 0, 120), "middle"), ((80, 60, 120), "top"), ((120, 60, 120), "middle")],
)
def test_the_highest_ancestor_with_less_is_named(values: tuple[int, ...], cut_by: str) -> None:
    assert along(*values) == Share(min(values), cut_by)


def test_siblings_share_what_their_parent_has_by_their_claims() -> None:
    levels = [ProtectedCgroup("top", 100), ProtectedCgroup("middle", 120, siblings=80), ProtectedCgroup("leaf", 120)]
    assert protection.along(levels) == Share(60, "top")


@given(st.lists(st.builds(ProtectedCgroup, st.just("x"), sizes, sizes), min_size=1, max_size=4))
def test_protection_never_grows_downwards(levels: list[ProtectedCgroup]) -> None:
    found = [protection.along(levels[: end + 1]).amount for end in range(len(levels))]
    assert found == sorted(found, reverse=True)
    assert all(each >= 0 for each in found)


@given(st.lists(st.builds(ProtectedCgroup, st.just("x"), sizes, sizes), min_size=1, max_size=4))
def test_somebody_is_named_if_and_only_if_less_is_in_effect_than_claimed(levels: list[ProtectedCgroup]) -> None:
    share = protection.along(levels)
    assert bool(share.cut_by) is (share.amount < levels[-1].setting)


# Plans


def planned(*pods: Any, memory: settings.MemoryQoS = SOFT, **fields: Any) -> state.StateSpec:
    return plan.plan_node(profile(names.Behavior.LIMITED_SWAP, memory_qos=memory, **fields), facts(), pods)


def burstable(uid: str, request: int) -> Any:
    return pod(container(request=request, limit=2 * request), uid=uid)


def guaranteed(uid: str, request: int) -> Any:
    return pod(container(request=request, limit=request), uid=uid, qos=Class.GUARANTEED)


def effect(
    spec: state.StateSpec, key: str = "uid-1", own: Class = Class.BURSTABLE, *, hard: bool = False, **status: Any
) -> InEffect | None:
    made: dict[str, Any] = {"observed_generation": 1, **status}
    return protection.in_effect(state.NodeSwapState(spec=spec, status=state.StateStatus(**made)), key, own, hard=hard)


def low(of: str, observed: int) -> state.Violation:
    return state.Violation(of, "WriteFailed", setting="memoryLow", observed=str(observed))


def test_a_plan_that_is_written_is_in_effect_for_both_classes() -> None:
    spec = planned(burstable("uid-1", GI), guaranteed("uid-2", GI), burstable("uid-3", 2 * GI))
    assert effect(spec) == InEffect(Effect.IN_EFFECT, GI)
    assert effect(spec, "uid-2", Class.GUARANTEED) == InEffect(Effect.IN_EFFECT, GI)


def test_nothing_is_said_of_a_pod_without_protection() -> None:
    assert effect(planned(pod(container(), qos=Class.BEST_EFFORT)), own=Class.BEST_EFFORT) is None
    assert effect(planned(burstable("uid-1", GI)), "uid-2") is None
    assert effect(planned(burstable("uid-1", GI), memory=settings.MemoryQoS())) is None


@pytest.mark.parametrize("above", [protection.ROOT, protection.BURSTABLE])
def test_an_ancestor_that_could_not_be_written_is_named(above: str) -> None:
    spec = planned(burstable("uid-1", GI), burstable("uid-2", GI))
    assert effect(spec, violations=[low(above, 0)]) == InEffect(Effect.ANCESTOR_HAS_LESS, 0, above)


def test_the_pod_s_own_cgroup_may_have_less() -> None:
    spec = planned(burstable("uid-1", GI))
    assert effect(spec, violations=[low("uid-1", 0)]) == InEffect(Effect.POD_HAS_LESS, 0, protection.POD)


def test_violations_of_other_files_and_of_containers_do_not_matter() -> None:
    spec = planned(burstable("uid-1", GI))
    others = [
        state.Violation("uid-1", "WriteFailed", observed="0"),
        state.Violation("uid-1", "WriteFailed", setting="memoryLow", container="c", observed="0"),
        state.Violation("uid-1", "ThrottlingEased", setting="memoryHigh", observed="max"),
    ]
    assert effect(spec, violations=others) == InEffect(Effect.IN_EFFECT, GI)


def test_tiered_reservation_is_looked_for_in_memory_min() -> None:
    spec = planned(burstable("uid-1", GI), guaranteed("uid-2", GI), memory=TIERED)
    assert effect(spec, "uid-2", Class.GUARANTEED, hard=True) == InEffect(Effect.IN_EFFECT, GI)
    assert effect(spec, "uid-2", Class.GUARANTEED) is None
    assert effect(spec) == InEffect(Effect.IN_EFFECT, GI)


@pytest.mark.parametrize(
    ("told", "expected"),
    [
        ({"observed_generation": 0}, Effect.UNKNOWN),
        ({"violations_omitted": 1}, Effect.UNKNOWN),
        ({"conditions": [state.Condition("MemoryQoS", "False", "KubeletOwned")]}, Effect.KUBELET_OWNED),
        ({"conditions": [state.Condition("ProtectionIneffective", "True", "AncestorTooLow")]}, Effect.NODE_HAS_LESS),
    ],
)
def test_unknown_values_are_not_guessed(told: dict[str, Any], expected: Effect) -> None:
    assert effect(planned(burstable("uid-1", GI)), **told) == InEffect(expected)


def test_in_audit_nothing_is_in_effect() -> None:
    assert effect(planned(burstable("uid-1", GI), mode=names.Mode.AUDIT)) == InEffect(Effect.NOT_WRITTEN)


requests = st.integers(1, 12 * 1024).map(lambda size: size * MI)


@given(requests, st.lists(requests, max_size=4), st.lists(requests, max_size=4), st.booleans())
def test_each_pod_has_at_least_the_reported_amount(
    own: int, others: list[int], hard: list[int], is_burstable: bool
) -> None:
    """Against a walk with what a state does not have: the class of each pod."""
    makes = burstable if is_burstable else guaranteed
    rows = [makes("uid-own", own)]
    rows += [burstable(f"uid-{number}", request) for number, request in enumerate(others)]
    rows += [guaranteed(f"uid-h{number}", request) for number, request in enumerate(hard)]
    spec = planned(*rows)
    kind = Class.BURSTABLE if is_burstable else Class.GUARANTEED
    said = effect(spec, "uid-own", kind)
    top, middle = (int(each.memory_low or 0) if each else 0 for each in (spec.kubepods, spec.burstable))
    levels = [ProtectedCgroup("kubepods", top), ProtectedCgroup("pod", own, siblings=middle + sum(hard))]
    if is_burstable:
        levels = [ProtectedCgroup("kubepods", top), ProtectedCgroup("burstable", middle, siblings=sum(hard))]
        levels += [ProtectedCgroup("pod", own, siblings=sum(others))]
    known = protection.along(levels)
    assert said is not None
    assert said.amount is not None
    assert said.amount <= known.amount + PAGE
    if own + sum(others) + sum(hard) <= facts().memory_bytes:
        assert said == InEffect(Effect.IN_EFFECT, own)
    else:
        assert (said.effect, known.cut_by != "") == (Effect.ANCESTOR_HAS_LESS, True)
