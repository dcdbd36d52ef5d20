from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from swapwarden.api import names, quantity
from swapwarden.policy.observed import nodes, pods, resources
from swapwarden.policy.swap import limits
from swapwarden.policy.swap.settings import SwapOptions

from tests.unit import objects
from tests.unit.objects import GI, MI, PAGE, Kind, container, facts, pod, swap

Behavior, Reason = names.Behavior, names.Reason
KUBELET, NO_SWAP = Behavior.KUBELET, Behavior.NO_SWAP
LIMITED, WORKLOAD = Behavior.LIMITED_SWAP, Behavior.WORKLOAD_CONTROLLED

ALL = list(Behavior)
NOT_ELIGIBLE = (resources.Class.GUARANTEED, resources.Class.BEST_EFFORT)


def shown(decision: limits.PodDecision) -> tuple[str | None, str]:
    return decision.swap_max, decision.reason.value


def containers(decision: limits.PodDecision) -> dict[str, tuple[str | None, str, bool, bool]]:
    return {one.name: (one.swap_max, one.reason.value, one.cap, one.write) for one in decision.containers}


class TestFormula:
    @pytest.mark.parametrize(
        ("request_", "limit", "memory", "swap_bytes", "expected"),
        [
            (256 * MI, 0, 2060390400, 536866816, 69945039),
            (0, 0, 8 * GI, GI, 0),
            (0, GI, 8 * GI, GI, 0),
            (GI, GI, 8 * GI, GI, 0),
            (GI, 2 * GI, 8 * GI, GI, GI // 8),
            (8 * GI, 0, 8 * GI, GI, GI),
            (9 * GI, 0, 8 * GI, GI, 0),
            (GI, 0, 0, GI, 0),
            (GI, 0, 8 * GI, 0, 0),
            # float64 does not distinguish this from 2**60, which is more than the total.
            (GI, 0, GI, 2**60 - 1, 2**60 - 1),
        ],
    )
    def test_cases(self, request_: int, limit: int, memory: int, swap_bytes: int, expected: int) -> None:
        assert limits.container_swap(request_, limit, memory, swap_bytes) == expected

    def test_division_is_first_as_in_the_kubelet(self) -> None:
        # Multiplying first would give 1 * 49 // 49 = 1.
        assert limits.container_swap(1, 0, 49, 49) == 0

    @given(st.integers(1, 2**45), st.integers(1, 2**45), st.integers(0, 2**45))
    def test_as_the_kubelet_computes_it(self, request: int, memory: int, swap_bytes: int) -> None:
        found = limits.container_swap(request, 0, memory, swap_bytes)
        assert found == (int((float(request) / float(memory)) * float(swap_bytes)) if request <= memory else 0)

    def test_on_a_real_node(self) -> None:
        """Seen there in memory.swap.max of a 256Mi container, under the kubelet's own LimitedSwap."""
        node = facts(memory_bytes=2060390400, swap_bytes=536866816)
        decision = limits.decide(swap(LIMITED), node, pod(container(request=256 * MI)))
        assert containers(decision)["app"][0] == decision.swap_max == "69943296"

    def test_the_examples_of_kep_2400(self) -> None:
        """A node with 80G of memory and 40G of swap, 2G of it reserved: 40G and 20G of memory give 19G and 9.5G."""
        node = facts(memory_bytes=80 * GI, swap_bytes=40 * GI)
        decided = [
            limits.decide(swap(LIMITED, reserved="2Gi"), node, pod(container(request=memory * GI)))
            for memory in (40, 20)
        ]
        assert [one.swap_max for one in decided] == [str(19 * GI), str(19 * GI // 2)]


class TestTheExtendedResource:
    """A container's request of it is its limit, like an annotation."""

    @pytest.mark.parametrize("behavior", ALL)
    @given(st.integers(0, 2**33), st.integers(0, 2**33))
    def test_as_the_annotation_and_the_smaller_of_both(
        self, behavior: names.Behavior, written: int, asked: int
    ) -> None:
        def decided(**fields: Any) -> limits.PodDecision:
            row = pod(container(request=GI, **fields), container("other", request=GI))
            return limits.decide(swap(behavior), facts(), row)

        assert decided(swap_resource=asked) == decided(swap_limit=str(asked))
        assert decided(swap_resource=asked, swap_limit=str(written)) == decided(swap_limit=str(min(asked, written)))

    def test_the_pods_annotations_take_precedence(self) -> None:
        asking = container(swap_resource=GI)
        assert shown(limits.decide(swap(WORKLOAD), facts(), pod(asking))) == (str(GI), "WorkloadLimit")
        limited = limits.decide(swap(WORKLOAD), facts(), pod(asking, swap_limit="512Mi"))
        assert shown(limited) == (str(512 * MI), "WorkloadLimit")
        refused = limits.decide(swap(WORKLOAD), facts(), pod(asking, policy="Disabled"))
        assert shown(refused) == ("0", "PolicyDisabled")

    def test_the_sum_over_the_phases_of_a_start_counts_as_in_the_scheduler(self) -> None:
        row = pod(
            container("side", kind=Kind.SIDECAR, swap_resource=MI),
            container("init", kind=Kind.INIT, swap_resource=4 * MI),
            container("app", swap_resource=2 * MI),
        )
        assert limits.decide(swap(WORKLOAD), facts(), row).swap_max == str(5 * MI)


class TestRowsThatHoldForAllBehaviors:
    @pytest.mark.parametrize("behavior", ALL)
    @pytest.mark.parametrize("policy", [None, "NoPreference", "Disabled", "x"])
    def test_row_1_an_incompatible_node(self, behavior: names.Behavior, policy: str | None) -> None:
        decision = limits.decide(swap(behavior), facts(compatible=False), pod(container(request=GI), policy=policy))
        assert shown(decision) == (None, "NodeIncompatible")
        assert containers(decision) == {"app": (None, "NodeIncompatible", False, False)}

    @pytest.mark.parametrize("behavior", ALL)
    @pytest.mark.parametrize(
        ("fields", "reason"),
        [
            ({"policy": "Disabled"}, "PolicyDisabled"),
            ({"policy": "Disabled", "swap_limit": "rubbish"}, "PolicyDisabled"),
            ({"policy": "disabled"}, "InvalidPolicy"),
            ({"policy": ""}, "InvalidPolicy"),
            ({"policy": "Required "}, "InvalidPolicy"),
            ({"policy": "x", "swap_limit": "1Gi"}, "InvalidPolicy"),
            ({"swap_limit": "-1"}, "InvalidPolicy"),
            ({"swap_limit": "max"}, "InvalidPolicy"),
            ({"swap_limit": ""}, "InvalidPolicy"),
            ({"policy": "Avoid", "swap_limit": "1GB"}, "InvalidPolicy"),
        ],
    )
    def test_row_2_disabled_or_not_understood(
        self, behavior: names.Behavior, fields: dict[str, Any], reason: str
    ) -> None:
        row = pod(container(request=GI, swap_limit="1Gi"), critical=True, **fields)
        decision = limits.decide(swap(behavior), facts(), row)
        assert shown(decision) == ("0", reason)
        assert containers(decision) == {"app": ("0", reason, False, False)}

    @pytest.mark.parametrize("behavior", ALL)
    def test_row_2_a_container_limit_that_is_not_understood(self, behavior: names.Behavior) -> None:
        decision = limits.decide(swap(behavior), facts(), pod(container(swap_limit="1GB"), container("b")))
        assert shown(decision) == ("0", "InvalidPolicy")

    @pytest.mark.parametrize("fields", [{}, {"swap_limit": "1Gi"}, {"critical": True}, {"policy": "NoPreference"}])
    def test_row_4_no_swap(self, fields: dict[str, Any]) -> None:
        decision = limits.decide(swap(NO_SWAP), facts(), pod(container(request=GI, swap_limit="1Gi"), **fields))
        assert shown(decision) == ("0", "ProfileNoSwap")
        assert containers(decision) == {"app": ("0", "ProfileNoSwap", False, False)}


class TestKubelet:
    """Row 5."""

    @pytest.mark.parametrize("qos_class", resources.Class)
    @pytest.mark.parametrize("critical", [True, False])
    def test_without_limits_nothing_is_touched(self, qos_class: resources.Class, *, critical: bool) -> None:
        decision = limits.decide(swap(KUBELET), facts(), pod(container(), qos=qos_class, critical=critical))
        assert shown(decision) == ("max", "KubeletDecides")
        assert containers(decision) == {"app": ("max", "KubeletDecides", True, False)}

    def test_the_pods_limit(self) -> None:
        decision = limits.decide(swap(KUBELET), facts(), pod(container(), swap_limit="10k"))
        assert (shown(decision), decision.cap) == (("8192", "KubeletDecides"), True)
        assert containers(decision) == {"app": ("max", "KubeletDecides", True, False)}

    def test_a_containers_limit_only_lowers(self) -> None:
        row = pod(container("a", swap_limit="10k"), container("b"))
        decision = limits.decide(swap(KUBELET), facts(), row)
        assert shown(decision) == ("max", "KubeletDecides")
        assert containers(decision) == {
            "a": ("8192", "KubeletDecides", True, True),
            "b": ("max", "KubeletDecides", True, False),
        }

    def test_limits_are_at_most_the_swap_there_is(self) -> None:
        row = pod(container(swap_limit="1Ti"), swap_limit="2Ti")
        decision = limits.decide(swap(KUBELET), facts(swap_bytes=GI + 5), row)
        assert (decision.swap_max, decision.containers[0].swap_max) == (str(GI), str(GI))


class TestLimitedSwap:
    """Rows 6 and 7; the node has twice as much memory as swap."""

    @pytest.mark.parametrize("qos_class", resources.Class)
    def test_row_6_critical(self, qos_class: resources.Class) -> None:
        row = pod(container(request=GI), critical=True, qos=qos_class, swap_limit="1Gi")
        decision = limits.decide(swap(LIMITED), facts(), row)
        assert shown(decision) == ("0", "CriticalPod")
        assert containers(decision) == {"app": ("0", "CriticalPod", False, False)}

    @pytest.mark.parametrize("qos_class", NOT_ELIGIBLE)
    def test_row_6_not_burstable(self, qos_class: resources.Class) -> None:
        decision = limits.decide(swap(LIMITED), facts(), pod(container(request=GI), qos=qos_class))
        assert shown(decision) == ("0", "QoSNotEligible")
        assert containers(decision) == {"app": ("0", "QoSNotEligible", False, False)}

    def test_row_7_each_container_by_the_formula_and_the_pod_by_their_sum(self) -> None:
        row = pod(
            container("init", kind=Kind.INIT, request=3 * GI),
            container("side", kind=Kind.SIDECAR, request=GI),
            container("app", request=GI, limit=2 * GI),
            container("fixed", request=GI, limit=GI),
            container("bare"),
            container("debug", kind=Kind.EPHEMERAL),
        )
        decision = limits.decide(swap(LIMITED), facts(), row)
        assert shown(decision) == (str(3 * GI // 2), "LimitedSwap")
        assert containers(decision) == {
            "init": (str(3 * GI // 2), "LimitedSwap", False, True),
            "side": (str(GI // 2), "LimitedSwap", False, True),
            "app": (str(GI // 2), "LimitedSwap", False, True),
            "fixed": ("0", "LimitedSwap", False, True),
            "bare": ("0", "LimitedSwap", False, True),
            "debug": ("0", "LimitedSwap", False, True),
        }

    def test_row_7_limits_cap(self) -> None:
        row = pod(container("a", request=GI, swap_limit="10k"), container("b", request=GI), swap_limit="100Mi")
        decision = limits.decide(swap(LIMITED), facts(), row)
        assert shown(decision) == (str(100 * MI), "LimitedSwap")
        assert containers(decision) == {
            "a": ("8192", "LimitedSwap", False, True),
            "b": (str(GI // 2), "LimitedSwap", False, True),
        }
        assert limits.decide(swap(LIMITED), facts(), pod(container(request=GI), swap_limit="1Ti")).swap_max == str(
            GI // 2
        )

    @pytest.mark.parametrize(
        "row",
        [
            pod(container(request=GI, limit=GI)),
            pod(container()),
            pod(container(request=GI), swap_limit="0"),
            pod(container(request=9 * GI)),
            pod(container(request=4096)),
        ],
    )
    def test_row_7_a_pod_that_gets_nothing_needs_no_more_than_its_own_0(self, row: pods.PodRow) -> None:
        decision = limits.decide(swap(LIMITED), facts(swap_bytes=4 * GI - 1), row)
        assert shown(decision) == ("0", "LimitedSwap")
        assert containers(decision) == {"app": ("0", "LimitedSwap", False, False)}

    def test_row_7_without_memory_or_swap_there_is_nothing(self) -> None:
        for node in (facts(memory_bytes=0), facts(swap_bytes=0)):
            assert limits.decide(swap(LIMITED), node, pod(container(request=GI))).swap_max == "0"

    def test_row_7_requests_beyond_the_nodes_memory_share_what_there_is(self) -> None:
        row = pod(container("a", request=6 * GI), container("b", request=6 * GI))
        decision = limits.decide(swap(LIMITED, reserved="50%"), facts(), row)
        assert shown(decision) == (str(2 * GI), "LimitedSwap")

    @pytest.mark.parametrize(("reserved", "expected"), [("0", GI), ("1Gi", 3 * GI // 4), ("50%", GI // 2), ("9Gi", 0)])
    def test_row_7_less_the_reserve(self, reserved: str, expected: int) -> None:
        decision = limits.decide(swap(LIMITED, reserved=reserved), facts(), pod(container(request=2 * GI)))
        assert decision.swap_max == str(expected)

    def test_numbers_are_floored_to_the_nodes_page(self) -> None:
        row = pod(container(request=100 * 4096 * 2))
        for page in (4096, 16384, 65536):
            assert limits.decide(swap(LIMITED), facts(page_size=page), row).swap_max == str(409600 // page * page)


class TestWorkloadControlled:
    """Row 8."""

    @pytest.mark.parametrize("qos_class", resources.Class)
    @pytest.mark.parametrize("critical", [True, False])
    def test_nothing_asked_nothing_given(self, qos_class: resources.Class, *, critical: bool) -> None:
        row = pod(container(request=GI), qos=qos_class, critical=critical)
        decision = limits.decide(swap(WORKLOAD), facts(), row)
        assert shown(decision) == ("0", "NoLimit")
        assert containers(decision) == {"app": ("0", "NoLimit", False, False)}

    @pytest.mark.parametrize("qos_class", resources.Class)
    @pytest.mark.parametrize("critical", [True, False])
    def test_the_pods_limit_is_shared_by_containers_without_one(
        self, qos_class: resources.Class, *, critical: bool
    ) -> None:
        row = pod(
            container("own", swap_limit="1Gi"),
            container("rest"),
            container("debug", kind=Kind.EPHEMERAL),
            qos=qos_class,
            critical=critical,
            swap_limit="2Gi",
        )
        decision = limits.decide(swap(WORKLOAD), facts(), row)
        assert shown(decision) == (str(2 * GI), "WorkloadLimit")
        assert containers(decision) == {
            "own": (str(GI), "WorkloadLimit", False, True),
            "rest": ("max", "WorkloadLimit", False, True),
            "debug": ("0", "NoLimit", False, True),
        }

    def test_without_a_limit_of_the_pod_its_containers_limits_add_up(self) -> None:
        row = pod(
            container("init", kind=Kind.INIT, swap_limit="1Gi"),
            container("side", kind=Kind.SIDECAR, swap_limit="10k"),
            container("app", swap_limit="10k"),
            container("zero", swap_limit="0"),
            container("rest"),
        )
        decision = limits.decide(swap(WORKLOAD), facts(), row)
        assert shown(decision) == (str(GI), "WorkloadLimit")
        assert containers(decision) == {
            "init": (str(GI), "WorkloadLimit", False, True),
            "side": ("8192", "WorkloadLimit", False, True),
            "app": ("8192", "WorkloadLimit", False, True),
            "zero": ("0", "WorkloadLimit", False, True),
            "rest": ("0", "NoLimit", False, True),
        }

    @pytest.mark.parametrize(
        ("bounds", "limit", "expected"),
        [
            ({"max_per_pod": GI}, "2Gi", (str(GI), "Bounded")),
            ({"max_per_pod": 2 * GI}, "2Gi", (str(2 * GI), "WorkloadLimit")),
            ({}, "5Gi", (str(4 * GI), "Bounded")),
            ({"reserved": "50%"}, "5Gi", (str(2 * GI), "Bounded")),
            ({"max_per_pod": 0}, "1Gi", ("0", "Bounded")),
            ({}, "0", ("0", "WorkloadLimit")),
            ({}, "4095", ("0", "WorkloadLimit")),
            ({"max_per_pod": 8191}, "8191", ("4096", "WorkloadLimit")),
        ],
    )
    def test_bounds_on_the_pod(self, bounds: dict[str, Any], limit: str, expected: tuple[str, str]) -> None:
        decision = limits.decide(swap(WORKLOAD, **bounds), facts(), pod(container(), swap_limit=limit))
        assert shown(decision) == expected
        ((given, reason, _, write),) = containers(decision).values()
        assert (given, reason, write) == (
            ("0", expected[1], False) if expected[0] == "0" else ("max", "WorkloadLimit", True)
        )

    def test_bounds_on_containers(self) -> None:
        bounded = swap(WORKLOAD, max_per_container=GI)
        row = pod(container("big", swap_limit="2Gi"), container("small", swap_limit="1Mi"), container("rest"))
        decision = limits.decide(bounded, facts(), row)
        assert shown(decision) == (str(GI + MI), "Bounded")
        assert containers(decision) == {
            "big": (str(GI), "Bounded", False, True),
            "small": (str(MI), "WorkloadLimit", False, True),
            "rest": ("0", "NoLimit", False, True),
        }

    @pytest.mark.parametrize(
        ("max_per_container", "limit", "expected"),
        [(GI, "2Gi", (str(GI), "Bounded")), (GI, "1Gi", ("max", "WorkloadLimit")), (0, "1Gi", ("0", "Bounded"))],
    )
    def test_a_container_without_a_limit_is_bounded_too(
        self, max_per_container: int, limit: str, expected: tuple[str, str]
    ) -> None:
        bounded = swap(WORKLOAD, max_per_container=max_per_container)
        decision = limits.decide(bounded, facts(), pod(container(), swap_limit=limit))
        assert decision.swap_max == str(quantity.capped(limit))
        assert containers(decision)["app"][:2] == expected

    def test_the_sum_is_bounded_per_pod(self) -> None:
        row = pod(container("a", swap_limit="1Gi"), container("b", swap_limit="1Gi"))
        decision = limits.decide(swap(WORKLOAD, max_per_pod=3 * GI // 2), facts(), row)
        assert shown(decision) == (str(3 * GI // 2), "Bounded")
        assert [one.reason for one in decision.containers] == [Reason.WORKLOAD_LIMIT, Reason.WORKLOAD_LIMIT]


SIZES = st.one_of(st.integers(0, 2**20), st.integers(0, 2**44), st.sampled_from([0, PAGE - 1, PAGE, GI]))
LIMITS = st.none() | SIZES.map(str) | st.sampled_from(["1Gi", "10k", "max", "", "-1"])
STARTING = st.builds(
    container, kind=st.sampled_from([Kind.INIT, Kind.SIDECAR]), request=SIZES, limit=SIZES, swap_limit=LIMITS
)
APPS = st.builds(container, request=SIZES, limit=SIZES, swap_limit=LIMITS)
EPHEMERAL = st.builds(container, kind=st.just(Kind.EPHEMERAL))
CONTAINERS = st.tuples(
    st.lists(STARTING, max_size=3), st.lists(APPS, min_size=1, max_size=3), st.lists(EPHEMERAL, max_size=1)
).map(lambda parts: [one for part in parts for one in part])
PODS = st.builds(
    lambda parts, fields: pod(*parts, **fields),
    CONTAINERS,
    st.fixed_dictionaries(
        {
            "critical": st.booleans(),
            "qos": st.sampled_from(resources.Class),
            "policy": st.sampled_from([None, "NoPreference", "Disabled", "rubbish"]),
            "swap_limit": LIMITS,
        }
    ),
)
SETTINGS = st.builds(
    SwapOptions,
    behavior=st.sampled_from(Behavior),
    reserved=st.sampled_from([None, "0", "10%", "100%", "1Gi", "99E"]),
    max_per_container=st.none() | SIZES,
    max_per_pod=st.none() | SIZES,
)
FACTS = st.builds(
    nodes.NodeFacts,
    compatible=st.booleans(),
    swap_bytes=SIZES,
    memory_bytes=SIZES,
    page_size=st.sampled_from([4096, 16384, 65536]),
)


class TestProperties:
    @given(SETTINGS, FACTS, PODS)
    def test_every_number_is_what_the_kernel_keeps_and_within_the_swap_there_is(
        self, settings: SwapOptions, facts: nodes.NodeFacts, pod: pods.PodRow
    ) -> None:
        decision = limits.decide(settings, facts, pod)
        top = facts.swap_bytes if settings.behavior is KUBELET else limits.available(settings, facts)
        for value in (decision.swap_max, *(one.swap_max for one in decision.containers)):
            assert (value is None) == (not facts.compatible)
            if value not in {None, "max"}:
                number = int(value or "")
                assert 0 <= number <= top
                assert number % facts.page_size == 0
                assert str(number) == value

    @given(SETTINGS, FACTS, PODS)
    def test_disabled_is_always_0(self, settings: SwapOptions, facts: nodes.NodeFacts, pod: pods.PodRow) -> None:
        decision = limits.decide(settings, facts, pod)
        if facts.compatible and pod.policy == "Disabled":
            assert shown(decision) == ("0", "PolicyDisabled")
            assert not any(one.write for one in decision.containers)

    @given(SETTINGS, FACTS, PODS)
    def test_max_is_given_only_where_the_profile_sets_no_number(
        self, settings: SwapOptions, facts: nodes.NodeFacts, pod: pods.PodRow
    ) -> None:
        decision = limits.decide(settings, facts, pod)
        if settings.behavior is not KUBELET:
            assert decision.swap_max != "max"
        if settings.behavior in {NO_SWAP, LIMITED}:
            assert "max" not in {one.swap_max for one in decision.containers}

    @given(SETTINGS, FACTS, PODS)
    def test_a_container_that_swaps_has_a_pod_that_does(
        self, settings: SwapOptions, facts: nodes.NodeFacts, pod: pods.PodRow
    ) -> None:
        decision = limits.decide(settings, facts, pod)
        written = [one for one in decision.containers if one.write]
        if decision.swap_max == "0" and settings.behavior is not KUBELET:
            assert not written
            assert {one.swap_max for one in decision.containers} == {"0"}
        assert {one.name for one in decision.containers} == {one.name for one in pod.containers}

    @given(FACTS, CONTAINERS)
    def test_limited_swap_without_reserve_is_the_kubelets_own(
        self, facts: nodes.NodeFacts, parts: list[pods.ContainerRow]
    ) -> None:
        bare = [container(f"c{i}", kind=one.kind, request=one.request, limit=one.limit) for i, one in enumerate(parts)]
        facts = objects.facts(swap_bytes=facts.swap_bytes, memory_bytes=facts.memory_bytes)
        decision = limits.decide(swap(LIMITED), facts, pod(*bare))
        expected = [
            kubelet(one.request, one.limit, facts.memory_bytes, facts.swap_bytes) // PAGE * PAGE for one in bare
        ]
        total = resources.peak((one.kind, value) for one, value in zip(bare, expected, strict=True))
        assert decision.swap_max == str(min(total, facts.swap_bytes // PAGE * PAGE))
        if total:
            assert [one.swap_max for one in decision.containers] == [str(value) for value in expected]

    @given(FACTS, PODS, st.sampled_from(["1Gi", "10k", "0"]))
    def test_a_limit_never_gives_more(self, facts: nodes.NodeFacts, row: pods.PodRow, limit: str) -> None:
        for behavior in (KUBELET, NO_SWAP, LIMITED):
            free = limits.decide(swap(behavior), facts, pods_with(row, None))
            capped = limits.decide(swap(behavior), facts, pods_with(row, limit))
            assert number(capped) <= number(free)


def kubelet(request: int, limit: int, memory: int, swap_bytes: int) -> int:
    """Written down once more, from the kubelet's source, for Burstable pods."""
    if (request == 0 and limit == 0) or request == limit:
        return 0
    if memory <= 0 or request > memory:
        return 0
    return int((float(request) / float(memory)) * float(swap_bytes))


def pods_with(row: pods.PodRow, limit: str | None) -> pods.PodRow:
    return pod(*row.containers, critical=row.critical, qos=row.qos, policy=row.policy, swap_limit=limit)


def number(decision: limits.PodDecision) -> int:
    return 2**64 if decision.swap_max in {None, "max"} else int(decision.swap_max or "")
