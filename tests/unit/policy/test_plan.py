from __future__ import annotations

import collections
from collections.abc import Iterable
from typing import Any
from unittest import mock

import msgspec
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st
from swapwarden.api import names, state
from swapwarden.policy import plan
from swapwarden.policy.observed import nodes, pods, resources
from swapwarden.policy.pressure import thresholds
from swapwarden.policy.profile import compiled
from swapwarden.policy.swap import requirements

from tests.unit.objects import GI, changed, container, facts, make_override, pod, profile
from tests.unit.policy.profile.test_overrides import PROFILES
from tests.unit.policy.swap.test_limits import FACTS, PODS

LIMITED, KUBELET = names.Behavior.LIMITED_SWAP, names.Behavior.KUBELET
WORKLOAD = names.Behavior.WORKLOAD_CONTROLLED


def test_a_whole_plan() -> None:
    planned = plan.plan_node(
        profile(
            LIMITED,
            generation=3,
            mode=names.Mode.AUDIT,
            guarantee=names.Guarantee.STRICT,
            before_plan=names.BeforePlan.UNMANAGED,
            reserved="2Gi",
        ),
        facts(),
        [
            pod(container("app", request=GI), container("waits", request=GI // 2, id=""), uid="a"),
            pod(container("app", request=GI), container("waits", request=GI, id=""), uid="alike"),
            pod(container(request=GI), uid="b", policy="Disabled"),
            pod(container(request=GI), uid="c", terminal=True),
            pod(container(), uid="d", qos=resources.Class.BEST_EFFORT),
        ],
    )
    assert planned == state.StateSpec(
        profile_ref=state.ProfileRef(name="test", generation=3),
        mode=names.Mode.AUDIT,
        guarantee=names.Guarantee.STRICT,
        before_plan=names.BeforePlan.UNMANAGED,
        default_reason=names.Reason.LIMITED_SWAP,
        kubepods=state.CgroupSettings(swap_max=str(2 * GI)),
        pods={
            "a": state.PodSettings(
                swap_max=str(GI // 4 + GI // 8),
                containers={
                    "app": state.ContainerSettings(id="id-app", swap_max=str(GI // 4)),
                    "waits": state.ContainerSettings(swap_max=str(GI // 8)),
                },
            ),
            "alike": state.PodSettings(
                swap_max=str(GI // 2), container_default=state.ContainerDefault(swap_max=str(GI // 4))
            ),
            "b": state.PodSettings(swap_max="0", reason=names.Reason.POLICY_DISABLED),
            "d": state.PodSettings(swap_max="0", reason=names.Reason.QOS_NOT_ELIGIBLE),
        },
    )


def test_what_the_kubelet_decides_stays_out_of_containers_but_for_limits_of_their_own() -> None:
    planned = plan.plan_node(profile(KUBELET), facts(), [pod(container("a"), container("b", swap_limit="4Ki"))])
    assert planned.kubepods is None
    assert planned.pods["uid-1"] == state.PodSettings(
        containers={"b": state.ContainerSettings(id="id-b", swap_at_most="4096")},
    )


def test_what_the_kubelet_gives_a_pod_is_only_lowered() -> None:
    """Also by an override's limit; only a limit of 0 needs no look at what the kubelet gives."""
    override = make_override(swap_limit=GI)
    for row, made, wanted in (
        (pod(container(), swap_limit="10k"), profile(KUBELET), state.PodSettings(swap_at_most="8192")),
        (pod(container(), swap_limit="0"), profile(KUBELET), state.PodSettings(swap_max="0")),
        (
            pod(container()),
            profile(KUBELET, overrides=(override,)),
            state.PodSettings(swap_at_most=str(GI), reason=names.Reason.OVERRIDE_LIMIT),
        ),
    ):
        assert plan.plan_node(made, facts(), [row]).pods["uid-1"] == wanted


def test_an_incompatible_node_gets_no_values() -> None:
    planned = plan.plan_node(profile(LIMITED, reserved="1Gi"), facts(compatible=False), [pod(container())])
    assert planned.kubepods is None
    assert planned.pods == {"uid-1": state.PodSettings(reason=names.Reason.NODE_INCOMPATIBLE)}


def test_the_limit_on_all_pods_is_floored_to_the_page() -> None:
    planned = plan.plan_node(profile(KUBELET, reserved="10%"), facts(swap_bytes=536866816), [])
    assert planned.kubepods == state.CgroupSettings(swap_max=str(483180135 // 4096 * 4096))


def test_what_a_change_would_take() -> None:
    rows = [pod(container(request=GI), uid=each, policy=policy) for each, policy in (("a", None), ("b", "Disabled"))]
    kubelet, limited, audit = (
        plan.plan_node(profile(behavior, mode=mode), facts(), rows)
        for behavior, mode in (
            (KUBELET, names.Mode.ENFORCE),
            (LIMITED, names.Mode.ENFORCE),
            (names.Behavior.NO_SWAP, names.Mode.AUDIT),
        )
    )
    limit = limited.pods["a"].swap_max
    assert limit is not None
    assert plan.preview(kubelet, limited) == state.ProfilePreview(limited.profile_ref, {"a": limit})
    assert plan.preview(limited, kubelet).pods == {}
    assert plan.preview(limited, limited).pods == {}
    assert plan.preview(limited, audit).pods == {}
    assert plan.preview(audit, limited).pods == {"a": limit, "b": "0"}


def test_a_pod_that_names_the_cgroup_of_another_changes_nothing() -> None:
    owner = pod(container(), uid="victim", policy="Disabled")
    forged = msgspec.structs.replace(pod(container(), uid="other"), key="victim", name="forged")
    for order in ([owner, forged], [forged, owner]):
        planned = plan.plan_node(profile(KUBELET), facts(), order)
        assert planned.pods == {"victim": state.PodSettings(swap_max="0", reason=names.Reason.POLICY_DISABLED)}


def test_a_pod_that_names_the_cgroup_of_another_takes_nothing_from_it() -> None:
    owner = pod(container(), uid="victim")
    forged = msgspec.structs.replace(pod(container(), uid="other", policy="Disabled"), key="victim", name="forged")
    for order in ([owner, forged], [forged, owner]):
        planned = plan.plan_node(profile(KUBELET), facts(), order)
        assert planned.pods == {"victim": state.PodSettings()}


def test_of_several_mirrors_the_one_that_the_kubelet_runs_counts_and_then_the_oldest() -> None:
    def planned(*mirrors: pods.PodRow) -> set[str | None]:
        orders = (mirrors, mirrors[::-1])
        return {plan.plan_node(profile(KUBELET), facts(), order).pods["hash"].swap_max for order in orders}

    def mirror(uid: str, **fields: Any) -> pods.PodRow:
        return msgspec.structs.replace(pod(container(), uid=uid, **fields), key="hash")

    real = mirror("a", created="2026-01-02T00:00:00Z")
    forged = mirror("b", created="2026-01-01T00:00:00Z", policy="Disabled", namespace="tenant")
    assert planned(real, forged) == {"0"}
    assert planned(msgspec.structs.replace(real, started="2026-01-02T00:00:01Z"), forged) == {None}
    assert planned(msgspec.structs.replace(real, created="2025-12-31T00:00:00Z"), forged) == {None}


def crowd(count: int, namespace: str, **fields: Any) -> list[pods.PodRow]:
    """Pods of one namespace, a second after another."""
    return [
        pod(
            container(),
            uid=f"{namespace}-{number}",
            namespace=namespace,
            name=f"pod-{number}",
            created=f"2026-01-01T{number // 3600:02d}:{number // 60 % 60:02d}:{number % 60:02d}Z",
            **fields,
        )
        for number in range(count)
    ]


def test_of_too_many_pods_the_youngest_of_the_namespace_with_most_are_left_out() -> None:
    many = crowd(state.MAX_PODS + 2, "a")
    made = plan.plan_all(profile(KUBELET), facts(), reversed(many))
    assert set(made.spec.pods) == {row.uid for row in many[: state.MAX_PODS]}
    assert set(made.left_out) == set(many[state.MAX_PODS :])
    few = crowd(3, "b", policy="Disabled") + crowd(3, "c")
    late = [msgspec.structs.replace(row, created="2027-01-01T00:00:00Z") for row in few]
    made = plan.plan_all(profile(KUBELET), facts(), [*many, *late])
    assert {row.uid for row in late} <= set(made.spec.pods)
    assert set(made.left_out) == set(many[state.MAX_PODS - 6 :])
    assert plan.plan_all(profile(KUBELET), facts(), many[:10]).left_out == ()


def test_of_one_namespace_pods_that_must_not_swap_are_planned_first() -> None:
    plain, disabled = crowd(state.MAX_PODS, "a"), pod(uid="z", namespace="a", policy="Disabled", created="2027")
    made = plan.plan_all(profile(KUBELET), facts(), [*plain, disabled])
    assert made.left_out == (plain[-1],)


def test_of_many_containers_the_first_are_planned() -> None:
    many = pod(*(container(f"c{number}", request=GI // (200 + number)) for number in range(state.MAX_CONTAINERS + 1)))
    assert len(plan.plan_node(profile(LIMITED), facts(), [many]).pods["uid-1"].containers) == state.MAX_CONTAINERS


def fat(namespace: str, number: int, containers: int, *, started: bool) -> pods.PodRow:
    """A pod whose entry takes about 150 bytes for each of its containers."""
    rows = (container(f"c{each:062d}", request=GI // (200 + each), id=f"{each:0128d}") for each in range(containers))
    return pod(
        *rows,
        uid=f"{namespace}{number:035d}",
        namespace=namespace,
        name=f"pod-{number}",
        created=f"2026-01-01T00:00:{number % 60:02d}Z",
        started="2026-01-01T00:01:00Z" if started else "",
    )


SMALL = 20_000
"""Bytes of JSON, instead of MAX_PODS_BYTES."""
CROWDS = st.lists(
    st.tuples(st.sampled_from("abcd"), st.sampled_from([0, 1, 4, 16, 128]), st.booleans()), max_size=40
).map(lambda drawn: [fat(name, number, size, started=on) for number, (name, size, on) in enumerate(drawn)])


def sizes(found: Iterable[pods.PodRow]) -> dict[str, int]:
    """The size of each namespace's pods, in bytes of JSON."""
    taken: dict[str, int] = collections.defaultdict(int)
    for row in found:
        entry = plan.plan_node(profile(LIMITED), facts(), [row]).pods[row.key]
        taken[row.namespace] += plan.cost(row.key, entry)
    return taken


@given(CROWDS)
def test_a_plan_and_its_proposal_never_outgrow_their_bytes(rows: list[pods.PodRow]) -> None:
    needed = sum(sizes(rows).values())
    with mock.patch.object(state, "MAX_PODS_BYTES", SMALL):
        made = plan.plan_all(profile(LIMITED), facts(), rows)
        proposal = plan.preview(made.spec, plan.plan_node(profile(names.Behavior.NO_SWAP), facts(), rows))
    assert len(msgspec.json.encode(made.spec.pods) + msgspec.json.encode(proposal.pods)) <= SMALL
    assert {row.key for row in made.left_out} == {row.key for row in rows} - set(made.spec.pods)
    assert bool(made.left_out) == (needed > SMALL)


@given(CROWDS, st.integers(0, 100), st.booleans())
def test_no_namespace_can_push_out_what_the_kubelet_runs_of_another(
    rows: list[pods.PodRow],
    more: int,
    started: bool,
) -> None:
    """As long as the others need no more than half of the room, whatever one namespace asks for."""
    running = [row for row in rows if row.started]
    attack = [fat("e", 100 + number, 16, started=started) for number in range(more)]
    largest = max(sizes(attack[:1]).values(), default=0)
    needed = sizes(running)
    assume(sum(needed.values()) + max(needed.values(), default=0) + largest <= SMALL)
    with mock.patch.object(state, "MAX_PODS_BYTES", SMALL):
        made = plan.plan_all(profile(LIMITED), facts(), [*attack, *rows])
    assert {row.key for row in running} <= set(made.spec.pods)


def test_a_plan_as_large_as_it_can_be_is_well_below_what_etcd_takes() -> None:
    rows = [fat("a", number, 128, started=True) for number in range(60)] + crowd(state.MAX_PODS, "b")
    made = plan.plan_all(profile(LIMITED), facts(), rows)
    assert made.left_out
    assert state.MAX_PODS_BYTES * 0.9 < len(msgspec.json.encode(made.spec)) < state.MAX_PODS_BYTES + 4096


@given(
    st.lists(st.tuples(st.sampled_from("abc"), st.booleans(), st.booleans()), max_size=30),
    st.integers(0, 40),
    st.booleans(),
    st.booleans(),
)
def test_no_namespace_can_push_out_another_by_its_number_of_pods(
    drawn: list[tuple[str, bool, bool]],
    more: int,
    started: bool,
    disabled: bool,
) -> None:
    def made(namespace: str, number: int, *, started: bool, disabled: bool) -> pods.PodRow:
        return pod(
            uid=f"{namespace}-{number}",
            namespace=namespace,
            policy="Disabled" if disabled else None,
            started="2026-01-01T00:00:00Z" if started else "",
            created=f"2026-01-02T00:00:{number:02d}Z",
        )

    rows = [made(name, number, started=on, disabled=off) for number, (name, on, off) in enumerate(drawn)]
    attack = [made("z", number, started=started, disabled=disabled) for number in range(more)]
    limit = 20
    kept, left = plan.share_room([*attack, *rows], limit)
    assert len(kept) == min(limit, len(rows) + more)
    assert sorted(row.uid for row in kept + left) == sorted(row.uid for row in [*attack, *rows])
    running = collections.Counter(row.namespace for row in rows if row.started)
    if running.total() + max(running.values(), default=0) <= limit:
        assert {row.uid for row in rows if row.started} <= {row.uid for row in kept}
    asked = collections.Counter(row.namespace for row in rows)
    if not started and asked.total() + max(asked.values(), default=0) <= limit:
        assert set(rows) <= set(kept), "what no kubelet has taken on takes nothing from anybody"


def test_containers_that_are_alike_need_no_write_when_one_starts() -> None:
    def planned(*rows: pods.ContainerRow, behavior: names.Behavior = LIMITED) -> state.PodSettings:
        return plan.plan_node(profile(behavior), facts(), [pod(*rows)]).pods["uid-1"]

    waits, runs = container("app", request=GI, id=""), container("app", request=GI, id="c1")
    assert planned(waits) == planned(runs)
    assert planned(runs).containers == {}
    assert planned(container("app", request=GI, swap_limit="1Mi"), container("b", request=GI)).container_default is None
    # One that is only ever lowered, and one that needs nothing.
    assert planned(container("app", swap_limit="1Mi", id="c1"), behavior=KUBELET).container_default is None
    assert planned(container("app", id="c1"), behavior=KUBELET).container_default is None


def test_containers_that_differ_are_planned_before_they_run() -> None:
    rows = container("app", request=GI, id=""), container("proxy", request=GI // 2, id="")
    found = plan.plan_node(profile(LIMITED), facts(), [pod(*rows)]).pods["uid-1"].containers
    assert found == {
        "app": state.ContainerSettings(swap_max=str(GI // 2)),
        "proxy": state.ContainerSettings(swap_max=str(GI // 4)),
    }


def test_of_too_many_containers_those_that_run_have_their_values() -> None:
    init = [container(f"init-{number}", request=GI + number * 2**20, id="") for number in range(state.MAX_CONTAINERS)]
    runs = container("app", request=2 * GI, id="f" * 64)
    found = plan.plan_node(profile(LIMITED), facts(), [pod(*init, runs)]).pods["uid-1"].containers
    assert len(found) == state.MAX_CONTAINERS
    assert found["app"].id == "f" * 13


CONTAINERS_OF_A_POD = {
    "Disabled": ({"policy": "Disabled"}, KUBELET, [container("app", request=GI, id="f" * 64)]),
    "alike": ({}, LIMITED, [container("app", request=GI, id="f" * 64)]),
    "two that differ": (
        {},
        LIMITED,
        [container("app", request=GI, id="e" * 64), container("sidecar", request=GI // 2, id="f" * 64)],
    ),
    "one that is capped": ({}, KUBELET, [container("app", swap_limit="64Mi", id="f" * 64)]),
}


@pytest.mark.parametrize(
    ("case", "most"), [("Disabled", 41), ("alike", 66), ("two that differ", 144), ("one that is capped", 88)]
)
def test_what_a_pod_takes_of_a_state(case: str, most: int) -> None:
    # Bytes of JSON, in etcd with each change of any pod of the node; 41, 65, 273, 172 with whole ids and all reasons.
    fields, behavior, rows = CONTAINERS_OF_A_POD[case]
    made = plan.plan_node(profile(behavior), facts(), [pod(*rows, **fields)])
    assert len(msgspec.json.encode(made.pods["uid-1"])) <= most


def test_an_explanation_shows_every_container_running_or_not() -> None:
    explained = plan.explain_node(
        profile(LIMITED, reserved="0"),
        facts(),
        [
            pod(container("x", request=GI, id=""), uid="2", name="b"),
            pod(container(), uid="3", name="a", qos=resources.Class.GUARANTEED),
            pod(uid="4", terminal=True),
        ],
    )
    assert explained.header == plan.plan_node(profile(LIMITED, reserved="0"), facts(), [])
    assert [one.row.name for one in explained.pods] == ["a", "b"]
    assert [one.swap_max for one in explained.pods[1].decision.containers] == [str(GI // 2)]


def claiming(drawn: list[tuple[pods.PodRow, str, bool]]) -> list[pods.PodRow]:
    """Pods of which several name one cgroup, and at most one of these owns it."""
    owned: set[str] = set()
    found = []
    for number, (row, key, owns) in enumerate(drawn):
        uid = key if owns and key not in owned else f"uid-{number}"
        owned.add(uid)
        found.append(msgspec.structs.replace(row, key=key, uid=uid, name=f"pod-{number}"))
    return found


NODE_PODS = st.lists(st.tuples(PODS, st.sampled_from("abcd"), st.booleans()), max_size=5).map(claiming)


@given(PROFILES, FACTS, NODE_PODS.flatmap(lambda found: st.tuples(st.just(found), st.permutations(found))))
def test_the_order_of_pods_does_not_matter(
    profile: compiled.Profile, facts: nodes.NodeFacts, orders: tuple[list[pods.PodRow], list[pods.PodRow]]
) -> None:
    assert plan.plan_node(profile, facts, orders[0]) == plan.plan_node(profile, facts, orders[1])
    assert plan.explain_node(profile, facts, orders[0]) == plan.explain_node(profile, facts, orders[1])


@given(PROFILES, FACTS, NODE_PODS)
def test_both_projections_say_the_same(
    profile: compiled.Profile, facts: nodes.NodeFacts, found: list[pods.PodRow]
) -> None:
    planned = plan.plan_node(profile, facts, found)
    explained = plan.explain_node(profile, facts, found)
    assert {one.row.key: (one.decision.swap_max, one.decision.reason) for one in explained.pods} == {
        key: (_swap_max(planned, entry), state.reason_of(planned, entry)) for key, entry in planned.pods.items()
    }


def _swap_max(planned: state.StateSpec, entry: state.PodSettings) -> str | None:
    found = entry.swap_max or entry.swap_at_most
    no_limit = state.reason_of(planned, entry) is names.Reason.KUBELET_DECIDES
    return names.MAX_SWAP if found is None and no_limit else found


@given(PROFILES, FACTS, NODE_PODS)
def test_a_plan_is_a_valid_state(profile: compiled.Profile, facts: nodes.NodeFacts, found: list[pods.PodRow]) -> None:
    planned = plan.plan_node(profile, facts, found)
    assert msgspec.json.decode(msgspec.json.encode(planned), type=state.StateSpec) == planned


def merged(target: Any, patch: Any) -> Any:
    """RFC 7386, section 2."""
    if not isinstance(patch, dict):
        return patch
    result = dict(target) if isinstance(target, dict) else {}
    for key, value in patch.items():
        if value is None:
            result.pop(key, None)
        else:
            result[key] = merged(result.get(key), value)
    return result


CONTAINERS = st.builds(
    state.ContainerSettings, id=st.sampled_from([None, "x", "y"]), swap_max=st.sampled_from(["0", "max"])
)
PLANNED_PODS = st.builds(
    state.PodSettings,
    reason=st.sampled_from([None, names.Reason.LIMITED_SWAP, names.Reason.POLICY_DISABLED]),
    swap_max=st.sampled_from([None, "0", "4096"]),
    containers=st.dictionaries(st.sampled_from("123"), CONTAINERS, max_size=3),
)
SPECS = st.builds(
    state.StateSpec,
    profile_ref=st.builds(state.ProfileRef, name=st.sampled_from("pq"), generation=st.integers(0, 2)),
    mode=st.sampled_from(names.Mode),
    before_plan=st.sampled_from(names.BeforePlan),
    epoch=st.integers(0, 2),
    kubepods=st.none() | st.builds(state.CgroupSettings, swap_max=st.sampled_from(["0", "4096"])),
    pods=st.dictionaries(st.sampled_from("abc"), PLANNED_PODS, max_size=3),
)


@given(st.none() | SPECS, SPECS)
def test_a_patch_turns_the_old_into_the_new(old: state.StateSpec | None, new: state.StateSpec) -> None:
    patch = plan.spec_patch(old, new)
    before = {} if old is None else msgspec.to_builtins(old)
    after = msgspec.convert(merged(before, patch or {}), state.StateSpec)
    epoch = 0 if old is None else old.epoch
    assert after == msgspec.structs.replace(new, epoch=epoch)
    same = old is not None and msgspec.structs.replace(old, epoch=new.epoch) == new
    assert (patch is None) == same


@pytest.mark.parametrize(
    "evictions",
    [{"victim": state.EvictedPod("u", "a", "p", 1)}, {"evicted_at": ["2026-01-01T00:00:00Z"]}],
    ids=["victim", "past evictions"],
)
def test_a_plan_neither_writes_nor_removes_evictions(evictions: dict[str, Any]) -> None:
    pressure = thresholds.Pressure("5%", "10%", 5, 40, 10)
    planned = plan.plan_node(profile(LIMITED, pressure=pressure), facts(), [])
    assert planned.pressure is not None
    now = msgspec.structs.replace(planned, pressure=msgspec.structs.replace(planned.pressure, **evictions))
    assert plan.spec_patch(now, planned) is None
    other = plan.plan_node(profile(LIMITED, pressure=msgspec.structs.replace(pressure, full_percent=50)), facts(), [])
    assert plan.spec_patch(now, other) == {"pressure": {"stall": {"fullPermille": 500}}}
    assert plan.spec_patch(msgspec.to_builtins(now), other) == {"pressure": {"stall": {"fullPermille": 500}}}
    assert plan.spec_patch(now, plan.plan_node(profile(LIMITED), facts(), [])) == {"pressure": None}


def test_a_patch_holds_only_what_differs() -> None:
    old = plan.plan_node(profile(LIMITED), facts(), [pod(container(request=GI), uid="a"), pod(uid="b"), pod(uid="c")])
    new = plan.plan_node(
        profile(LIMITED),
        facts(),
        [pod(container(request=2 * GI), uid="a"), pod(uid="b"), pod(uid="d", policy="Disabled")],
    )
    assert plan.spec_patch(old, new) == {
        "pods": {
            "a": {"swapMax": str(GI), "containerDefault": {"swapMax": str(GI)}},
            "c": None,
            "d": {"swapMax": "0", "reason": "PolicyDisabled"},
        }
    }


def test_units_of_the_profile_have_settings_of_their_own() -> None:
    units = {
        "system.slice": state.UnitSettings(swap_max="0"),
        "kubelet.service": state.UnitSettings(io_latency_microseconds=25_000, io_weight=800),
    }
    made = profile(KUBELET, units=tuple(units.items()))
    assert plan.plan_node(made, facts(), []).units == units
    assert plan.plan_node(profile(KUBELET), facts(), []).units == {}
    assert plan.restore_node(made).units == {}


SOME_LABELS = st.sampled_from(["", "app=a", "app=b"])
OVERRIDES = st.builds(
    make_override,
    pods=st.sampled_from([(), (compiled.LabelExpression("app", "In", frozenset({"a"})),)]),
    policy=st.sampled_from([None, names.Policy.DISABLED, names.Policy.NO_PREFERENCE]),
    swap_limit=st.none() | st.integers(0, 2**33),
)


@given(
    PROFILES,
    FACTS,
    NODE_PODS,
    st.lists(st.tuples(st.booleans(), SOME_LABELS), min_size=5, max_size=5),
    st.lists(OVERRIDES, max_size=2),
    st.none() | st.integers(0, 300),
    st.sampled_from([None, requirements.Require(tmpfs_noswap=True)]),
)
def test_a_trace_ends_with_what_the_plan_has(
    profile: compiled.Profile,
    facts: nodes.NodeFacts,
    found: list[pods.PodRow],
    words: list[tuple[bool, str]],
    overrides: list[compiled.Override],
    percent: int | None,
    require: requirements.Require | None,
) -> None:
    profile = changed(profile, overrides=tuple(overrides), overcommit_percent=percent, require=require)
    rows = [
        msgspec.structs.replace(row, defaulted=defaulted, labels=labels)
        for row, (defaulted, labels) in zip(found, words, strict=False)
    ]
    # Where two name one cgroup, the plan has one of them, and the trace is of that.
    for one in plan.explain_node(profile, facts, rows).pods:
        others = [row for row in rows if row is not one.row]
        trace = plan.trace_pod(profile, facts, one.row, others)
        assert trace.decision == one.decision
        assert [step.reason for step in trace.steps if step.matched][-1] == one.decision.reason
        assert [step.matched for step in trace.steps] == sorted(step.matched for step in trace.steps)
        selecting = set() if trace.override is None else {profile.overrides[trace.override].name}
        assert one.override in {None, *selecting}


def test_a_trace_has_the_rules_in_the_order_in_which_they_are_tried() -> None:
    def tried(*containers: pods.ContainerRow, others: tuple[pods.PodRow, ...] = (), **fields: Any) -> list[str]:
        row = pod(*containers or (container(request=GI, swap_limit="2Gi"),), created="2026-01-02T00:00:00Z")
        trace = plan.trace_pod(profile(**fields), facts(), row, others)
        return [step.reason.value for step in trace.steps]

    first = ["NodeIncompatible", "PolicyDisabled", "InvalidPolicy", "OverrideDisabled", "RequirementUnmet"]
    no_swap = names.Behavior.NO_SWAP
    assert tried(behavior=KUBELET) == [*first, "KubeletDecides"]
    assert tried(behavior=no_swap) == [*first, "ProfileNoSwap"]
    assert tried(behavior=LIMITED) == [*first, "CriticalPod", "QoSNotEligible", "LimitedSwap"]
    assert tried(container(), behavior=WORKLOAD) == [*first, "NoLimit"]
    assert tried(behavior=WORKLOAD) == [*first, "NoLimit", "WorkloadLimit"]
    assert tried(behavior=WORKLOAD, max_per_pod=GI) == [*first, "NoLimit", "WorkloadLimit", "Bounded"]
    assert tried(behavior=no_swap, require=requirements.Require(encrypted=True)) == first
    capped = (make_override(swap_limit=GI // 4),)
    assert tried(behavior=WORKLOAD, overrides=capped) == [*first, "NoLimit", "WorkloadLimit", "OverrideLimit"]
    assert tried(container(), behavior=WORKLOAD, overrides=capped) == [*first, "NoLimit", "OverrideLimit"]
    assert tried(behavior=LIMITED, overrides=capped)[-2:] == ["LimitedSwap", "OverrideLimit"]
    rival = pod(container(swap_limit="3Gi"), uid="rival")
    shared = tried(behavior=WORKLOAD, overcommit_percent=100, others=(rival,))
    assert shared == [*first, "NoLimit", "WorkloadLimit", "OvercommitReached"]


def test_a_trace_counts_the_shares_of_others() -> None:
    row = pod(container(swap_limit="2Gi"), created="2026-01-02T00:00:00Z")
    older, younger = (
        pod(container(swap_limit="1Gi"), uid=day, created=f"2026-01-{day}T00:00:00Z") for day in ("01", "03")
    )
    trace = plan.trace_pod(profile(WORKLOAD, overcommit_percent=50), facts(), row, (younger, older))
    assert (trace.left, trace.decision.swap_max) == (GI, str(GI))
    assert plan.trace_pod(profile(WORKLOAD), facts(), row, (older,)).left is None
