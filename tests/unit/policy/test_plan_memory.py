"""Memory QoS in the plan of a node."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from swapwarden.api import names, state
from swapwarden.api.profile import spec
from swapwarden.policy import plan
from swapwarden.policy.memory import settings
from swapwarden.policy.observed import nodes, pods, resources
from swapwarden.policy.observed.resources import Class
from swapwarden.policy.profile import compiled

from tests.unit.objects import GI, MI, container, facts, make_override, pod, profile

Reservation = names.ReservationPolicy
LIMITED = names.Behavior.LIMITED_SWAP
SOFT = settings.MemoryQoS(Reservation.SOFT, throttling_percent=50)
NODE = facts(memory_bytes=8 * GI, swap_bytes=8 * GI)


def burstable(name: str = "b", **fields: Any) -> pods.PodRow:
    """A pod that may swap 1 GiB on NODE, as much as lies between request and limit."""
    return pod(container(request=GI, limit=2 * GI), uid=f"uid-{name}", name=name, **fields)


def guaranteed(name: str = "g", **fields: Any) -> pods.PodRow:
    fields = {"qos": Class.GUARANTEED, "uid": f"uid-{name}", "name": name, **fields}
    return pod(container(request=GI, limit=GI), **fields)


def planned(*rows: pods.PodRow, memory: settings.MemoryQoS | None = SOFT, **fields: Any) -> dict[str, Any]:
    spec = plan.plan_node(profile(LIMITED, memory_qos=memory, **fields), NODE, rows)
    found: dict[str, Any] = msgspec.to_builtins(spec)
    return found


def test_state_has_it_by_file() -> None:
    found = planned(burstable(), guaranteed())
    assert found["pods"] == {
        "uid-b": {
            "swapMax": str(GI),
            "memoryLow": str(GI),
            "memoryHigh": str(GI + 512 * MI),
            "containerDefault": {"swapMax": str(GI)},
        },
        "uid-g": {"reason": "QoSNotEligible", "swapMax": "0", "memoryLow": str(GI)},
    }
    assert found["kubepods"] == {"memoryLow": str(2 * GI)}
    assert found["burstable"] == {"memoryLow": str(GI)}
    assert found["units"] == {"system.slice": {"memoryLow": str(8 * GI // 20 // 4096 * 4096)}}


def test_containers_of_several_have_their_own() -> None:
    alike = pod(container("a", request=GI, limit=2 * GI), container("b", request=GI, limit=2 * GI))
    (found,) = planned(alike)["pods"].values()
    high = str(GI + 512 * MI)
    assert "memoryHigh" not in found
    assert found["containerDefault"] == {"swapMax": str(GI), "memoryHigh": high}
    different = pod(container("a", request=GI, limit=2 * GI), container("b", request=GI, id=""))
    (found,) = planned(different)["pods"].values()
    assert found["containers"] == {
        "a": {"swapMax": str(GI), "memoryHigh": high, "id": "id-a"},
        "b": {"swapMax": str(GI)},
    }


def test_tiered() -> None:
    found = planned(burstable(), guaranteed(), memory=settings.MemoryQoS(Reservation.TIERED_RESERVATION))
    assert found["pods"]["uid-g"]["memoryMin"] == str(GI)
    assert "memoryLow" not in found["pods"]["uid-g"]
    assert found["kubepods"] == {"memoryMin": str(GI), "memoryLow": str(GI)}
    assert found["burstable"] == {"memoryLow": str(GI)}


def test_ended_pods_leave_the_sums_at_once() -> None:
    found = planned(burstable(), guaranteed(terminal=True))
    assert found["kubepods"] == found["burstable"] == {"memoryLow": str(GI)}


def test_sums_stay_beside_the_nodes_swap() -> None:
    assert planned(burstable(), reserved="1Gi")["kubepods"] == {"swapMax": str(7 * GI), "memoryLow": str(GI)}


def test_settings_of_system_slice_stay() -> None:
    own = (("system.slice", state.UnitSettings(swap_max="0")), ("a.service", state.UnitSettings(swap_max="0")))
    assert planned(burstable(), units=own)["units"] == {
        "system.slice": {"swapMax": "0", "memoryLow": str(8 * GI // 20 // 4096 * 4096)},
        "a.service": {"swapMax": "0"},
    }


def test_system_slice_has_room_beside_as_many_units_as_a_profile_may_have() -> None:
    full = tuple((f"{number}.service", state.UnitSettings(swap_max="0")) for number in range(spec.MAX_UNITS))
    found = planned(burstable(), units=full)
    assert found["units"].keys() == {"system.slice", *dict(full)}
    msgspec.convert(found, state.StateSpec)


def test_pod_that_asks_is_protected_beside_the_nodes_daemons() -> None:
    asks = resources.MemoryAsks(reservation=Reservation.SOFT)
    found = planned(burstable(asks=asks), burstable("c"), memory=settings.MemoryQoS())
    assert "memoryLow" not in found["pods"]["uid-c"]
    assert found["pods"]["uid-b"]["memoryLow"] == str(GI)
    assert found["kubepods"] == found["burstable"] == {"memoryLow": str(GI)}
    assert found["units"] == {"system.slice": {"memoryLow": str(8 * GI // 20 // 4096 * 4096)}}


@pytest.mark.parametrize("node", [NODE, facts(recursive_protection=False)])
def test_without_memory_qos_a_plan_is_the_same_whatever_pods_ask(node: nodes.NodeFacts) -> None:
    asks = resources.MemoryAsks(Reservation.SOFT, MI, 50, 3 * GI // 2, (("app", 3 * GI // 2),))
    override = make_override("loud", memory_reservation=Reservation.SOFT, memory_throttling=50)
    for overrides in ((), (override,)):
        own = profile(LIMITED, overrides=overrides)
        several = [pod(container(request=GI), container("b"), uid="s", asks=found) for found in (None, asks)]
        plain, asking = (
            plan.plan_node(own, node, [burstable(asks=found), guaranteed(asks=found), row])
            for found, row in zip((None, asks), several, strict=True)
        )
        assert msgspec.json.encode(plain) == msgspec.json.encode(asking)
        assert b"memory" not in msgspec.json.encode(plain)


def test_explanation_says_that_nothing_is_offered() -> None:
    asks = resources.MemoryAsks(reservation=Reservation.SOFT)
    explained = plan.explain_node(profile(LIMITED), NODE, [burstable(asks=asks), burstable("c")])
    assert [one.memory and one.memory.protection for one in explained.pods] == ["NotOffered", None]


def test_override_about_memory_is_named_where_it_changes_something() -> None:
    override = make_override("loud", memory_reservation=Reservation.NONE)
    own = profile(LIMITED, memory_qos=SOFT, overrides=(override,))
    explained = plan.explain_node(own, NODE, [burstable(), pod(container(), uid="n", qos=Class.BEST_EFFORT)])
    assert [one.override for one in explained.pods] == ["loud", "loud"]
    assert [one.memory and one.memory.low for one in explained.pods] == [None, None]
    unchanged = profile(LIMITED, memory_qos=settings.MemoryQoS(), overrides=(override,))
    assert [one.override for one in plan.explain_node(unchanged, NODE, [burstable()]).pods] == ["loud"]
    swap = make_override("calm", swap_limit=2**62)
    neither = profile(LIMITED, memory_qos=SOFT, overrides=(swap,))
    assert [one.override for one in plan.explain_node(neither, NODE, [burstable()]).pods] == [None]


def test_no_memory_qos_while_an_override_may_refuse_it() -> None:
    tier = compiled.LabelExpression("tier", "In", frozenset({"quiet"}))
    override = make_override("quiet", namespaces=(tier,), memory_reservation=Reservation.NONE, memory_throttling=0)
    own = profile(LIMITED, memory_qos=SOFT, overrides=(override,))
    for known, low in (({}, None), ({"default": {}}, str(GI)), ({"default": {"tier": "quiet"}}, None)):
        spec = plan.plan_node(own, NODE, [burstable(policy="Disabled")], known)
        assert (spec.pods["uid-b"].swap_max, spec.pods["uid-b"].memory_low) == ("0", low)


def test_swap_that_others_took_raises_the_throttle() -> None:
    behavior = names.Behavior.WORKLOAD_CONTROLLED
    own = profile(behavior, memory_qos=SOFT, overcommit_percent=100)
    rows = [burstable("first", started="1", swap_limit="8128Mi"), burstable("second", started="2", swap_limit="1Gi")]
    found = plan.plan_node(own, NODE, rows).pods["uid-second"]
    assert (found.swap_max, found.memory_high) == (str(64 * MI), str(2 * GI - 64 * MI))


def test_guard_is_written_unless_it_has_all_defaults_of_an_agent() -> None:
    assert planned(burstable())["memoryGuard"] == {"kubelet": "Report"}
    asks = resources.MemoryAsks(reservation=Reservation.SOFT)
    assert "memoryGuard" not in planned(burstable(asks=asks), memory=None)
    off = settings.Guard(kubelet=names.KubeletGuard.OFF)
    assert "memoryGuard" not in planned(burstable(), memory=settings.MemoryQoS(guard=off))
    guard = settings.Guard(names.GuardAction.REPORT, window=20, hold=60, kubelet=names.KubeletGuard.RELEASE)
    found = planned(burstable(), memory=settings.MemoryQoS(guard=guard))
    assert found["memoryGuard"] == {"action": "Report", "windowSeconds": 20, "holdSeconds": 60, "kubelet": "Release"}


def test_explanation_has_the_sums() -> None:
    explained = plan.explain_node(profile(LIMITED, memory_qos=SOFT), NODE, [burstable(), guaranteed()])
    assert (explained.protection.kubepods_low, explained.protection.burstable_low) == (2 * GI, GI)


@given(
    st.lists(st.tuples(st.integers(0, 2**40), st.integers(0, 2**40), st.sampled_from(list(Class))), max_size=5),
    st.sampled_from(list(names.Behavior)),
    st.sampled_from([None, settings.MemoryQoS(guard=settings.Guard(kubelet=names.KubeletGuard.OFF))]),
)
def test_a_plan_without_memory_is_what_it_was(
    each: list[tuple[int, int, Class]], behavior: names.Behavior, memory: settings.MemoryQoS | None
) -> None:
    rows = [
        pod(container(request=request, limit=request + more), qos=kind, uid=f"uid-{number}")
        for number, (request, more, kind) in enumerate(each)
    ]
    text = msgspec.json.encode(
        plan.plan_node(profile(behavior, memory_qos=memory), nodes.NodeFacts(True, GI, GI), rows)
    )
    assert b"memory" not in text
    assert b"burstable" not in text
