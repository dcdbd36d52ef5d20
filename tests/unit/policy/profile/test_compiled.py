from __future__ import annotations

from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from swapwarden.api import names, state, throttling
from swapwarden.api import profile as api
from swapwarden.policy.memory import settings
from swapwarden.policy.node.settings import NodeOptions
from swapwarden.policy.pressure import thresholds
from swapwarden.policy.profile import compiled
from swapwarden.policy.swap import requirements
from swapwarden.policy.swap.settings import SwapOptions

from tests.unit.objects import make_override


def made(spec: dict[str, Any] | None = None, **metadata: Any) -> compiled.Profile:
    document = {"metadata": {"name": "p", **metadata}, "spec": {"nodeSelector": {}, **(spec or {})}}
    return compiled.compile_profile(api.NodeSwapProfile.model_validate(document))


def test_defaults_of_the_object_are_those_of_the_built_in_profile() -> None:
    assert msgspec.structs.replace(made(), name=names.BUILT_IN_PROFILE, priority=0) == compiled.BUILT_IN


def test_all_fields() -> None:
    profile = made(
        {
            "nodeSelector": {"matchLabels": {"pool": "batch"}},
            "priority": 7,
            "mode": "Audit",
            "guarantee": "Strict",
            "swap": {
                "behavior": "WorkloadControlled",
                "beforePlan": "Unmanaged",
                "reserved": "10%",
                "workloadControlled": {"maxPerContainer": "1Ki", "maxPerPod": "99E"},
                "requirements": ["TmpfsNoSwap", "Encrypted"],
                "allowedBacking": ["NVMe", "Zram"],
            },
            "scheduling": {"extendedResource": "Enabled"},
        },
        uid="u",
        generation=3,
        creationTimestamp="2026-01-01T00:00:00Z",
    )
    assert profile == compiled.Profile(
        name="p",
        selector=(compiled.LabelExpression("pool", "In", frozenset({"batch"})),),
        generation=3,
        uid="u",
        created="2026-01-01T00:00:00Z",
        priority=7,
        mode=names.Mode.AUDIT,
        guarantee=names.Guarantee.STRICT,
        swap=SwapOptions(
            before_plan=names.BeforePlan.UNMANAGED,
            behavior=names.Behavior.WORKLOAD_CONTROLLED,
            reserved="10%",
            max_per_container=1024,
            max_per_pod=2**63 - 1,
            require=requirements.Require(encrypted=True, tmpfs_noswap=True, backing=("NVMe", "Zram")),
        ),
        node=NodeOptions(enforce=False, extended_resource=True),
    )


@pytest.mark.parametrize(
    ("swap", "wanted"),
    [
        ({}, None),
        ({"requirements": ["DedicatedDevice"]}, requirements.Require(dedicated_device=True)),
        ({"allowedBacking": ["HDD"]}, requirements.Require(backing=("HDD",))),
    ],
)
def test_requirements_of_a_node(swap: dict[str, Any], wanted: requirements.Require | None) -> None:
    assert made({"swap": swap}).swap.require == wanted


def test_each_unit_has_its_own_settings() -> None:
    units = [
        {"name": "a.slice", "io": {"latencyTargetMilliseconds": 25, "weight": 7}},
        {"name": "b.service", "swap": {"policy": "Disabled"}},
    ]
    assert made({"systemUnits": units}).node.units == (
        ("a.slice", state.UnitSettings(io_latency_microseconds=25_000, io_weight=7)),
        ("b.service", state.UnitSettings(swap_max="0")),
    )


def test_a_profile_without_memory_qos_has_none() -> None:
    assert made().memory_qos is None
    assert made({"memoryQoS": {}}).memory_qos == settings.MemoryQoS()


def test_all_fields_of_memory_qos() -> None:
    spec = {
        "reservationPolicy": "TieredReservation",
        "reservationPercent": 50,
        "throttlingPercent": 90,
        "withoutSwap": "Bounded",
        "maxStallSeconds": 7,
        "guard": {"action": "Report", "windowSeconds": 20, "holdSeconds": 60, "kubelet": "Release"},
        "systemLow": "256Mi",
    }
    report = names.GuardAction.REPORT
    assert made({"memoryQoS": spec}).memory_qos == settings.MemoryQoS(
        reservation=names.ReservationPolicy.TIERED_RESERVATION,
        reservation_percent=50,
        throttling_percent=90,
        without_swap=names.WithoutSwap.BOUNDED,
        max_stall=7,
        guard=settings.Guard(action=report, window=20, hold=60, kubelet=names.KubeletGuard.RELEASE),
        system_low="256Mi",
    )


@pytest.mark.parametrize("spec", [{}, {"pressure": {}}, {"pressure": {"mode": "Off", "headroom": {"below": "1%"}}}])
def test_pressure_is_off_by_default(spec: dict[str, Any]) -> None:
    assert made(spec).pressure is None


def test_all_fields_of_pressure() -> None:
    assert made({"pressure": {"mode": "Observe"}}).pressure == thresholds.Pressure("5%", "10%", 5, 40, 10)
    spec = {
        "mode": "Observe",
        "headroom": {"below": "512Mi", "clear": 1073741824, "forSeconds": 7},
        "stall": {"fullPercent": 60, "overSeconds": 20},
    }
    assert made({"pressure": spec}).pressure == thresholds.Pressure("512Mi", "1073741824", 7, 60, 20)


@pytest.mark.parametrize(
    ("field", "compiled"),
    [("daemonSets", thresholds.Eviction(daemon_sets=True)), ("unmanaged", thresholds.Eviction(unmanaged=True))],
)
def test_kinds_of_pods_that_may_be_evicted(field: str, compiled: thresholds.Eviction) -> None:
    for choice, eviction in (("Evict", compiled), ("Spare", thresholds.Eviction())):
        found = made({"pressure": {"mode": "Observe", "eviction": {field: choice}}}).pressure
        assert found is not None
        assert found.eviction == eviction


def test_pods_are_evicted_by_a_profile_that_enforces_all() -> None:
    bounds = {"excludeNamespaces": [], "maxGracePeriodSeconds": 60, "settleSeconds": 20, "perNodePerHour": 2}
    spec = {"pressure": {"mode": "Enforce", "eviction": bounds}}
    found = made(spec).pressure
    assert found is not None
    compiled = thresholds.Eviction(frozenset(), grace=60, settle=20, per_hour=2)
    assert (found.enforce, found.eviction) == (True, compiled)
    for observed in ({**spec, "mode": "Audit"}, {"pressure": {"mode": "Observe"}}):
        found = made(observed).pressure
        assert found is not None
        assert not found.enforce


@pytest.mark.parametrize(
    ("memory", "reservation", "percent"),
    [
        ({"reservation": "None"}, names.ReservationPolicy.NONE, None),
        ({"reservation": "Soft", "throttling": "90%"}, names.ReservationPolicy.SOFT, 90),
        ({"throttling": "Disabled"}, None, throttling.NEVER),
    ],
)
def test_an_override_about_memory_only(
    memory: dict[str, str], reservation: names.ReservationPolicy | None, percent: int | None
) -> None:
    written = {"memoryQoS": {}, "overrides": [{"name": "one", "podSelector": {}, "memory": memory}]}
    (override,) = made(written).overrides
    assert override == make_override("one", memory_reservation=reservation, memory_throttling=percent)


def test_an_override_about_swap_is_not_about_memory() -> None:
    (override,) = made({"overrides": [{"name": "one", "podSelector": {}, "swap": {"limit": "1Gi"}}]}).overrides
    assert override.memory is None


@pytest.mark.parametrize(
    ("reserved", "swap_bytes", "kept"),
    [
        (None, 100, 0),
        ("0", 100, 0),
        ("10%", 105, 10),
        ("30", 100, 30),
        ("200", 100, 100),
        ("99E", 100, 100),
        ("5", 0, 0),
    ],
)
def test_the_reserve_is_at_most_what_there_is(reserved: str | None, swap_bytes: int, kept: int) -> None:
    assert made({"swap": {"reserved": reserved}}).swap.reserved_bytes(swap_bytes) == kept


@pytest.mark.parametrize(
    ("selector", "matching", "other"),
    [
        ({}, [{}, {"a": "1"}], []),
        (
            {"matchLabels": {"a": "1", "b": "2"}},
            [{"a": "1", "b": "2", "c": "3"}],
            [{}, {"a": "1"}, {"a": "1", "b": "1"}],
        ),
        ({"matchLabels": {"a": ""}}, [{"a": ""}], [{}, {"a": "1"}]),
        ({"matchExpressions": [{"key": "a", "operator": "In", "values": ["1", "2"]}]}, [{"a": "2"}], [{}, {"a": "3"}]),
        ({"matchExpressions": [{"key": "a", "operator": "NotIn", "values": ["1"]}]}, [{}, {"a": "2"}], [{"a": "1"}]),
        ({"matchExpressions": [{"key": "a", "operator": "Exists"}]}, [{"a": ""}], [{}, {"b": "1"}]),
        ({"matchExpressions": [{"key": "a", "operator": "DoesNotExist"}]}, [{}, {"b": "1"}], [{"a": ""}]),
        (
            {"matchLabels": {"a": "1"}, "matchExpressions": [{"key": "b", "operator": "Exists"}]},
            [{"a": "1", "b": ""}],
            [{"a": "1"}, {"b": ""}],
        ),
    ],
)
def test_selector(selector: dict[str, Any], matching: list[dict[str, str]], other: list[dict[str, str]]) -> None:
    profile = made({"nodeSelector": selector})
    assert all(profile.selects(labels) for labels in matching)
    assert not any(profile.selects(labels) for labels in other)


def candidate(name: str, priority: int = 100, created: str = "2026-01-01T00:00:00Z") -> compiled.Profile:
    return compiled.Profile(name=name, priority=priority, created=created)


@pytest.mark.parametrize(
    ("candidates", "winner", "conflicts"),
    [
        ([], names.BUILT_IN_PROFILE, ()),
        ([candidate("a")], "a", ()),
        ([candidate("a", 1), candidate("b", 2)], "b", ()),
        ([candidate("a", -1)], "a", ()),
        ([candidate("a", created="2026-01-02T00:00:00Z"), candidate("b")], "b", ("a",)),
        ([candidate("b"), candidate("a")], "a", ("b",)),
        ([candidate("a", created=""), candidate("b")], "b", ("a",)),
        ([candidate("a", 1), candidate("b", 2), candidate("c", 2), candidate("d", 2)], "b", ("c", "d")),
        # Of one priority, but a third one governs the node: nothing is contested there.
        ([candidate("a", 1), candidate("b", 1), candidate("c", 2)], "c", ()),
    ],
)
def test_selection(candidates: list[compiled.Profile], winner: str, conflicts: tuple[str, ...]) -> None:
    selection = compiled.select(candidates, {})
    assert (selection.profile.name, selection.conflicts) == (winner, conflicts)


def test_what_does_not_select_the_node_is_no_conflict() -> None:
    elsewhere = compiled.Profile(name="x", priority=100, selector=(compiled.LabelExpression("a", "Exists"),))
    assert compiled.select([elsewhere, candidate("a")], {}) == compiled.Selection(candidate("a"))


@given(
    st.lists(
        st.builds(candidate, st.text("abc", min_size=1), st.integers(0, 2), st.sampled_from(["", "2025", "2026"])),
        unique_by=lambda profile: profile.name,
    ).flatmap(lambda made: st.tuples(st.just(made), st.permutations(made)))
)
def test_the_order_of_profiles_does_not_matter(orders: tuple[list[compiled.Profile], list[compiled.Profile]]) -> None:
    assert compiled.select(orders[0], {}) == compiled.select(orders[1], {})


def test_overrides_in_their_order() -> None:
    profile = made(
        {
            "overrides": [
                {"name": "web", "podSelector": {"matchLabels": {"app": "web"}}, "swap": {"policy": "Disabled"}},
                {
                    "name": "teams",
                    "namespaceSelector": {"matchExpressions": [{"key": "team", "operator": "Exists"}]},
                    "swap": {"policy": "NoPreference", "limit": "1Gi"},
                },
                {"name": "all", "namespaceSelector": {}, "swap": {"limit": 0}},
            ]
        }
    )
    assert profile.overrides == (
        make_override(
            "web", pods=(compiled.LabelExpression("app", "In", frozenset({"web"})),), policy=names.Policy.DISABLED
        ),
        make_override(
            "teams",
            namespaces=(compiled.LabelExpression("team", "Exists"),),
            policy=names.Policy.NO_PREFERENCE,
            swap_limit=2**30,
        ),
        make_override("all", swap_limit=0),
    )


@pytest.mark.parametrize(
    ("entry", "needed"),
    [
        ({"podSelector": {"matchLabels": {"app": "web"}}}, False),
        ({"namespaceSelector": {}}, False),
        ({"namespaceSelector": {"matchLabels": {"team": "a"}}}, True),
    ],
)
def test_overrides_that_need_labels_of_namespaces(entry: dict[str, Any], needed: bool) -> None:
    assert (
        made(
            {"overrides": [{"name": "a", "podSelector": {}, **entry, "swap": {"policy": "Disabled"}}]}
        ).needs_namespaces()
        is needed
    )
