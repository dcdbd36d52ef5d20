from __future__ import annotations

from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from swapwarden.api import names, state
from swapwarden.cli.kubectl.cluster import snapshot
from swapwarden.cli.kubectl.simulate import simulation
from swapwarden.cli.kubectl.simulate.simulation import Direction
from swapwarden.policy.observed import revisions
from swapwarden.policy.profile import compiled

from tests.unit.objects import (
    GI,
    agent_facts,
    changed,
    container,
    node,
    pod,
    profile,
    profile_object,
    reported_row,
    view,
)

LIMITED = profile(name="limited", priority=100, behavior=names.Behavior.LIMITED_SWAP)
NO_SWAP = profile(name="none", priority=100, behavior=names.Behavior.NO_SWAP)


def web(**fields: Any) -> Any:
    """A Burstable pod that LimitedSwap gives an eighth of the node's swap."""
    return pod(container(request=GI), **{"name": "web", "uid": "uid-web", **fields})


def directions(result: simulation.Simulation) -> dict[str, Direction]:
    return {one.name: one.direction for one in result.pods}


def put(*found: compiled.Profile) -> snapshot.ProfileChange:
    return snapshot.ProfileChange(put=found)


def test_a_pod_gains_what_its_kubelet_did_not_give() -> None:
    found = simulation.simulate(view([node()], [web()], [reported_row()]), put(LIMITED))
    (one,) = found.pods
    assert (one.direction, one.before.bytes, one.after.bytes) == (Direction.GAINS, 0, GI // 8)
    assert (one.before.reason, one.after.reason) == (names.Reason.KUBELET_DECIDES, names.Reason.LIMITED_SWAP)
    assert (one.before.profile, one.after.profile) == (names.BUILT_IN_PROFILE, "limited")
    (changed,) = found.nodes
    assert (changed.changes_profile, changed.swap_label) == (True, (True, True))


@pytest.mark.parametrize(
    ("behavior", "conditions", "expected"),
    [
        ("NoSwap", (), Direction.SAME),
        ("LimitedSwap", (), Direction.LOSES),
        ("LimitedSwap", ("KubeletSetsNoLimits",), Direction.LOSES),
        ("", (), Direction.UNKNOWN),
    ],
)
def test_what_the_kubelet_gives_counts(behavior: str, conditions: tuple[str, ...], expected: Direction) -> None:
    report = state.StateStatus(conditions=[state.Condition(kind, "True", "Seen") for kind in conditions])
    read = view([node()], [web()], [reported_row(facts=agent_facts(behavior=behavior))], reports={"node-1": report})
    found = simulation.simulate(read, put(NO_SWAP))
    assert directions(found) == {"web": expected}
    (one,) = found.pods
    assert one.before.kubelet == ("max" if conditions else {"NoSwap": "0", "LimitedSwap": str(GI // 8)}.get(behavior))
    assert any("the kubelet decides" in note for note in found.notes) == (expected is Direction.UNKNOWN)


def test_without_swap_there_is_nothing_to_gain_or_lose() -> None:
    read = view([node(swap_bytes=0)], [web()], [reported_row(facts=agent_facts(swap=0, behavior=""))])
    assert directions(simulation.simulate(read, put(LIMITED))) == {"web": Direction.SAME}


def test_a_pod_that_refuses_swap_stays_as_it_is() -> None:
    read = view([node()], [web(policy="Disabled")], [reported_row(facts=agent_facts(behavior="LimitedSwap"))])
    assert directions(simulation.simulate(read, put(LIMITED))) == {"web": Direction.SAME}


def test_in_audit_the_kubelet_decides_on() -> None:
    existing = profile_object("limited", swap={"behavior": "LimitedSwap"})
    state_spec = state.StateSpec(profile_ref=state.ProfileRef("limited", 1))
    read = view([node()], [web()], [reported_row(spec=state_spec)], [existing])
    audit = changed(LIMITED, mode=names.Mode.AUDIT)
    found = simulation.simulate(read, put(audit))
    (one,) = found.pods
    assert (one.direction, one.after.audit, one.after.bytes) == (Direction.LOSES, True, 0)
    assert found.nodes[0].settings["mode"] == ("Enforce", "Audit")
    assert (found.nodes[0].changes_profile, found.nodes[0].changes) == (False, True)


def test_pods_above_their_new_limit() -> None:
    read = view(
        [node()], [web(), web(name="small", uid="uid-small")], [reported_row(facts=agent_facts(behavior="LimitedSwap"))]
    )
    found = simulation.simulate(read, put(NO_SWAP), {"uid-web": 4096, "uid-small": 0})
    assert {one.name: (one.used, one.above) for one in found.pods} == {"web": (4096, 4096), "small": (0, 0)}
    assert [one.above for one in simulation.simulate(read, put(NO_SWAP)).pods] == [0, 0]


def test_a_profile_of_the_same_name_is_another_version_and_keeps_its_age() -> None:
    existing = profile_object("limited", generation=4, swap={"behavior": "LimitedSwap"})
    state_spec = state.StateSpec(profile_ref=state.ProfileRef("limited", 4))
    read = view([node()], [web()], [reported_row(spec=state_spec)], [existing])
    assert simulation.simulate(read, put(LIMITED)).nodes[0].after.generation == 4
    after = simulation.simulate(read, put(changed(LIMITED, reserved="50%"))).nodes[0].after
    assert (after.generation, after.created, after.uid) == (5, "2026-01-01T00:00:00Z", "uid-of-limited")


def test_the_removal_of_a_profile() -> None:
    existing = profile_object("limited", swap={"behavior": "LimitedSwap"})
    state_spec = state.StateSpec(profile_ref=state.ProfileRef("limited", 1))
    read = view([node()], [web()], [reported_row(spec=state_spec)], [existing])
    found = simulation.simulate(read, snapshot.ProfileChange(delete=("limited",)))
    assert directions(found) == {"web": Direction.LOSES}
    assert found.nodes[0].after == compiled.BUILT_IN
    assert found.rollouts == ()
    with pytest.raises(snapshot.UnknownProfileError, match="no NodeSwapProfile 'other'; there are: limited"):
        simulation.simulate(read, snapshot.ProfileChange(delete=("other",)))


def test_a_rollout_that_is_under_way_is_counted_in() -> None:
    existing = profile_object("limited", generation=2, swap={"behavior": "NoSwap"})
    old = {"nodeSelector": {}, "swap": {"behavior": "LimitedSwap"}}
    state_spec = state.StateSpec(profile_ref=state.ProfileRef("limited", 1))
    read = view([node()], [web()], [reported_row(spec=state_spec)], [existing])
    past = revisions.to_object("limited", existing["metadata"]["uid"], 1, old)
    past["metadata"]["uid"] = "of-the-revision"
    read.past = [msgspec.convert(past, snapshot.WireRevision)]
    found = simulation.simulate(read, snapshot.ProfileChange())
    assert directions(found) == {"web": Direction.LOSES}
    assert found.notes[0].startswith("1 node ")


def states(number: int, **fields: Any) -> list[Any]:
    return [reported_row(f"node-{each}", **fields) for each in range(1, number + 1)]


def test_waves() -> None:
    nodes = [node(f"node-{each}") for each in range(1, 6)]
    change = put(msgspec.structs.replace(LIMITED, max_unavailable="2"))
    (found,) = simulation.simulate(view(nodes, [], states(4)), change).rollouts
    assert [wave.nodes for wave in found.waves] == [("node-1", "node-2"), ("node-3", "node-4")]
    assert (found.profile, found.most, found.at_once, found.left) == ("limited", 2, ("node-5",), ())


def test_a_rollout_waits_for_swap_in_use_where_it_is_to() -> None:
    nodes = [node("node-1"), node("node-2")]
    holding = put(msgspec.structs.replace(NO_SWAP, hold=True))
    read = view(nodes, [web()], states(2, facts=agent_facts(behavior="LimitedSwap")))
    (found,) = simulation.simulate(read, holding, {"uid-web": 4096}).rollouts
    assert ([wave.nodes for wave in found.waves], found.held) == ([("node-2",)], ("node-1",))
    (free,) = simulation.simulate(read, holding, {"uid-web": 0}).rollouts
    assert free.held == ()


def test_a_degraded_node_is_the_last() -> None:
    nodes = [node(f"node-{each}") for each in range(1, 4)]
    found = states(3)
    found[0] = reported_row("node-1", degraded="StateRefused: no")
    change = put(msgspec.structs.replace(LIMITED, max_unavailable="1"))
    (one,) = simulation.simulate(view(nodes, [], found), change).rollouts
    assert [wave.nodes for wave in one.waves] == [("node-2",), ("node-3",), ("node-1",)]
    assert one.left == ()


def test_a_degraded_node_that_has_the_profile_already_stops_it() -> None:
    existing = profile_object("limited", swap={"behavior": "LimitedSwap"})
    has = state.StateSpec(profile_ref=state.ProfileRef("limited", 1))
    found = [reported_row("node-1", spec=has, degraded="StateRefused: no"), reported_row("node-2")]
    read = view([node("node-1"), node("node-2")], [], found, [existing])
    (one,) = simulation.simulate(read, snapshot.ProfileChange()).rollouts
    assert (one.waves, one.stopped_by, one.left) == ((), ("node-1",), ("node-2",))


def test_notes() -> None:
    tied = profile_object("a", priority=100, swap={"behavior": "NoSwap"})
    strong = msgspec.structs.replace(LIMITED, priority=100)
    weak = msgspec.structs.replace(LIMITED, name="weak", priority=1)
    nobody = msgspec.structs.replace(LIMITED, name="nobody", selector=(compiled.LabelExpression("x", "Exists"),))
    broken = profile_object("broken", swap={"behavior": "Guess"})
    pods = [web(policy="Required"), web(name="other", uid="uid-other")]
    read = view([node()], pods, [reported_row()], [tied, broken], unread={"namespaces": "forbidden"})
    found = simulation.simulate(read, put(strong, weak, nobody))
    assert len(found.notes) == 8
    for note, words in zip(
        found.notes,
        (
            ["broken", "invalid"],
            ["1 node"],
            ["namespaces", "forbidden"],
            ["profile limited", "none of the 1 node"],
            ["profile weak", "none of the 1 node"],
            ["profile nobody", "no node"],
            ["a, limited", "same priority", "1 node"],
            ["1 pod", "Required"],
        ),
        strict=True,
    ):
        assert all(each in note for each in words), note


def test_only_some_of_it() -> None:
    nodes = [node("node-1"), node("node-2")]
    pods = [web(), web(name="b", uid="uid-b", node="node-2"), web(name="c", uid="uid-c", namespace="other")]
    found = simulation.simulate(view(nodes, pods, states(2)), put(LIMITED))
    some = simulation.only(found, nodes={"node-1"}, pods={("default", "web"), ("default", "b")})
    assert [one.name for one in some.pods] == ["web"]
    assert [one.node for one in some.nodes] == ["node-1"]
    assert simulation.only(found) == found


PODS = st.builds(
    pod,
    st.builds(container, request=st.integers(0, 9 * GI), swap_limit=st.sampled_from([None, "1Gi", "0", "x"])),
    policy=st.sampled_from([None, "Disabled", "NoPreference", "Required", "?"]),
    critical=st.booleans(),
    swap_limit=st.sampled_from([None, "512Mi"]),
    namespace=st.sampled_from(["default", "other"]),
)
SPECS = st.fixed_dictionaries(
    {
        "priority": st.integers(0, 3),
        "mode": st.sampled_from(["Enforce", "Audit"]),
        "swap": st.one_of(
            st.just({"behavior": "WorkloadControlled", "workloadControlled": {"overcommitPercent": 100}}),
            st.fixed_dictionaries(
                {"behavior": st.sampled_from(["Kubelet", "NoSwap", "LimitedSwap"])},
                optional={"reserved": st.sampled_from(["10%", "1Gi"])},
            ),
        ),
        "overrides": st.sampled_from([[], [{"name": "all", "namespaceSelector": {}, "swap": {"policy": "Disabled"}}]]),
    }
)


@given(st.lists(PODS, max_size=6), st.lists(SPECS, max_size=3), st.sampled_from(["", "NoSwap", "LimitedSwap"]))
def test_without_a_change_nothing_changes(pods: list[Any], specs: list[dict[str, Any]], behavior: str) -> None:
    objects = [profile_object(f"p{number}", **spec) for number, spec in enumerate(specs)]
    named = [
        msgspec.structs.replace(one, name=f"pod-{number}", uid=f"uid-{number}", key=f"uid-{number}")
        for number, one in enumerate(pods)
    ]
    unsettled = view([node()], named, [reported_row(facts=agent_facts(behavior=behavior))], objects)
    valid = unsettled.known_profiles().valid
    governing = compiled.select(valid.values(), {}).profile
    follows = state.StateSpec(profile_ref=state.ProfileRef(governing.name, governing.generation))
    read = view([node()], named, [reported_row(spec=follows, facts=agent_facts(behavior=behavior))], objects)
    found = simulation.simulate(read, snapshot.ProfileChange(put=tuple(valid.values())))
    assert {one.direction for one in found.pods} <= {Direction.SAME}
    assert len(found.pods) == len(named)
    assert not any(one.changes or one.settings for one in found.nodes)
    assert found.rollouts == ()
