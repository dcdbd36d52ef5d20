from __future__ import annotations

from typing import Any

import msgspec
import pytest
from swapwarden.api import names, state
from swapwarden.cli.kubectl import top
from swapwarden.cli.kubectl.cluster import usage
from swapwarden.cli.kubectl.cluster.usage import MemoryUse
from swapwarden.cli.kubectl.output import tables
from swapwarden.policy import plan
from swapwarden.policy.memory import settings
from swapwarden.policy.observed import nodes, pods, resources

from tests.unit.cli.kubectl.explained import FACTS, GI, MI, NODE, container, planned, pod, profile

QOS = settings.MemoryQoS(reservation=names.ReservationPolicy.SOFT, throttling_percent=80)
TWO = (container("app", "1Gi", "2Gi"), container("proxy", "64Mi", "1Gi"))


def use(*containers: Any, spec: dict[str, Any] | None = None, **status: Any) -> MemoryUse | None:
    found = pod(*containers)
    made = planned(found, profile(memory_qos=QOS, **(spec or {})))
    reported = state.StateStatus(**{"observed_generation": 1, **status})
    return usage.memory_of(pods.project(found), made, reported)


def cells(found: MemoryUse | None, named: str = "") -> tuple[str, str, str]:
    return top.memory_protected(found), top.memory_high(found, named), top.memory_throttled(found).text


def test_a_pod_with_one_container() -> None:
    found = use(container("app", "1Gi", "2Gi"))
    assert found is not None
    assert (found.protected_bytes, found.throttled, found.container_high_bytes) == (GI, 0, {})
    assert found.high_bytes is not None
    assert GI < found.high_bytes < 2 * GI
    assert cells(found)[0] == "1Gi"
    assert cells(found)[2] == "0"


def test_containers_with_a_value_each_are_named_or_have_a_row() -> None:
    found = use(*TWO)
    assert found is not None
    assert found.container_high_bytes.keys() == {"app", "proxy"}
    together = cells(found)[1]
    assert {each.partition(":")[0] for each in together.split(",")} == {"app", "proxy"}
    assert f"proxy:{top.memory_high(found, 'proxy')}" in together
    assert top.memory_high(found, "sidecar") == tables.NONE


def test_the_throttling_of_pod_and_containers_is_summed_and_the_worst_guard_named() -> None:
    throttled = [
        state.ThrottledCgroup("uid-1", "id-app", count=40, milliseconds=3000, guard="Latched"),
        state.ThrottledCgroup("uid-1", "id-proxy", count=2, milliseconds=1500, guard="Stepped"),
        state.ThrottledCgroup("uid-2", count=500, milliseconds=900_000),
    ]
    found = use(*TWO, throttled=throttled)
    assert found is not None
    assert (found.throttled, found.stalled_milliseconds, found.guard) == (42, 4500, "Latched")
    assert cells(found)[2] == "42(4.5s,Latched)"


@pytest.mark.parametrize("status", [{"observed_generation": 0}, {"throttled_omitted": 1}])
def test_unlisted_throttling_may_be_unknown(status: dict[str, Any]) -> None:
    assert cells(use(*TWO, **status))[2] == tables.UNKNOWN


def test_pods_without_memory_qos_and_those_of_an_audit_have_none() -> None:
    assert use(container("app")) is None
    assert use(*TWO, spec={"mode": names.Mode.AUDIT}) is None
    assert cells(None) == (tables.NONE,) * 3


@pytest.mark.parametrize("recursive", [True, False])
def test_a_guaranteed_pod_of_the_tiers_counts_once_whatever_the_kernel_shares(*, recursive: bool) -> None:
    tiered = settings.MemoryQoS(names.ReservationPolicy.TIERED_RESERVATION)
    burstable = pods.project(pod(container("app", "1Gi", "1Gi")))
    guaranteed = msgspec.structs.replace(burstable, qos=resources.Class.GUARANTEED)
    facts = msgspec.structs.replace(FACTS, recursive_protection=recursive)
    made = plan.plan_node(profile(memory_qos=tiered), nodes.facts(NODE, facts), [guaranteed])
    used = usage.memory_of(guaranteed, made, state.StateStatus(facts=facts))
    assert used is not None
    assert used.protected_bytes == GI


def test_a_pod_that_is_only_protected_is_not_throttled() -> None:
    found = use(container("app", "64Mi", "64Mi"))
    assert found is not None
    assert (found.protected_bytes, cells(found)[1:]) == (64 * MI, (tables.NONE, tables.NONE))
