from __future__ import annotations

from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from swapwarden.api import names, throttling
from swapwarden.policy.memory import kubelet, qos, settings
from swapwarden.policy.observed import nodes, pods, resources
from swapwarden.policy.observed.pods import WholePod
from swapwarden.policy.observed.resources import Class
from swapwarden.policy.swap import limits

from tests.unit.objects import GI, MI, PAGE, Kind, container, facts, pod

Protection, Throttling = names.ProtectionReason, names.ThrottlingReason
Reservation, WithoutSwap = names.ReservationPolicy, names.WithoutSwap
SOFT, TIERED = Reservation.SOFT, Reservation.TIERED_RESERVATION
LIMITED, WORKLOAD = names.Behavior.LIMITED_SWAP, names.Behavior.WORKLOAD_CONTROLLED

sizes = st.integers(1, 2**44)


def asks(**fields: Any) -> resources.MemoryAsks:
    return resources.MemoryAsks(**fields)


def decided(
    row: pods.PodRow,
    *,
    swap: int | str | None = None,
    node: nodes.NodeFacts | None = None,
    override: settings.MemoryOverride | None = None,
    without: bool = False,
    **memory: Any,
) -> qos.PodMemory:
    """The decision with this memoryQoS, for a pod whose cgroups all have this limit of swap."""
    found = maybe(row, swap=swap, node=node, override=override, without=without, **memory)
    assert found is not None
    return found


def maybe(
    row: pods.PodRow,
    *,
    swap: int | str | None = None,
    node: nodes.NodeFacts | None = None,
    override: settings.MemoryOverride | None = None,
    without: bool = False,
    **memory: Any,
) -> qos.PodMemory | None:
    text = None if swap is None else str(swap)
    reason = names.Reason.LIMITED_SWAP
    each = tuple(limits.ContainerDecision(one.name, one.id, text, reason) for one in row.containers)
    offered = None if without else settings.MemoryQoS(**memory)
    return qos.decide(offered, node or facts(), row, limits.PodDecision(text, reason, each), override)


def highs(found: qos.PodMemory) -> list[tuple[int | None, str]]:
    return [(one.high, one.throttling.value) for one in found.containers]


BURSTABLE = pod(container(request=60 * MI, limit=100 * MI))


class TestThrottling:
    def test_one_container_is_throttled_by_the_cgroup_of_its_pod(self) -> None:
        found = decided(BURSTABLE, swap=GI, throttling_percent=50)
        assert (found.high, found.throttling) == (80 * MI, Throttling.PERCENT)
        assert highs(found) == [(None, Throttling.PER_POD)]

    def test_several_are_throttled_one_by_one(self) -> None:
        row = pod(
            container("a", request=60 * MI, limit=100 * MI),
            container("b", request=MI),
            container("c", limit=MI, request=MI),
        )
        found = decided(row, swap=GI, throttling_percent=50)
        assert (found.high, found.throttling) == (None, Throttling.PER_CONTAINER)
        assert highs(found) == [
            (80 * MI, Throttling.PERCENT),
            (None, Throttling.NO_LIMIT),
            (None, Throttling.REQUEST_IS_LIMIT),
        ]

    @pytest.mark.parametrize("kind", [Kind.INIT, Kind.SIDECAR, Kind.EPHEMERAL])
    def test_any_second_container_counts(self, kind: Kind) -> None:
        row = pod(container("other", kind=kind), container(request=60 * MI, limit=100 * MI))
        assert decided(row, swap=GI, throttling_percent=50).throttling is Throttling.PER_CONTAINER

    def test_memory_up_to_the_limit_has_room_in_the_swap(self) -> None:
        """On a kernel, with high 60 and limit 100: a process finishes with swap of 40, and is stuck with swap of 20."""
        row = pod(container(request=20 * MI, limit=100 * MI))
        enough = decided(row, swap=40 * MI, throttling_percent=50)
        assert (enough.high, enough.throttling) == (60 * MI, Throttling.PERCENT)
        less = decided(row, swap=20 * MI, throttling_percent=50)
        assert (less.high, less.throttling) == (80 * MI, Throttling.SWAP_ROOM)

    @pytest.mark.parametrize(("swap", "reason"), [(0, Throttling.NO_SWAP), (None, Throttling.SWAP_UNKNOWN)])
    def test_skip_throttles_nothing_without_swap(self, swap: int | None, reason: names.ThrottlingReason) -> None:
        found = decided(BURSTABLE, swap=swap, throttling_percent=50)
        assert (found.high, found.throttling) == (None, reason)
        assert highs(found) == [(None, reason)]

    def test_swap_without_limit_leaves_the_formula_alone(self) -> None:
        assert decided(BURSTABLE, swap="max", throttling_percent=50).high == 80 * MI

    @pytest.mark.parametrize(("swap", "size"), [(0, 100), (0, 65536), (None, 1024), (MI, 65536)])
    def test_bounded_ends_in_time(self, swap: int | None, size: int) -> None:
        row = pod(container(limit=size * MI))
        found = decided(row, swap=swap, throttling_percent=10, without_swap=WithoutSwap.BOUNDED, max_stall=5)
        assert found.throttling is Throttling.STALL_BOUND
        assert found.high is not None
        overage = (size * MI - found.high) / found.high
        assert overage <= 0.178
        stall = 64 * 85 * overage**3 * found.high / MI
        assert stall < 5.01
        # And not much shorter, where the kernel's own maximum of the pause is not what bounds it.
        assert stall > 4 or overage > 0.176

    def test_bounded_with_enough_swap_is_as_low_as_skip(self) -> None:
        row = pod(container(limit=100 * MI))
        found = decided(row, swap=60 * MI, throttling_percent=10, without_swap=WithoutSwap.BOUNDED)
        assert (found.high, found.throttling) == (40 * MI, Throttling.SWAP_ROOM)

    @pytest.mark.parametrize(
        ("row", "reason"),
        [
            (pod(container(request=MI)), Throttling.NO_LIMIT),
            (pod(container(), qos=Class.BEST_EFFORT), Throttling.NO_LIMIT),
            (pod(container(request=MI, limit=MI), qos=Class.GUARANTEED), Throttling.REQUEST_IS_LIMIT),
            (pod(container(request=MI, limit=MI + PAGE)), Throttling.NO_ROOM),
            (pod(container(request=0, limit=PAGE - 1)), Throttling.NO_ROOM),
        ],
    )
    def test_pods_that_have_none(self, row: pods.PodRow, reason: names.ThrottlingReason) -> None:
        found = decided(row, swap="max", throttling_percent=50)
        assert (found.high, found.throttling) == (None, reason)

    def test_limit_of_the_pod_as_a_whole(self) -> None:
        whole = WholePod(stated=True, request=60 * MI, limit=100 * MI)
        assert decided(pod(container(), whole=whole), swap=GI, throttling_percent=50).high == 80 * MI
        several = pod(container("a"), container("b"), whole=whole)
        found = decided(several, swap=GI, throttling_percent=50)
        assert found.high is None
        assert highs(found) == [(None, Throttling.NO_LIMIT)] * 2

    def test_limit_of_the_container_within_it(self) -> None:
        whole = WholePod(stated=True, request=60 * MI, limit=200 * MI)
        row = pod(container(request=60 * MI, limit=100 * MI), whole=whole)
        assert decided(row, swap=GI, throttling_percent=50).high == 80 * MI

    def test_least_swap_of_pod_and_container_counts(self) -> None:
        row = pod(container("a", limit=100 * MI), container("b", limit=100 * MI))
        reason = names.Reason.WORKLOAD_LIMIT
        each = tuple(
            limits.ContainerDecision(name, "", value, reason) for name, value in (("a", "max"), ("b", str(10 * MI)))
        )
        own = settings.MemoryQoS(throttling_percent=50)
        found = qos.decide(own, facts(), row, limits.PodDecision(str(30 * MI), reason, each))
        assert found is not None
        assert highs(found) == [(70 * MI, Throttling.SWAP_ROOM), (90 * MI, Throttling.SWAP_ROOM)]

    @pytest.mark.parametrize(("value", "reason"), [(str(50 * MI), Throttling.SWAP_UNKNOWN), ("0", Throttling.NO_SWAP)])
    def test_what_the_kubelet_may_lower_is_unknown(self, value: str, reason: names.ThrottlingReason) -> None:
        why = names.Reason.KUBELET_DECIDES
        each = (limits.ContainerDecision("app", "", value, why, cap=True),)
        own = settings.MemoryQoS(throttling_percent=50)
        found = qos.decide(own, facts(), BURSTABLE, limits.PodDecision(value, why, each, cap=True))
        assert found is not None
        assert (found.high, found.throttling) == (None, reason)

    @pytest.mark.parametrize(("of_pod", "of_container"), [("max", "0"), ("0", "max")])
    def test_none_of_one_is_none_whatever_the_kubelet_gives_the_other(self, of_pod: str, of_container: str) -> None:
        why = names.Reason.KUBELET_DECIDES
        each = (limits.ContainerDecision("app", "", of_container, why, cap=True),)
        own = settings.MemoryQoS(throttling_percent=50)
        found = qos.decide(own, facts(), BURSTABLE, limits.PodDecision(of_pod, why, each, cap=True))
        assert found is not None
        assert found.throttling is Throttling.NO_SWAP


class TestAnnotationsAboutThrottling:
    def row(self, **fields: Any) -> pods.PodRow:
        return pod(container(request=60 * MI, limit=100 * MI), asks=asks(**fields))

    def test_share_takes_precedence_over_the_profile(self) -> None:
        assert decided(self.row(throttling=25), swap=GI, throttling_percent=50).high == 70 * MI
        assert decided(self.row(throttling=25), swap=GI).high == 70 * MI

    def test_disabled(self) -> None:
        found = decided(self.row(throttling=throttling.NEVER), swap=GI, throttling_percent=50)
        assert (found.high, found.throttling) == (None, Throttling.POD_REFUSES)

    def test_a_deleted_pod_is_not_throttled_and_stays_protected(self) -> None:
        for row in (self.row(throttling=25), pod(container("a", limit=GI), container("b", limit=GI))):
            running = decided(row, swap=GI, throttling_percent=50, reservation=Reservation.SOFT)
            found = decided(
                msgspec.structs.replace(row, ending=True),
                swap=GI,
                throttling_percent=50,
                reservation=Reservation.SOFT,
            )
            assert any(high for high, _ in [(running.high, None), *highs(running)])
            assert found.high is None
            assert set(highs(found)) == {(None, Throttling.POD_ENDS)}
            assert found.low == running.low

    def test_nobody_asks(self) -> None:
        found = decided(BURSTABLE, swap=GI)
        assert (found.high, found.throttling) == (None, Throttling.THROTTLING_NONE)
        assert highs(found) == [(None, Throttling.THROTTLING_NONE)]

    @pytest.mark.parametrize("fields", [{"high": 90 * MI}, {"container_high": (("app", 90 * MI),)}])
    def test_amount_takes_precedence_over_the_share(self, fields: dict[str, Any]) -> None:
        found = decided(self.row(**fields), swap=GI, throttling_percent=50)
        assert (found.high, found.throttling) == (90 * MI, Throttling.HIGH_ANNOTATION)
        assert decided(self.row(**fields), swap=GI).high == 90 * MI

    def test_amount_of_a_container(self) -> None:
        row = pod(
            container("a", limit=100 * MI),
            container("b", limit=100 * MI),
            container("c", limit=100 * MI),
            asks=asks(container_high=(("a", 70 * MI), ("b", throttling.NEVER)), high=MI),
        )
        found = decided(row, swap=GI, throttling_percent=50)
        assert (found.high, found.throttling) == (None, Throttling.PER_CONTAINER)
        assert highs(found) == [
            (70 * MI, Throttling.HIGH_ANNOTATION),
            (None, Throttling.POD_REFUSES),
            (50 * MI, Throttling.PERCENT),
        ]

    def test_amount_is_bounded_by_the_swap_as_well(self) -> None:
        found = decided(self.row(high=70 * MI), swap=10 * MI)
        assert (found.high, found.throttling) == (90 * MI, Throttling.SWAP_ROOM)
        assert decided(self.row(high=70 * MI), swap=0).high is None

    @pytest.mark.parametrize("amount", [MI, 60 * MI - 1, 100 * MI, GI, 2**63 - 1])
    def test_amount_outside_of_request_and_limit(self, amount: int) -> None:
        found = decided(self.row(high=amount), swap="max")
        assert (found.high, found.throttling) == (None, Throttling.NO_ROOM)

    def test_amount_at_the_request_stays_above_it(self) -> None:
        row = pod(container(request=10 * PAGE + 1, limit=20 * PAGE), asks=asks(high=10 * PAGE + 1))
        assert decided(row, swap="max").high == 11 * PAGE


class TestProtection:
    def test_soft(self) -> None:
        found = decided(BURSTABLE, reservation=SOFT)
        assert (found.minimum, found.low, found.protection) == (None, 60 * MI, Protection.REQUEST)
        assert [(one.low, one.protection) for one in found.containers] == [(None, Protection.PER_POD)]

    def test_soft_is_soft_for_guaranteed_pods(self) -> None:
        row = pod(container(request=MI, limit=MI), qos=Class.GUARANTEED)
        assert decided(row, reservation=SOFT).low == MI

    def test_tiered(self) -> None:
        row = pod(container(request=MI, limit=MI), qos=Class.GUARANTEED)
        found = decided(row, reservation=TIERED)
        assert (found.minimum, found.low) == (MI, None)
        assert decided(BURSTABLE, reservation=TIERED).low == 60 * MI

    def test_share_of_the_request(self) -> None:
        assert decided(BURSTABLE, reservation=SOFT, reservation_percent=50).low == 30 * MI

    def test_request_of_the_pod_in_all(self) -> None:
        row = pod(container(request=60 * MI), container("b", request=MI), whole=WholePod(overhead=PAGE))
        assert decided(row, reservation=SOFT).low == 61 * MI + PAGE

    @pytest.mark.parametrize("reservation", [SOFT, TIERED])
    @pytest.mark.parametrize(
        "row", [pod(container(), qos=Class.BEST_EFFORT, whole=WholePod(overhead=MI)), pod(container(limit=MI))]
    )
    def test_nothing_requested(self, row: pods.PodRow, reservation: names.ReservationPolicy) -> None:
        found = decided(row, reservation=reservation)
        assert (found.minimum, found.low, found.protection) == (None, None, Protection.NOTHING_REQUESTED)
        assert [one.protection for one in found.containers] == [Protection.NOTHING_REQUESTED]

    def test_annotations(self) -> None:
        def of(**fields: Any) -> tuple[int | None, str]:
            row = pod(container(request=60 * MI, limit=100 * MI), asks=asks(**fields))
            found = decided(row, reservation=SOFT)
            assert found.minimum is None
            return found.low, found.protection.value

        assert of(reservation=Reservation.NONE) == (None, Protection.POD_REFUSES)
        assert of(reservation=Reservation.NONE, low=MI) == (None, Protection.POD_REFUSES)
        assert of(low=20 * MI + 1) == (20 * MI, Protection.LOW_ANNOTATION)
        assert of(low=GI) == (60 * MI, Protection.LOW_ANNOTATION)

    @pytest.mark.parametrize("fields", [{"reservation": SOFT}, {"low": 60 * MI}])
    def test_annotations_where_the_policy_is_none(self, fields: dict[str, Any]) -> None:
        row = pod(container(request=60 * MI), asks=asks(**fields))
        assert decided(row).low == 60 * MI
        unasked = decided(pod(container(request=60 * MI)))
        assert (unasked.low, unasked.protection) == (None, Protection.RESERVATION_NONE)
        assert [one.protection for one in unasked.containers] == [Protection.RESERVATION_NONE]

    def test_own_choice_of_soft_under_tiered(self) -> None:
        row = pod(container(request=MI, limit=MI), qos=Class.GUARANTEED, asks=asks(reservation=SOFT))
        found = decided(row, reservation=TIERED)
        assert (found.minimum, found.low) == (None, MI)

    def test_containers_without_recursive_protection(self) -> None:
        node = facts(recursive_protection=False)
        row = pod(container("a", request=60 * MI), container("b"))
        found = decided(row, node=node, reservation=SOFT, reservation_percent=50)
        assert [(one.low, one.protection) for one in found.containers] == [
            (30 * MI, Protection.REQUEST),
            (None, Protection.NOTHING_REQUESTED),
        ]
        guaranteed = decided(pod(container(request=MI, limit=MI), qos=Class.GUARANTEED), node=node, reservation=TIERED)
        assert (guaranteed.minimum, guaranteed.low) == (MI, MI)
        assert [one.low for one in guaranteed.containers] == [MI]


class TestOverrides:
    def test_precedence_is_between_pod_and_profile(self) -> None:
        override = settings.MemoryOverride(reservation=SOFT, throttling=25)
        found = decided(BURSTABLE, swap=GI, override=override, throttling_percent=50)
        assert (found.low, found.high) == (60 * MI, 70 * MI)
        own = pod(*BURSTABLE.containers, asks=asks(low=20 * MI, throttling=75))
        found = decided(own, swap=GI, override=override)
        assert (found.low, found.high) == (20 * MI, 90 * MI)

    @pytest.mark.parametrize("fields", [{}, {"reservation": SOFT}, {"low": MI}, {"reservation": Reservation.NONE}])
    def test_no_pod_has_protection_that_an_override_refuses(self, fields: dict[str, Any]) -> None:
        override = settings.MemoryOverride(reservation=Reservation.NONE)
        row = pod(container(request=60 * MI), asks=asks(**fields))
        for own in (SOFT, TIERED):
            found = decided(row, override=override, reservation=own)
            assert (found.minimum, found.low, found.protection) == (None, None, Protection.OVERRIDE_REFUSES)
            assert [one.protection for one in found.containers] == [Protection.OVERRIDE_REFUSES]

    @pytest.mark.parametrize(
        "fields", [{}, {"throttling": 75}, {"high": 90 * MI}, {"container_high": (("app", 90 * MI),)}]
    )
    def test_no_pod_is_throttled_where_an_override_refuses(self, fields: dict[str, Any]) -> None:
        override = settings.MemoryOverride(throttling=throttling.NEVER)
        for others in ((), (container("b"),)):
            row = pod(*BURSTABLE.containers, *others, asks=asks(**fields))
            found = decided(row, swap=GI, override=override, throttling_percent=50)
            assert found.high is None
            assert highs(found) == [(None, Throttling.OVERRIDE_REFUSES)] * len(row.containers)

    def test_a_pod_may_refuse_what_an_override_gives(self) -> None:
        override = settings.MemoryOverride(reservation=SOFT, throttling=25)
        refuses = asks(reservation=Reservation.NONE, throttling=throttling.NEVER)
        found = decided(pod(*BURSTABLE.containers, asks=refuses), swap=GI, override=override)
        assert (found.low, found.protection) == (None, Protection.POD_REFUSES)
        assert (found.high, found.throttling) == (None, Throttling.POD_REFUSES)


class TestNotOffered:
    @pytest.mark.parametrize(
        "fields",
        [
            {"reservation": SOFT},
            {"low": MI},
            {"throttling": 50},
            {"high": 90 * MI},
            {"container_high": (("app", 90 * MI),)},
            {"reservation": Reservation.NONE},
        ],
    )
    def test_no_annotation_has_an_effect_without_memory_qos(self, fields: dict[str, Any]) -> None:
        override = settings.MemoryOverride(reservation=SOFT, throttling=50)
        for own in (None, override):
            row = pod(*BURSTABLE.containers, container("b"), asks=asks(**fields))
            found = decided(row, swap=GI, override=own, without=True)
            assert (found.minimum, found.low, found.high) == (None, None, None)
            assert (found.protection, found.throttling) == (Protection.NOT_OFFERED, Throttling.NOT_OFFERED)
            none = None, None, Protection.NOT_OFFERED, Throttling.NOT_OFFERED
            assert found.containers == (qos.ContainerMemory("app", *none), qos.ContainerMemory("b", *none))

    def test_nothing_is_decided_unless_the_pod_asks(self) -> None:
        override = settings.MemoryOverride(reservation=SOFT, throttling=50)
        assert maybe(BURSTABLE, without=True) is None
        assert maybe(BURSTABLE, override=override, without=True) is None


def test_nothing_is_decided_on_an_incompatible_node() -> None:
    assert maybe(BURSTABLE, node=facts(compatible=False), reservation=SOFT) is None


class TestAbove:
    def sums(self, *rows: pods.PodRow, node: nodes.NodeFacts | None = None, **memory: Any) -> qos.Sums:
        own = settings.MemoryQoS(**memory)
        return qos.sums(own, node or facts(), [(row, one) for row in rows if (one := maybe(row, **memory))])

    GUARANTEED = pod(container(request=GI, limit=GI), qos=Class.GUARANTEED)

    SYSTEM = facts().memory_bytes // 20 // PAGE * PAGE

    def test_soft(self) -> None:
        found = self.sums(BURSTABLE, self.GUARANTEED, pod(container(), qos=Class.BEST_EFFORT), reservation=SOFT)
        assert found == qos.Sums(0, GI + 60 * MI, 60 * MI, self.SYSTEM)

    def test_tiered_protects_hard_only_what_guaranteed_pods_need(self) -> None:
        found = self.sums(BURSTABLE, self.GUARANTEED, reservation=TIERED)
        assert found == qos.Sums(GI, 60 * MI, 60 * MI, self.SYSTEM)

    def test_nothing_without_a_protected_pod(self) -> None:
        assert self.sums(BURSTABLE, self.GUARANTEED, throttling_percent=50) == qos.Sums()
        assert self.sums(pod(container(), qos=Class.BEST_EFFORT), reservation=SOFT) == qos.Sums()

    def test_a_pod_that_asks_is_in_the_sums_with_the_share_of_the_system(self) -> None:
        asking = pod(container(request=60 * MI), asks=asks(reservation=SOFT))
        assert self.sums(asking, self.GUARANTEED) == qos.Sums(0, 60 * MI, 60 * MI, self.SYSTEM)

    def test_never_above_the_node(self) -> None:
        greedy = pod(container(request=2**62))
        found = self.sums(greedy, self.GUARANTEED, reservation=TIERED, system_low="1Gi")
        assert found == qos.Sums(GI, 6 * GI, 6 * GI, GI, overcommitted=True)

    def test_hard_protection_neither(self) -> None:
        greedy = pod(container(request=2**62, limit=2**62), qos=Class.GUARANTEED)
        found = self.sums(greedy, BURSTABLE, reservation=TIERED, system_low="1Gi")
        assert found == qos.Sums(7 * GI, 0, 0, GI, overcommitted=True)

    def test_all_of_the_node_is_not_too_much(self) -> None:
        row = pod(container(request=4 * GI, limit=4 * GI), qos=Class.GUARANTEED)
        for recursive in (True, False):
            node = facts(memory_bytes=5 * GI, recursive_protection=recursive)
            own = settings.MemoryQoS(TIERED, system_low="1Gi")
            found = qos.sums(own, node, [(row, decided(row, node=node, reservation=TIERED))])
            assert not found.overcommitted

    @pytest.mark.parametrize(
        ("memory", "asked", "expected"),
        [(8 * GI, "5%", 8 * GI // 20), (64 * GI, "5%", GI), (64 * GI, "2Gi", 2 * GI), (GI, "2Gi", GI), (GI, "0", 0)],
    )
    def test_system_slice(self, memory: int, asked: str, expected: int) -> None:
        node = facts(memory_bytes=memory)
        found = self.sums(BURSTABLE, node=node, reservation=SOFT, system_low=asked)
        assert found.system_low == expected // PAGE * PAGE


class TestProperties:
    memory = st.fixed_dictionaries(
        {
            "reservation": st.sampled_from(list(Reservation)),
            "reservation_percent": st.integers(1, 100),
            "throttling_percent": st.none() | st.integers(1, 99),
            "without_swap": st.sampled_from(list(WithoutSwap)),
            "max_stall": st.integers(1, 3600),
        }
    )
    asked = st.none() | st.builds(
        resources.MemoryAsks,
        reservation=st.sampled_from([None, Reservation.NONE, SOFT]),
        low=st.none() | st.integers(0, 2**63 - 1),
        throttling=st.none() | st.integers(0, 99),
        high=st.none() | st.integers(0, 2**63 - 1),
    )
    swaps = st.none() | st.just("max") | sizes.map(lambda size: size // PAGE * PAGE)

    @given(
        st.lists(st.tuples(sizes, sizes | st.just(0)), min_size=1, max_size=3),
        st.sampled_from([Class.GUARANTEED, Class.BURSTABLE]),
        swaps,
        memory,
        asked,
        st.booleans(),
    )
    def test_protection_below_the_request_below_high_below_the_limit(
        self,
        each: list[tuple[int, int]],
        kind: Class,
        swap: int | str | None,
        memory: dict[str, Any],
        asked: resources.MemoryAsks | None,
        recursive: bool,
    ) -> None:
        rows = [
            container(f"c{number}", request=request, limit=request + more if more else 0)
            for number, (request, more) in enumerate(each)
        ]
        row = pod(*rows, qos=kind, asks=asked)
        found = decided(row, swap=swap, node=facts(recursive_protection=recursive), **memory)
        request = sum(one.request for one in rows)
        assert (found.minimum or 0) <= request
        assert (found.low or 0) <= request
        if found.high is not None:
            assert request <= found.high < rows[0].limit
        for one, own in zip(rows, found.containers, strict=True):
            assert (own.low or 0) <= one.request
            assert own.high is None or one.request <= own.high < one.limit
        numbers = [found.minimum, found.low, found.high]
        numbers += [value for own in found.containers for value in (own.low, own.high)]
        assert all(value is None or (value > 0 and value % PAGE == 0) for value in numbers)

    @given(sizes, sizes, sizes, swaps, memory, st.sampled_from([Class.GUARANTEED, Class.BURSTABLE]))
    def test_more_requested_is_more_protected_and_throttled_no_earlier(
        self, request: int, more: int, rest: int, swap: int | str | None, memory: dict[str, Any], kind: Class
    ) -> None:
        limit = request + more + rest
        less = decided(pod(container(request=request, limit=limit), qos=kind), swap=swap, **memory)
        greater = decided(pod(container(request=request + more, limit=limit), qos=kind), swap=swap, **memory)
        assert (less.low or 0) <= (greater.low or 0)
        assert (less.minimum or 0) <= (greater.minimum or 0)
        if less.high is not None and greater.high is not None:
            assert less.high <= greater.high

    @given(sizes, sizes, sizes, memory)
    def test_never_below_the_formula_nor_without_room(
        self, request: int, more: int, swap: int, memory: dict[str, Any]
    ) -> None:
        memory |= {"throttling_percent": memory["throttling_percent"] or 50, "without_swap": WithoutSwap.SKIP}
        swap = swap // PAGE * PAGE
        found = decided(pod(container(request=request, limit=request + more)), swap=swap, **memory)
        if found.high is not None:
            kep = kubelet.throttled_from(request, request + more, memory["throttling_percent"] / 100, PAGE)
            assert found.high >= kep
            assert found.high + swap >= (request + more) // PAGE * PAGE

    @given(st.lists(st.tuples(sizes, st.sampled_from(list(Class))), max_size=6), memory, st.integers(1, 2**40))
    def test_sums_are_at_most_the_node(self, each: list[tuple[int, Class]], memory: dict[str, Any], size: int) -> None:
        node = facts(memory_bytes=size)
        own = settings.MemoryQoS(**memory)
        rows = [pod(container(request=request, limit=request), qos=kind) for request, kind in each]
        found = qos.sums(own, node, [(row, one) for row in rows if (one := maybe(row, node=node, **memory))])
        assert found.kubepods_min + found.kubepods_low + found.system_low <= size
        assert found.burstable_low <= found.kubepods_low
