from __future__ import annotations

import math
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from swapwarden.api import names
from swapwarden.policy.memory import kubelet
from swapwarden.policy.memory.kubelet import MemoryFiles, Version
from swapwarden.policy.observed import pods, resources
from swapwarden.policy.observed.pods import WholePod

from tests.unit.objects import GI, MI, PAGE, Kind, container, facts, pod

OLD, NEW = Version.V1_36, Version.V1_37
BOTH = (OLD, NEW)
ON = {"featureGates": {"MemoryQoS": True}}
OFF = {"featureGates": {"MemoryQoS": False}}
FACTOR = {**ON, "memoryThrottlingFactor": 0.9}
TIERED = {**FACTOR, "memoryReservationPolicy": "TieredReservation"}
LIMITED = {"failSwapOn": False, "memorySwap": {"swapBehavior": "LimitedSwap"}}
GUARANTEED, BURSTABLE, BEST_EFFORT = resources.Class.GUARANTEED, resources.Class.BURSTABLE, resources.Class.BEST_EFFORT
ZERO = MemoryFiles("0", "0", None, "0")

bytes_ = st.integers(1, 2**45)


def high(request: int, bound: int, factor: float = 0.9, page: int = PAGE) -> str:
    return str(kubelet.throttled_from(request, bound, factor, page))


def one(version: Version, document: dict[str, Any], row: pods.PodRow, **node: Any) -> MemoryFiles:
    """The values of a pod's first container."""
    found = kubelet.node_files(kubelet.read(version, document), facts(**node), [row])
    return found.pods[0].containers[row.containers[0].name]


def of_pod(version: Version, document: dict[str, Any], row: pods.PodRow) -> MemoryFiles:
    return kubelet.pod_files(kubelet.read(version, document), row, PAGE)


def above(version: Version, document: dict[str, Any], *rows: pods.PodRow) -> tuple[MemoryFiles, MemoryFiles]:
    found = kubelet.node_files(kubelet.read(version, document), facts(), rows)
    return found.kubepods, found.burstable


class TestFormula:
    @pytest.mark.parametrize("request_", range(0, 1000, 100))
    def test_the_table_of_the_kep(self, request_: int) -> None:
        """Limit 1000, factor 0.9, pages of 1; KEP-2570 prints these since it was corrected."""
        expected = 900 + request_ // 10
        assert kubelet.throttled_from(request_ * MI, 1000 * MI, 0.9, MI) == expected * MI

    def test_the_example_of_the_documentation(self) -> None:
        assert kubelet.throttled_from(300 * MI, 700 * MI, 0.75, PAGE) == 629145600

    @given(bytes_, bytes_, st.floats(0.01, 1))
    def test_it_lies_between_request_and_bound(self, request: int, more: int, factor: float) -> None:
        found = kubelet.throttled_from(request, request + more, factor, PAGE)
        assert request - PAGE < found <= request + more + 1
        assert found % PAGE == 0

    @given(bytes_, bytes_, bytes_, st.floats(0.01, 1))
    def test_it_grows_with_the_limit(self, request: int, more: int, again: int, factor: float) -> None:
        lower = kubelet.throttled_from(request, request + more, factor, PAGE)
        assert lower <= kubelet.throttled_from(request, request + more + again, factor, PAGE)


class TestContainers:
    """TestGenerateContainerConfigWithMemoryQoSEnforced and the tests beside it."""

    @pytest.mark.parametrize("version", BOTH)
    def test_burstable_with_limit(self, version: Version) -> None:
        row = pod(container(request=128 * MI, limit=256 * MI))
        assert one(version, TIERED, row) == MemoryFiles(None, str(128 * MI), high(128 * MI, 256 * MI), "0")

    @pytest.mark.parametrize("version", BOTH)
    def test_burstable_without_limit(self, version: Version) -> None:
        row = pod(container(request=128 * MI))
        assert one(version, TIERED, row) == MemoryFiles(None, str(128 * MI), high(128 * MI, 8 * GI), "0")

    def test_best_effort_is_throttled_from_1_37_on(self) -> None:
        row = pod(container(), qos=BEST_EFFORT)
        assert one(NEW, TIERED, row) == MemoryFiles("0", "0", high(0, 8 * GI), "0")
        assert one(OLD, TIERED, row) == ZERO

    @pytest.mark.parametrize("version", BOTH)
    def test_guaranteed(self, version: Version) -> None:
        row = pod(container(request=256 * MI, limit=256 * MI), qos=GUARANTEED)
        assert one(version, TIERED, row) == MemoryFiles(str(256 * MI), None, None, "0")

    @pytest.mark.parametrize("version", BOTH)
    def test_policy_none_writes_zeros(self, version: Version) -> None:
        row = pod(container(request=128 * MI, limit=256 * MI))
        assert one(version, FACTOR, row) == MemoryFiles("0", "0", high(128 * MI, 256 * MI), "0")

    def test_without_factor_1_37_throttles_nothing_and_1_36_has_a_default(self) -> None:
        row = pod(container(request=128 * MI, limit=256 * MI))
        assert one(NEW, {}, row) == ZERO
        assert one(OLD, ON, row).high == high(128 * MI, 256 * MI, 0.9)

    def test_gate_off(self) -> None:
        row = pod(container(request=128 * MI, limit=256 * MI))
        assert one(OLD, {}, row) == one(OLD, OFF, row) == MemoryFiles(swap_max="0")
        assert one(NEW, OFF, row) == MemoryFiles(high=names.MAX_SWAP, swap_max="0")

    def test_request_equal_to_limit_is_not_throttled_whatever_the_class(self) -> None:
        row = pod(container(request=256 * MI, limit=256 * MI))
        assert [one(version, FACTOR, row).high for version in BOTH] == [None, None]

    def test_limit_of_the_pod_replaces_that_of_a_container_from_1_37_on(self) -> None:
        limited = container("limited", request=256 * MI, limit=512 * MI)
        row = pod(limited, container("free", request=256 * MI), whole=WholePod(stated=True, limit=GI))
        for version, expected in ((NEW, None), (OLD, high(256 * MI, 8 * GI))):
            found = kubelet.node_files(kubelet.read(version, FACTOR), facts(), [row]).pods[0].containers
            assert found["limited"].high == high(256 * MI, 512 * MI)
            assert found["free"].high == expected

    def test_cpu_of_the_pod_alone_does_not(self) -> None:
        row = pod(container(request=256 * MI), whole=WholePod(stated=True))
        assert one(NEW, FACTOR, row).high == high(256 * MI, 8 * GI)

    def test_nor_does_a_limit_with_its_gate_off(self) -> None:
        document = {**FACTOR, "featureGates": {"MemoryQoS": True, "PodLevelResources": False}}
        row = pod(container(request=256 * MI), whole=WholePod(stated=True, limit=GI))
        assert one(NEW, document, row).high == high(256 * MI, 8 * GI)

    def test_container_of_a_guaranteed_pod_with_another_limit_is_throttled(self) -> None:
        whole = WholePod(stated=True, request=GI, limit=GI)
        row = pod(container(request=256 * MI, limit=512 * MI), qos=GUARANTEED, whole=whole)
        assert one(NEW, FACTOR, row).high == high(256 * MI, 512 * MI)

    @given(st.sampled_from(BOTH), bytes_, bytes_, st.floats(0.01, 1))
    def test_low_is_the_request_and_below_high(self, version: Version, request: int, more: int, factor: float) -> None:
        document = {**TIERED, "memoryThrottlingFactor": factor}
        found = one(version, document, pod(container(request=request, limit=request + more)))
        assert found.low == str(request)
        assert found.high is None or request < int(found.high) <= request + more + 1


class TestSwap:
    ROW = pod(container(request=256 * MI, limit=512 * MI))

    @pytest.mark.parametrize("version", BOTH)
    def test_limited_swap(self, version: Version) -> None:
        node = {"memory_bytes": 2060390400, "swap_bytes": 536866816}
        assert one(version, LIMITED, self.ROW, **node).swap_max == "69945039"
        assert one(version, LIMITED, self.ROW, **node).floored(PAGE).swap_max == "69943296"

    @pytest.mark.parametrize(
        "document",
        [
            {},
            {"failSwapOn": False},
            {**LIMITED, "failSwapOn": True},
            {**LIMITED, "memorySwap": {"swapBehavior": "NoSwap"}},
        ],
    )
    def test_no_swap(self, document: dict[str, Any]) -> None:
        assert one(NEW, document, self.ROW).swap_max == "0"

    @pytest.mark.parametrize("fields", [{"critical": True}, {"qos": GUARANTEED}, {"qos": BEST_EFFORT}])
    def test_pods_that_get_none(self, fields: dict[str, Any]) -> None:
        row = pod(*self.ROW.containers, **fields)
        assert one(NEW, LIMITED, row).swap_max == "0"

    def test_nothing_without_the_controller(self) -> None:
        assert one(NEW, LIMITED, self.ROW, compatible=False).swap_max is None


class TestPods:
    """TestResourceConfigForPodWithEnforceMemoryQoS and TestApplyPodLevelMemoryHigh."""

    @pytest.mark.parametrize("version", BOTH)
    @pytest.mark.parametrize(
        ("row", "expected"),
        [
            (pod(container(), qos=BEST_EFFORT), MemoryFiles()),
            (pod(container(request=100 * MI)), MemoryFiles(low="104857600")),
            (pod(container(request=100 * MI, limit=200 * MI)), MemoryFiles(low="104857600")),
            (
                pod(container("a", request=100 * MI, limit=200 * MI), container("b", request=100 * MI)),
                MemoryFiles(low="209715200"),
            ),
            (pod(container(request=100 * MI, limit=100 * MI), qos=GUARANTEED), MemoryFiles(minimum="104857600")),
        ],
        ids=["besteffort", "burstable-no-limits", "burstable-with-limits", "burstable-partial-limits", "guaranteed"],
    )
    def test_tiered(self, version: Version, row: pods.PodRow, expected: MemoryFiles) -> None:
        assert of_pod(version, TIERED, row) == expected
        assert of_pod(version, FACTOR, row) == MemoryFiles()
        assert of_pod(version, OFF, row) == MemoryFiles()

    def test_sidecars_init_containers_and_overhead_count(self) -> None:
        row = pod(
            container("init", kind=Kind.INIT, request=300 * MI),
            container("sidecar", kind=Kind.SIDECAR, request=50 * MI),
            container(request=100 * MI),
            whole=WholePod(overhead=10 * MI),
        )
        assert of_pod(NEW, TIERED, row) == MemoryFiles(low=str(310 * MI))

    def test_high_of_a_pod_with_resources_of_its_own(self) -> None:
        app = container(request=128 * MI, limit=256 * MI)
        row = pod(app, whole=WholePod(stated=True, request=128 * MI, limit=256 * MI))
        assert of_pod(NEW, FACTOR, row) == MemoryFiles(high=high(128 * MI, 256 * MI))
        assert of_pod(OLD, FACTOR, row) == MemoryFiles()
        more = pod(app, whole=WholePod(stated=True, request=128 * MI, limit=256 * MI, overhead=64 * MI))
        assert of_pod(NEW, FACTOR, more) == MemoryFiles(high=high(192 * MI, 320 * MI))

    @pytest.mark.parametrize(
        "containers",
        [[container(request=100 * MI)], [container("a", request=MI, limit=4 * MI), container("b", request=MI)]],
        ids=["cpu-only", "mixed"],
    )
    def test_no_high_unless_the_memory_of_the_pod_is_limited(self, containers: list[pods.ContainerRow]) -> None:
        assert of_pod(NEW, FACTOR, pod(*containers, whole=WholePod(stated=True))) == MemoryFiles()

    def test_no_high_for_a_pod_at_its_limit_or_without_the_gate(self) -> None:
        row = pod(container(), whole=WholePod(stated=True, request=GI, limit=GI))
        assert of_pod(NEW, FACTOR, row) == MemoryFiles()
        off = {**FACTOR, "featureGates": {"PodLevelResources": False}}
        assert of_pod(NEW, off, pod(container(), whole=WholePod(stated=True, limit=GI))) == MemoryFiles()


class TestAbove:
    """TestQoSContainerCgroup."""

    GUARANTEED = pod(container(request=128 * MI, limit=128 * MI), qos=GUARANTEED, uid="g")
    BURSTABLE = pod(container("a", request=128 * MI), container("b", request=256 * MI), uid="b")

    def test_tiered(self) -> None:
        rows = (self.GUARANTEED, self.BURSTABLE)
        assert above(NEW, TIERED, *rows) == (MemoryFiles(str(512 * MI), str(384 * MI)), MemoryFiles(low=str(384 * MI)))
        assert above(OLD, TIERED, *rows) == (MemoryFiles(str(512 * MI)), MemoryFiles(low=str(384 * MI)))

    @pytest.mark.parametrize(
        "rows",
        [(), (pod(container(), qos=BEST_EFFORT),), (pod(container()),), (pod(container(request=GI), terminal=True),)],
        ids=["none", "besteffort", "burstable without memory", "terminal"],
    )
    def test_no_requests(self, rows: tuple[pods.PodRow, ...]) -> None:
        assert above(NEW, TIERED, *rows) == (MemoryFiles("0", "0"), MemoryFiles(low="0"))

    def test_resources_of_the_pod_count_whatever_the_gate(self) -> None:
        row = pod(container(request=128 * MI), whole=WholePod(stated=True, request=512 * MI))
        off = {**TIERED, "featureGates": {"MemoryQoS": True, "PodLevelResources": False}}
        assert above(NEW, off, self.GUARANTEED, row) == (
            MemoryFiles(str(640 * MI), str(512 * MI)),
            MemoryFiles(low=str(512 * MI)),
        )
        assert of_pod(NEW, off, row) == MemoryFiles(low=str(128 * MI))

    def test_policy_none(self) -> None:
        assert (
            above(NEW, ON, self.BURSTABLE)
            == above(NEW, OFF, self.BURSTABLE)
            == (MemoryFiles("0", "0"), MemoryFiles(low="0"))
        )
        assert above(OLD, ON, self.BURSTABLE) == (MemoryFiles("0"), MemoryFiles(low="0"))
        assert above(OLD, OFF, self.BURSTABLE) == (MemoryFiles(), MemoryFiles())

    @given(st.sampled_from(BOTH), st.lists(st.tuples(st.sampled_from(list(resources.Class)), bytes_), max_size=8))
    def test_sums_are_those_of_the_pods(self, version: Version, each: list[tuple[resources.Class, int]]) -> None:
        rows = [
            pod(container(request=0 if kind is BEST_EFFORT else request), qos=kind, uid=f"u{number}")
            for number, (kind, request) in enumerate(each)
        ]
        found = kubelet.node_files(kubelet.read(version, TIERED), facts(), rows)
        own = [one.files for one in found.pods]
        assert found.burstable.low == str(sum(int(one.low or 0) for one in own))
        assert found.kubepods.minimum == str(sum(int(one.low or 0) + int(one.minimum or 0) for one in own))


class TestFaults:
    BURSTABLE, GUARANTEED = TestAbove.BURSTABLE, TestAbove.GUARANTEED

    def faults(self, version: Version, document: dict[str, Any], *rows: pods.PodRow) -> list[str]:
        return [each.name for each in kubelet.faults(kubelet.read(version, document), rows)]

    def test_tiered(self) -> None:
        both = (self.BURSTABLE, self.GUARANTEED)
        assert self.faults(OLD, TIERED, *both) == ["NO_KUBEPODS_LOW", "HARD_FOR_BURSTABLE", "CONTAINER_MIN"]
        assert self.faults(NEW, TIERED, *both) == ["HARD_FOR_BURSTABLE", "CONTAINER_MIN"]
        assert self.faults(NEW, TIERED, self.GUARANTEED) == ["CONTAINER_MIN"]

    def test_none_without_protection(self) -> None:
        assert self.faults(OLD, FACTOR, self.BURSTABLE, self.GUARANTEED) == []
        assert self.faults(OLD, TIERED, pod(container())) == []


class TestMemoryForPods:
    def test_capacity_less_what_the_configuration_reserves(self) -> None:
        config = kubelet.read(NEW, {"systemReserved": {"memory": "1Gi"}, "kubeReserved": {"memory": "512Mi", "cpu": 1}})
        assert kubelet.for_pods(config, 8 * GI, 8 * GI) == 8 * GI - 1536 * MI

    @pytest.mark.parametrize(
        ("document", "expected"),
        [
            ({}, 7 * GI + 100 * MI),
            ({"evictionHard": {"memory.available": "200Mi"}}, 7 * GI + 200 * MI),
            ({"evictionHard": {"memory.available": "25%"}}, 8 * GI),
            ({"evictionHard": {"memory.available": "12.5%"}}, 8 * GI),
            # As exact as a number of 32 bits: 10% of 8 GiB is 858993459.2.
            ({"evictionHard": {"memory.available": "10%"}}, 7 * GI + 858993472),
            ({"evictionHard": {"nodefs.available": "5%"}}, 7 * GI),
            ({"evictionHard": {"nodefs.available": "5%"}, "mergeDefaultEvictionSettings": True}, 7 * GI + 100 * MI),
        ],
    )
    def test_the_nodes_allocatable_without_the_threshold(self, document: dict[str, Any], expected: int) -> None:
        assert kubelet.for_pods(kubelet.read(NEW, document), 8 * GI, 7 * GI) == expected

    def test_the_capacity_where_nothing_else_is_known(self) -> None:
        assert kubelet.for_pods(kubelet.read(NEW, {}), 8 * GI, None) == 8 * GI


class TestConfiguration:
    def test_defaults(self) -> None:
        assert kubelet.read(OLD, {}) == kubelet.KubeletSettings(OLD, memory_qos=False)
        assert kubelet.read(NEW, {}) == kubelet.KubeletSettings(NEW, memory_qos=True)

    @pytest.mark.parametrize(
        ("version", "gates", "expected"),
        [
            (OLD, {"AllAlpha": True}, True),
            (OLD, {"AllBeta": True}, False),
            (OLD, {"AllAlpha": True, "MemoryQoS": False}, False),
            (NEW, {"AllBeta": False}, False),
            (NEW, {"AllAlpha": False}, True),
            (NEW, {"AllBeta": False, "MemoryQoS": True}, True),
        ],
    )
    def test_groups_of_gates(self, version: Version, gates: dict[str, bool], expected: bool) -> None:
        assert kubelet.read(version, {"featureGates": gates}).memory_qos is expected

    def test_answer_of_configz(self) -> None:
        assert kubelet.read(NEW, {"kubeletconfig": FACTOR}) == kubelet.read(NEW, FACTOR)

    @pytest.mark.parametrize(
        ("version", "document", "field"),
        [
            (NEW, {"memoryThrottlingFactor": 0}, "memoryThrottlingFactor"),
            (OLD, {"memoryThrottlingFactor": 1.1}, "memoryThrottlingFactor"),
            (NEW, {"memoryThrottlingFactor": math.nan}, "memoryThrottlingFactor"),
            (NEW, {"memoryThrottlingFactor": "0.9"}, "memoryThrottlingFactor"),
            (NEW, {**OFF, "memoryThrottlingFactor": 0.8}, "memoryThrottlingFactor"),
            (NEW, {"memoryReservationPolicy": "Soft"}, "memoryReservationPolicy"),
            (OLD, {"memoryReservationPolicy": "TieredReservation"}, "memoryReservationPolicy"),
            (NEW, {"featureGates": {"MemoryQoS": "yes"}}, "featureGates[...]"),
            (NEW, {"systemReserved": {"memory": "much"}}, "systemReserved, kubeReserved"),
            (NEW, {"evictionHard": {"memory.available": "101%"}}, "evictionHard[memory.available]"),
            (NEW, {"evictionHard": {"memory.available": "x%"}}, "evictionHard[memory.available]"),
            (NEW, {"kubeletconfig": 7}, "document"),
        ],
    )
    def test_what_a_kubelet_refuses(self, version: Version, document: dict[str, Any], field: str) -> None:
        with pytest.raises(kubelet.KubeletConfigError) as refused:
            kubelet.read(version, document)
        assert refused.value.args[0] == field

    @pytest.mark.parametrize(
        ("version", "document"), [(OLD, {"memoryThrottlingFactor": 0.5}), (NEW, {**OFF, "memoryThrottlingFactor": 0.9})]
    )
    def test_what_it_tolerates(self, version: Version, document: dict[str, Any]) -> None:
        assert kubelet.read(version, document).throttling_factor is None
