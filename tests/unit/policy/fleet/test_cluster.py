from __future__ import annotations

import ast
import pathlib
import sys
from collections.abc import Callable
from typing import Any

import msgspec
import pytest
from swapwarden.api import names, state
from swapwarden.policy import plan
from swapwarden.policy.fleet import cluster, progress, rollout
from swapwarden.policy.fleet.view import Admissions
from swapwarden.policy.node.settings import MIN_FREE, NodeOptions
from swapwarden.policy.observed import pods, states
from swapwarden.policy.profile import compiled
from swapwarden.policy.verdict import node as node_verdict

from tests.unit.controller.known import Known, rollouts
from tests.unit.objects import container, make_override, named_profile, node, pod, state_row


class Seen(Known):
    """A cluster and what it said must be looked at."""

    def __init__(self, agent_pods: str | None = None) -> None:
        super().__init__(agent_pods)
        self.dirty: list[tuple[str, float]] = []
        self.urgent: list[str] = []
        self.owners: list[str] = []

    def apply(self, changes: cluster.Changes) -> None:
        super().apply(changes)
        self.dirty += [(each.node, each.delay) for each in changes.due]
        self.urgent += [each.node for each in changes.due if each.urgent]
        self.owners += [each.owner for each in changes.due]

    def is_urgent(self, name: str) -> bool:
        return any(due.urgent for due in self.cluster.all_due().due if due.node == name)

    def take(self) -> list[tuple[str, float]]:
        taken, self.dirty = self.dirty, []
        return taken


@pytest.fixture
def seen() -> Seen:
    found = Seen()
    found.node_changed("node-1", None, node())
    found.node_changed("node-2", None, node("node-2"))
    found.take()
    return found


LATER = cluster.COALESCE_SECONDS
MUCH_LATER = cluster.PATIENT_SECONDS


def test_pods_are_found_by_their_node(seen: Seen) -> None:
    bound, other = pod(container(), name="a"), pod(container(), name="b", node="node-2")
    seen.pod_changed("default/a", None, bound)
    seen.pod_changed("default/b", None, other)
    assert seen.take() == [("node-1", LATER), ("node-2", LATER)]
    assert list(seen.inventory.pods_on("node-1")) == [bound]
    seen.pod_changed("default/a", bound, None)
    assert seen.take() == [("node-1", MUCH_LATER)]
    assert list(seen.inventory.pods_on("node-1")) == []


def test_only_a_mirror_that_its_node_owns_names_a_static_pods_cgroup(seen: Seen) -> None:
    def keys() -> set[str]:
        return {row.key for row in seen.inventory.pods_on("node-1")}

    claims = {"real": "uid-of-node-1", "forged": "uid-of-node-2"}
    mirrors = {
        name: pod(container(), uid=name, name=name, key="hash", mirror=pods.Mirror("hash", owner))
        for name, owner in claims.items()
    }
    for name, row in mirrors.items():
        seen.pod_changed(f"default/{name}", None, row)
    assert keys() == {"hash", "forged"}
    seen.node_changed("node-1", None, node(uid="another"))
    assert keys() == {"real", "forged"}, "it was the mirror of another Node's pod"
    seen.node_changed("node-1", None, None)
    seen.node_changed("node-1", None, node())
    assert keys() == {"hash", "forged"}


def test_a_mirror_that_is_known_before_its_node_counts_once_the_node_is_known() -> None:
    seen = Seen()
    row = pod(container(), uid="real", key="hash", mirror=pods.Mirror("hash", "uid-of-node-1"))
    seen.pod_changed("default/real", None, row)
    seen.node_changed("node-1", None, node())
    assert [row.key for row in seen.inventory.pods_on("node-1")] == ["hash"]


FOUND = state.Facts(2, swap_controller=True, swap_bytes=2**31, memory_bytes=2**33)


def test_it_is_known_for_whose_pods_a_node_is_looked_at(seen: Seen) -> None:
    seen.owners.clear()
    made = pod(container(), namespace="shop", policy="Disabled")
    seen.pod_changed("shop/pod", None, made)
    seen.pod_changed("shop/pod", made, msgspec.structs.replace(made, terminal=True))
    seen.pod_changed("shop/pod", made, None)
    assert seen.owners == ["shop"] * 3
    seen.node_changed("node-1", None, node(labels={"another": "one"}))
    assert seen.owners[3:] == [""]


def test_what_an_agent_found_outlives_its_state(seen: Seen) -> None:
    first = state_row(facts=FOUND, observed=1)

    def known() -> tuple[int, bool]:
        facts = seen.planner.facts("node-1")
        return facts.swap_bytes, facts.reported

    assert known() == (2**30, False)
    seen.state_changed("node-1", None, first)
    assert known() == (2**31, True)
    seen.state_changed("node-1", first, None)
    assert known() == (2**31, True), "deleted"
    assert not seen.inventory.has_agent("node-1")
    made = state_row(version=5, uid="made anew")
    seen.wrote(made)
    seen.state_changed("node-1", None, made)
    assert known() == (2**31, True), "recreated, and its agent is silent"
    seen.state_changed("node-1", made, state_row(version=6, uid="made anew", facts=None))
    assert known() == (2**31, True)
    newer = state_row(version=7, uid="made anew", facts=msgspec.structs.replace(FOUND, swap_bytes=2**32))
    seen.state_changed("node-1", made, newer)
    assert known() == (2**32, True), "its agent is back"


def test_findings_of_an_agent_are_dropped_with_its_node(seen: Seen) -> None:
    row = state_row(facts=FOUND)
    seen.state_changed("node-1", None, row)
    seen.inventory.lose_state("node-1", row.uid)
    seen.node_changed("node-1", None, node(uid="another"))
    assert not seen.planner.facts("node-1").reported, "another machine"
    seen.node_changed("node-1", None, None)
    seen.node_changed("node-1", None, node())
    assert not seen.planner.facts("node-1").reported
    assert seen.inventory.last_reports == {}


def test_an_earlier_nodes_state_says_nothing_of_this_one(seen: Seen) -> None:
    stale = state_row(facts=FOUND, owner="an earlier one")
    seen.state_changed("node-1", None, stale)
    seen.state_changed("node-1", stale, None)
    assert not seen.planner.facts("node-1").reported


def test_a_pod_that_is_not_bound_yet_concerns_no_node(seen: Seen) -> None:
    waiting, bound = pod(container(), node=""), pod(container())
    seen.pod_changed("default/pod", None, waiting)
    assert seen.take() == []
    seen.pod_changed("default/pod", waiting, bound)
    assert seen.take() == [("node-1", LATER)]
    seen.pod_changed("default/pod", bound, None)
    seen.pod_changed("default/other", waiting, None)
    assert list(seen.inventory.pods_on("node-1")) == []


def test_a_recreated_pod_on_another_node_moves(seen: Seen) -> None:
    old, new = pod(container(), uid="1"), pod(container(), uid="2", node="node-2")
    seen.pod_changed("default/pod", None, old)
    seen.take()
    seen.pod_changed("default/pod", old, new)
    assert {name for name, _ in seen.take()} == {"node-1", "node-2"}
    assert list(seen.inventory.pods_on("node-1")) == []
    assert list(seen.inventory.pods_on("node-2")) == [new]


@pytest.mark.parametrize("policy", ["Disabled", "Whatever"])
def test_a_new_pod_that_may_not_swap_is_not_kept_waiting(seen: Seen, policy: str) -> None:
    row = pod(container(), policy=policy)
    seen.pod_changed("default/pod", None, pod(container(), policy=policy, node=""))
    assert seen.take() == []
    seen.pod_changed("default/pod", pod(container(), policy=policy, node=""), row)
    assert (seen.take(), seen.urgent) == ([("node-1", 0.0)], ["node-1"])
    assert seen.is_urgent("node-1")


def test_a_node_with_more_pods_than_it_has_room_for_is_looked_at_once_a_second(
    seen: Seen, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(state, "MAX_PODS", 2)
    for number, delay in enumerate((0.0, 0.0, MUCH_LATER, MUCH_LATER)):
        row = pod(container(), policy="Disabled", uid=f"uid-{number}", name=f"pod-{number}")
        seen.pod_changed(f"default/pod-{number}", None, row)
        assert (seen.take(), seen.urgent.pop()) == ([("node-1", delay)], "node-1")
    seen.pod_changed("default/pod-0", row, msgspec.structs.replace(row, qos=row.qos, started="now"))
    assert seen.urgent == []


def test_pods_that_ended_take_no_room_from_those_that_may_not_swap(seen: Seen, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(state, "MAX_PODS", 2)
    for number in range(4):
        ended = pod(container(), uid=f"uid-{number}", name=f"ended-{number}", terminal=True)
        seen.pod_changed(f"default/ended-{number}", None, ended)
    seen.take()
    seen.pod_changed("default/pod", None, pod(container(), policy="Disabled", uid="uid", name="pod"))
    assert (seen.take(), seen.urgent) == ([("node-1", 0.0)], ["node-1"])


def test_a_new_pod_in_a_crowd_costs_no_look_at_each_of_the_others(seen: Seen, monkeypatch: pytest.MonkeyPatch) -> None:
    """With a list of 100,000 pods of one node, no probe would be answered for minutes."""
    monkeypatch.setattr(state, "MAX_PODS", 2)
    rows = [pod(container(), uid=f"uid-{number}", name=f"pod-{number}") for number in range(1000)]
    calls = 0

    def count(*_: object) -> None:
        nonlocal calls
        calls += 1

    for number, row in enumerate(rows):
        sys.setprofile(count if number == 999 else None)
        try:
            seen.pod_changed(f"default/pod-{number}", None, row)
        finally:
            sys.setprofile(None)
    assert 0 < calls < 500


def test_a_crowd_is_one_while_its_pods_exist(seen: Seen, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(state, "MAX_PODS", 2)

    def delay() -> float:
        probe = pod(container(), policy="Disabled", uid="probe", name="probe")
        seen.take()
        seen.pod_changed("default/probe", None, probe)
        [(_, found)] = seen.take()
        seen.pod_changed("default/probe", probe, None)
        return found

    rows = [pod(container(), uid=f"uid-{number}", name=f"pod-{number}") for number in range(4)]
    for row in rows:
        seen.pod_changed(f"default/{row.name}", None, row)
    assert delay() == MUCH_LATER
    ended, moved = pod(container(), uid="uid-0", name="pod-0", terminal=True), pod(container(), node="node-2")
    seen.pod_changed("default/pod-0", rows[0], rows[0])
    seen.pod_changed("default/pod-0", rows[0], ended)
    seen.pod_changed("default/pod-1", rows[1], moved)
    assert delay() == MUCH_LATER, "two, and the new one"
    seen.pod_changed("default/pod-0", ended, None)
    assert delay() == MUCH_LATER
    seen.pod_changed("default/pod-2", rows[2], None)
    assert delay() == 0.0


def test_what_else_becomes_of_it_can_wait(seen: Seen) -> None:
    row = pod(container(), policy="Disabled")
    started = pod(container(id="c1"), policy="Disabled")
    ended = pod(container(), policy="Disabled", terminal=True)
    seen.pod_changed("default/pod", None, row)
    assert seen.urgent.pop() == "node-1"
    seen.take()
    for old, new, delay in ((row, started, MUCH_LATER), (started, ended, LATER), (ended, None, MUCH_LATER)):
        seen.pod_changed("default/pod", old, new)
        assert (seen.take(), seen.urgent) == ([("node-1", delay)], [])

    seen.pod_changed("default/pod", None, ended)
    assert (seen.take(), seen.urgent) == ([("node-1", LATER)], [])
    assert not seen.is_urgent("node-1")


def test_a_container_with_a_limit_of_its_own_gets_it_when_it_starts(seen: Seen) -> None:
    """Under behavior Kubelet nothing else limits it."""
    row, started = (pod(container(id=each, swap_limit="1Mi")) for each in ("", "c1"))
    seen.pod_changed("default/pod", None, row)
    seen.take()
    seen.pod_changed("default/pod", row, started)
    assert seen.take() == [("node-1", LATER)]


def test_the_plan_follows_profile_facts_and_pods(seen: Seen) -> None:
    seen.pod_changed("default/pod", None, pod(container(request=2**30)))
    assert seen.plan("node-1").profile_ref.name == names.BUILT_IN_PROFILE
    seen.profiles_changed({"p": named_profile(behavior=names.Behavior.LIMITED_SWAP)})
    assert set(seen.take()) == {("node-1", LATER), ("node-2", LATER)}
    assert seen.plan("node-1").pods["uid-1"].swap_max == str(2**27)
    found = state.Facts(cgroup_version=2, swap_controller=True, swap_bytes=2**31, memory_bytes=2**33)
    seen.state_changed("node-1", None, state_row(facts=found))
    assert seen.take() == [("node-1", LATER)]
    assert seen.plan("node-1").pods["uid-1"].swap_max == str(2**28)


def test_the_same_profiles_are_no_news(seen: Seen) -> None:
    seen.profiles_changed({"p": named_profile()})
    seen.take()
    seen.profiles_changed({"p": named_profile()})
    assert seen.take() == []


def test_a_node_that_gets_another_label_gets_another_profile(seen: Seen) -> None:
    chosen = named_profile(selector=(compiled.LabelExpression("pool", "In", frozenset({"x"})),))
    seen.profiles_changed({"p": chosen})
    assert seen.planner.selection("node-1").profile.name == names.BUILT_IN_PROFILE
    seen.node_changed("node-1", node(), node(labels={"pool": "x"}))
    assert seen.planner.selection("node-1").profile == chosen


def test_the_answer_to_a_write_counts_until_the_watch_has_caught_up(seen: Seen) -> None:
    seen.state_changed("node-1", None, state_row(version=1))
    written = state_row(version=5, epoch=3)
    seen.wrote(written)
    seen.take()
    seen.state_changed("node-1", state_row(version=1), state_row(version=4))
    assert seen.inventory.state_of("node-1") == written
    assert seen.take() == [], "an overwritten state is no news"
    seen.state_changed("node-1", state_row(version=4), written)
    assert seen.take() == [], "nor is the echo"
    theirs = state_row(version=6, spec=state.StateSpec(profile_ref=state.ProfileRef("x"), epoch=9))
    seen.state_changed("node-1", written, theirs)
    assert seen.inventory.state_of("node-1") == theirs
    assert seen.take() == [("node-1", LATER)]
    assert seen.inventory.largest_epoch() == 9


def test_a_report_of_the_agent_in_an_answer_is_planned_with(seen: Seen) -> None:
    seen.state_changed("node-1", None, state_row(version=1))
    seen.take()
    found = state.Facts(cgroup_version=2, swap_controller=True, swap_bytes=2**30, memory_bytes=2**33)
    reported, written = state_row(version=2, facts=found), state_row(version=3, facts=found)
    seen.wrote(written)
    assert seen.take() == [("node-1", LATER)]
    seen.state_changed("node-1", state_row(version=1), reported)
    seen.state_changed("node-1", reported, written)
    assert seen.take() == [], "it was planned with already"


def test_an_old_answer_is_not_believed(seen: Seen) -> None:
    newest = state_row(version=7)
    seen.state_changed("node-1", None, newest)
    seen.wrote(state_row(version=6))
    assert seen.inventory.state_of("node-1") == newest


def test_a_status_that_only_reports_is_no_reason_to_plan(seen: Seen) -> None:
    seen.state_changed("node-1", None, state_row(version=1))
    seen.take()
    before = seen.reports
    seen.state_changed("node-1", state_row(version=1), state_row(version=2, observed=1, applied=True))
    assert seen.take() == []
    assert seen.reports > before


def test_a_deleted_state_is_planned_again(seen: Seen) -> None:
    seen.state_changed("node-1", None, state_row(version=1))
    seen.wrote(state_row(version=2))
    seen.take()
    seen.state_changed("node-1", state_row(version=1), None)
    assert seen.inventory.state_of("node-1") is None
    assert seen.take() == [("node-1", LATER)]


def test_a_recreated_state_outlives_late_news_of_the_old_ones_deletion(seen: Seen) -> None:
    old, new = state_row(version=1, uid="old"), state_row(version=5, uid="new")
    seen.state_changed("node-1", None, old)
    seen.inventory.lose_state("node-1", "old")
    assert seen.inventory.state_of("node-1") is None
    assert seen.wrote(new)
    seen.take()
    stale = state_row(version=2, uid="old")
    seen.state_changed("node-1", old, stale)
    seen.state_changed("node-1", stale, None)
    assert seen.inventory.state_of("node-1") == new
    assert seen.take() == []


def test_a_node_that_is_gone_is_looked_at_once_more(seen: Seen) -> None:
    seen.node_changed("node-1", node(), None)
    assert seen.take() == [("node-1", LATER)]
    assert list(seen.nodes) == ["node-2"]


def test_a_profile_that_changes_concerns_the_nodes_that_it_governs(seen: Seen) -> None:
    seen.node_changed("node-2", node("node-2"), node("node-2", labels={"pool": "x"}))
    everywhere = named_profile("everywhere")
    chosen = named_profile("chosen", selector=(compiled.LabelExpression("pool", "In", frozenset({"x"})),), priority=1)
    seen.profiles_changed({"everywhere": everywhere})
    for name in seen.nodes:
        seen.plan(name)
    seen.take()
    for found in (
        {"everywhere": everywhere, "chosen": chosen},
        {"everywhere": everywhere, "chosen": msgspec.structs.replace(chosen, generation=2)},
        {"everywhere": everywhere},
    ):
        seen.profiles_changed(found)
        assert set(seen.take()) == {("node-2", LATER)}


def heard(
    seen: Seen,
    name: str,
    named: compiled.Profile,
    *,
    generation: int = 1,
    observed: int = 1,
    degraded: str = "",
    proposed: compiled.Profile | None = None,
    cost: state.PreviewCost | None = None,
    **fields: Any,
) -> None:
    """The state of a node names a profile, and its agent has answered."""
    spec = state.StateSpec(profile_ref=state.ProfileRef(named.name, named.generation))
    old = seen.inventory.state_of(name)
    knew = old is not None and old.acted == spec.profile_ref
    row = state_row(
        name,
        version=1 + (old.version if old else 0),
        spec=spec,
        generation=generation,
        observed=observed,
        **({"acted": spec.profile_ref} if knew and observed else {}),
        applied=not degraded,
        degraded=degraded,
        preview=plan.reference(proposed) if proposed else None,
        cost=cost,
    )
    row = msgspec.structs.replace(row, **fields)
    seen.state_changed(name, old, row)


def answered(seen: Seen, name: str, pods: int = 0) -> None:
    """The agent of a node that follows LIMITED says what NONE would take."""
    cost = state.PreviewCost(plan.reference(NONE), pods, 2**20 * pods)
    heard(seen, name, LIMITED, proposed=NONE, cost=cost)


def advance(seen: Seen) -> None:
    targets = {found.name: found for found in map(governing(seen), seen.nodes)}
    for name, found in rollouts(seen).items():
        seen.admit(targets[name], found.next)


def governing(seen: Seen) -> Callable[[str], compiled.Profile]:
    return lambda name: seen.planner.selection(name).profile


LIMITED = named_profile(behavior=names.Behavior.LIMITED_SWAP, max_unavailable="1")
NONE = named_profile(generation=2, behavior=names.Behavior.NO_SWAP, max_unavailable="1")
HISTORY = {state.ProfileRef("p", 1): LIMITED}


def follows(seen: Seen) -> dict[str, int]:
    return {name: seen.plan(name).profile_ref.generation for name in seen.nodes}


@pytest.fixture
def waves(seen: Seen) -> Seen:
    """Two nodes that follow generation 1, when generation 2 appears."""
    seen.profiles_changed({"p": LIMITED})
    for name in seen.nodes:
        heard(seen, name, LIMITED)
    seen.profiles_changed({"p": NONE}, HISTORY)
    for name in seen.nodes:
        answered(seen, name)
    advance(seen)
    seen.take()
    return seen


def test_a_node_continues_as_before_until_it_is_admitted(waves: Seen) -> None:
    assert follows(waves) == {"node-1": 2, "node-2": 1}
    assert waves.planner.in_force("node-2") == LIMITED
    heard(waves, "node-1", NONE, generation=2, observed=1)
    advance(waves)
    assert follows(waves) == {"node-1": 2, "node-2": 1}, "it has not answered"
    heard(waves, "node-1", NONE, generation=2, observed=2)
    waves.take()
    advance(waves)
    assert waves.take() == [("node-2", LATER)]
    assert follows(waves) == {"node-1": 2, "node-2": 2}


def test_a_node_that_does_worse_keeps_others_from_it(waves: Seen) -> None:
    heard(waves, "node-1", NONE, generation=2, observed=2, degraded="WriteFailed: no")
    advance(waves)
    assert follows(waves) == {"node-1": 2, "node-2": 1}
    assert rollouts(waves)["p"].stopped_by == ("node-1",)
    heard(waves, "node-1", NONE, generation=2, observed=2)
    advance(waves)
    assert follows(waves) == {"node-1": 2, "node-2": 2}


def test_a_profile_that_disappears_in_the_middle_leaves_all_nodes_at_once(waves: Seen) -> None:
    heard(waves, "node-1", NONE, generation=2, observed=2)
    waves.profiles_changed({})
    assert {waves.plan(name).profile_ref.name for name in waves.nodes} == {names.BUILT_IN_PROFILE}


def end(found: Seen) -> None:
    """Have those leave the profile p whose turn it is, as the leader does."""
    ending = found.planner.ending["p"]
    leaving = progress.leaving(found.planner, ending)
    found.admit(ending, progress.end_of(found.planner, ending, leaving).next)


def test_a_profile_that_is_deleted_leaves_its_nodes_in_waves(waves: Seen) -> None:
    for name in waves.nodes:
        heard(waves, name, LIMITED)
    waves.profiles_changed({}, HISTORY, {"p": msgspec.structs.replace(NONE, generation=3)})
    assert follows(waves) == {"node-1": 1, "node-2": 1}, "until its turn a node follows it as before"
    end(waves)
    assert waves.plan("node-1").profile_ref.name == names.BUILT_IN_PROFILE
    assert waves.plan("node-2").profile_ref == plan.reference(LIMITED)
    heard(waves, "node-1", compiled.BUILT_IN, generation=2, observed=1)
    waves.take()
    end(waves)
    assert waves.plan("node-2").profile_ref == plan.reference(LIMITED), "the first one has not answered"
    heard(waves, "node-1", compiled.BUILT_IN, generation=2, observed=2, degraded="WriteFailed: no")
    end(waves)
    assert waves.plan("node-2").profile_ref == plan.reference(LIMITED), "nor while it does worse"
    heard(waves, "node-1", compiled.BUILT_IN, generation=2, observed=2)
    end(waves)
    assert waves.plan("node-2").profile_ref.name == names.BUILT_IN_PROFILE


def test_who_leads_in_the_middle_of_an_end_waits_for_those_under_way(waves: Seen) -> None:
    heard(waves, "node-2", LIMITED)
    waves.profiles_changed({}, HISTORY, {"p": msgspec.structs.replace(NONE, generation=3)})
    acted = plan.reference(LIMITED)
    heard(waves, "node-1", compiled.BUILT_IN, generation=2, observed=1, acted=acted)
    end(waves)
    assert waves.plan("node-2").profile_ref == acted
    heard(waves, "node-1", compiled.BUILT_IN, generation=2, observed=2)
    end(waves)
    assert waves.plan("node-2").profile_ref.name == names.BUILT_IN_PROFILE


def test_nodes_that_another_profile_takes_over_wait_for_its_turn(waves: Seen) -> None:
    other = named_profile("q", max_unavailable="1")
    for name in waves.nodes:
        heard(waves, name, LIMITED)
    waves.profiles_changed({"q": other}, HISTORY, {"p": msgspec.structs.replace(NONE, generation=3)})
    assert progress.leaving(waves.planner, waves.planner.ending["p"]) == []
    assert follows(waves) == {"node-1": 1, "node-2": 1}


def test_once_it_is_gone_nobody_waits_to_leave_it(waves: Seen) -> None:
    for name in waves.nodes:
        heard(waves, name, LIMITED)
    waves.profiles_changed({}, HISTORY, {"p": msgspec.structs.replace(NONE, generation=3)})
    waves.take()
    waves.profiles_changed({})
    assert {name for name, _ in waves.take()} == {"node-1", "node-2"}
    assert {waves.plan(name).profile_ref.name for name in waves.nodes} == {names.BUILT_IN_PROFILE}


def test_agents_that_are_behind_with_pods_are_waited_for_by_a_new_leader_too(seen: Seen) -> None:
    """A new process finds this in a rollout while pods are created and deleted."""
    for name in ("node-3", "node-4"):
        seen.node_changed(name, None, node(name))
    spec = {named: state.StateSpec(profile_ref=plan.reference(named)) for named in (LIMITED, NONE)}
    for number, name in enumerate(seen.nodes):
        named = LIMITED if number else NONE
        cost = None if number == 0 else state.PreviewCost(plan.reference(NONE))
        asked = None if number == 0 else plan.reference(NONE)
        row = state_row(name, spec=spec[named], generation=9, observed=8, acted=spec[named].profile_ref, applied=True)
        seen.state_changed(name, None, msgspec.structs.replace(row, preview=asked, cost=cost))
    seen.profiles_changed({"p": NONE}, HISTORY)
    assert rollouts(seen)["p"].next == ("node-2",)
    assert governed(seen)["node-1"].applied


def test_a_node_that_returns_waits_for_another_admission(waves: Seen) -> None:
    heard(waves, "node-1", NONE, generation=2, observed=2)
    advance(waves)
    heard(waves, "node-2", NONE, generation=2, observed=2)
    assert follows(waves) == {"node-1": 2, "node-2": 2}
    for name in waves.nodes:
        heard(waves, name, compiled.BUILT_IN, generation=3, observed=3)
    assert {waves.plan(name).profile_ref.name for name in waves.nodes} == {names.BUILT_IN_PROFILE}
    for name in waves.nodes:
        cost = state.PreviewCost(plan.reference(NONE))
        heard(waves, name, compiled.BUILT_IN, generation=4, observed=4, proposed=NONE, cost=cost)
    advance(waves)
    assert follows(waves) == {"node-1": 2, "node-2": compiled.BUILT_IN.generation}


def test_a_forgotten_generation_is_not_waited_for(seen: Seen) -> None:
    seen.profiles_changed({"p": LIMITED})
    for name in seen.nodes:
        heard(seen, name, LIMITED)
    seen.profiles_changed({"p": NONE})
    assert follows(seen) == {"node-1": 2, "node-2": 2}


def test_another_profile_takes_nodes_over_in_waves(waves: Seen) -> None:
    other = named_profile("q", priority=200, max_unavailable="1")
    waves.profiles_changed({"p": NONE, "q": other}, HISTORY)
    for name in waves.nodes:
        heard(waves, name, LIMITED, proposed=other, cost=state.PreviewCost(plan.reference(other)))
    advance(waves)
    assert {name: waves.plan(name).profile_ref.name for name in waves.nodes} == {
        "node-1": "q",
        "node-2": "p",
    }


def test_nothing_moves_before_it_is_known_what_it_takes(seen: Seen) -> None:
    seen.profiles_changed({"p": LIMITED})
    used = pod(container(request=2**30))
    seen.pod_changed("default/pod", None, used)
    for name in seen.nodes:
        heard(seen, name, LIMITED)
    seen.profiles_changed({"p": NONE}, HISTORY)
    assert seen.plan("node-1").preview == state.ProfilePreview(plan.reference(NONE), {"uid-1": "0"})
    assert seen.plan("node-2").preview == state.ProfilePreview(plan.reference(NONE), {})
    advance(seen)
    assert follows(seen) == {"node-1": 1, "node-2": 1}
    assert rollouts(seen)["p"].asking == ("node-1", "node-2")
    answered(seen, "node-1", pods=3)
    found = rollouts(seen)["p"]
    assert (found.asking, found.next, found.taken) == (("node-2",), ("node-1",), rollout.Taken(1, 3, 3 * 2**20))
    advance(seen)
    assert follows(seen) == {"node-1": 2, "node-2": 1}
    assert seen.plan("node-1").preview is None


def test_nodes_whose_pods_use_swap_are_held_if_asked(seen: Seen) -> None:
    seen.profiles_changed({"p": LIMITED})
    for name in seen.nodes:
        heard(seen, name, LIMITED)
    seen.profiles_changed({"p": msgspec.structs.replace(NONE, hold=True)}, HISTORY)
    answered(seen, "node-1", pods=1)
    answered(seen, "node-2")
    advance(seen)
    assert follows(seen) == {"node-1": 1, "node-2": 2}
    assert rollouts(seen)["p"].held == ("node-1",)
    answered(seen, "node-1")
    heard(seen, "node-2", NONE, generation=2, observed=2)
    advance(seen)
    assert follows(seen) == {"node-1": 2, "node-2": 2}


def test_agents_that_do_not_know_the_question_are_not_waited_for(seen: Seen) -> None:
    seen.profiles_changed({"p": LIMITED})
    heard(seen, "node-1", LIMITED)
    seen.profiles_changed({"p": NONE}, HISTORY)
    heard(seen, "node-1", LIMITED, proposed=NONE, generation=2, observed=1)
    assert rollouts(seen)["p"].asking == ("node-1",)
    heard(seen, "node-1", LIMITED, proposed=NONE, generation=2, observed=2)
    assert rollouts(seen)["p"].next == ("node-1",)


def test_agents_that_are_silent_for_long_are_passed_over(seen: Seen) -> None:
    seen.profiles_changed({"p": LIMITED})
    heard(seen, "node-1", LIMITED)
    seen.profiles_changed({"p": NONE}, HISTORY)
    heard(seen, "node-1", LIMITED, proposed=NONE, generation=2, observed=1)
    assert rollouts(seen, {("node-1", True)})["p"].next == ()
    assert rollouts(seen, {("node-1", False)})["p"].next == ("node-1",)


def test_nothing_is_waited_for_if_no_agent_ever_answered(seen: Seen) -> None:
    seen.profiles_changed({"p": LIMITED})
    for name in seen.nodes:
        heard(seen, name, LIMITED, observed=0)
    seen.profiles_changed({"p": NONE}, HISTORY)
    assert follows(seen) == {"node-1": 2, "node-2": 2}


def test_a_turn_is_for_the_profile_as_it_was_judged(seen: Seen) -> None:
    seen.profiles_changed({"p": LIMITED})
    for name in seen.nodes:
        heard(seen, name, LIMITED)
    seen.profiles_changed({"p": NONE}, HISTORY)
    for name in seen.nodes:
        answered(seen, name)
    judged = rollouts(seen)["p"].next
    assert judged == ("node-1",)
    third = named_profile(generation=3, behavior=names.Behavior.NO_SWAP, hold=True)
    history = {**HISTORY, plan.reference(NONE): NONE}
    seen.profiles_changed({"p": third}, history)
    seen.admit(NONE, judged)
    assert follows(seen) == {"node-1": 1, "node-2": 1}, "nobody asked what that one takes"
    heard(seen, "node-1", LIMITED, proposed=third, cost=state.PreviewCost(plan.reference(third)))
    assert rollouts(seen)["p"].next == ("node-1",)
    seen.admit(NONE, judged)
    assert follows(seen) == {"node-1": 1, "node-2": 1}, "nobody has said what that one takes"
    seen.profiles_changed({"p": msgspec.structs.replace(NONE, uid="of a namesake")}, history)
    seen.admit(NONE, judged)
    assert follows(seen) == {"node-1": 1, "node-2": 1}


def test_no_node_is_reconciled_for_a_turn_of_an_earlier_generation(seen: Seen) -> None:
    seen.profiles_changed({"p": LIMITED})
    for name in seen.nodes:
        heard(seen, name, LIMITED)
    seen.profiles_changed({"p": named_profile(generation=3, behavior=names.Behavior.NO_SWAP)}, HISTORY)
    seen.dirty.clear()
    seen.admit(NONE, ["node-1"], frozenset({("node-1", False), ("node-2", False)}))
    assert seen.dirty == []


def test_a_node_that_became_degraded_since_it_was_judged_is_judged_again(waves: Seen) -> None:
    heard(waves, "node-1", NONE, generation=2, observed=2)
    judged = rollouts(waves)["p"].next
    assert judged == ("node-2",)
    heard(waves, "node-1", NONE, generation=2, observed=2, degraded="WriteFailed: no")
    waves.admit(NONE, judged)
    assert follows(waves) == {"node-1": 2, "node-2": 1}


def test_a_turn_is_forgotten_with_the_term(waves: Seen) -> None:
    assert follows(waves) == {"node-1": 2, "node-2": 1}
    waves.cluster.end_term()
    assert follows(waves) == {"node-1": 1, "node-2": 1}
    advance(waves)  # one that is late, of the term that ended
    waves.cluster.begin_term(Admissions())
    assert follows(waves) == {"node-1": 1, "node-2": 1}
    advance(waves)
    assert follows(waves) == {"node-1": 2, "node-2": 1}


def test_a_turn_is_gone_once_another_profile_governs_the_node(waves: Seen) -> None:
    turns = waves.planner.admissions.turns
    advance(waves)
    assert turns == {"node-1": NONE}
    other = named_profile("q", priority=200, max_unavailable="1")
    waves.profiles_changed({"p": NONE, "q": other}, HISTORY)
    waves.profiles_changed({"p": NONE}, HISTORY)
    assert turns == {}
    assert follows(waves) == {"node-1": 1, "node-2": 1}


def deleted(seen: Seen, *names: str) -> None:
    for name in names:
        seen.state_changed(name, seen.inventory.state_of(name), None)


def made_anew(seen: Seen, name: str) -> states.StateRow:
    """As the controller does where there is no state."""
    spec = seen.plan(name)
    proposed = spec.preview.profile_ref if spec.preview else None
    row = state_row(name, version=100, uid="made anew", spec=spec, preview=proposed)
    seen.wrote(row)
    return row


def test_a_state_that_is_deleted_in_a_rollout_is_recreated_with_what_its_node_had(waves: Seen) -> None:
    heard(waves, "node-1", NONE, generation=2, observed=1)  # its agent has yet to answer
    deleted(waves, "node-1", "node-2")
    assert follows(waves) == {"node-1": 2, "node-2": 1}
    assert progress.generations(waves.planner) == {"p": {1: 1, 2: 1}}, "the earlier report must not be forgotten"
    advance(waves)
    assert follows(waves) == {"node-1": 2, "node-2": 1}, "the wave is full"
    for name in waves.nodes:
        made_anew(waves, name)
    advance(waves)
    assert follows(waves) == {"node-1": 2, "node-2": 1}
    deleted(waves, "node-1", "node-2")
    assert follows(waves) == {"node-1": 2, "node-2": 1}, "deleted once more, before an agent answered"
    for name in waves.nodes:
        made_anew(waves, name)
    heard(waves, "node-1", NONE, generation=2, observed=2)
    advance(waves)
    assert follows(waves) == {"node-1": 2, "node-2": 2}, "the next turn"
    made = made_anew(waves, "node-2")
    assert rollouts(waves)["p"].waiting == ("node-2",)
    done = msgspec.structs.replace(made, version=101, observed=1, acted=made.profile, facts=FOUND)
    waves.state_changed("node-2", made, done)
    assert rollouts(waves)["p"].waiting == ()


def test_a_node_that_does_worse_stops_a_rollout_while_its_state_is_deleted(waves: Seen) -> None:
    heard(waves, "node-1", NONE, generation=2, observed=2, degraded="WriteFailed: no")
    deleted(waves, "node-1")
    assert rollouts(waves)["p"].stopped_by == ("node-1",)
    made_anew(waves, "node-1")
    assert rollouts(waves)["p"].stopped_by == ("node-1",)


def test_reports_of_a_deleted_state_are_dropped_with_its_node(waves: Seen) -> None:
    deleted(waves, "node-1", "node-2")
    waves.node_changed("node-2", None, node("node-2", uid="another machine"))
    assert follows(waves) == {"node-1": 2, "node-2": 2}
    waves.node_changed("node-2", None, None)
    assert list(waves.inventory.last_reports) == ["node-1"]


def test_the_plan_of_a_deleted_state_is_not_kept(waves: Seen) -> None:
    deleted(waves, "node-1", "node-2")
    kept = [waves.inventory.known(name).standing for name in waves.nodes]
    assert [row.spec for row in kept if row is not None] == [b"", b""]


def plans(seen: Seen, name: str) -> list[str]:
    return seen.plan(name).degraded_before


def test_earlier_problems_are_in_the_state_and_stop_nobody(seen: Seen) -> None:
    seen.profiles_changed({"p": LIMITED})
    for name in seen.nodes:
        heard(seen, name, LIMITED, degraded="Polling: no watch")
    assert plans(seen, "node-1") == []
    seen.profiles_changed({"p": NONE}, HISTORY)
    cost = state.PreviewCost(plan.reference(NONE))
    for name in seen.nodes:
        heard(seen, name, LIMITED, degraded="Polling: no watch", proposed=NONE, cost=cost)
    advance(seen)
    assert (plans(seen, "node-1"), plans(seen, "node-2")) == (["Polling"], [])
    row = state_row(
        "node-1",
        version=9,
        spec=seen.plan("node-1"),
        generation=2,
        observed=2,
        degraded="Polling: another watch",
    )
    seen.wrote(row)
    assert plans(seen, "node-1") == ["Polling"], "it stays"
    assert rollouts(seen)["p"].next == ("node-2",)
    seen.wrote(msgspec.structs.replace(row, version=10, degraded="StateRefused: no"))
    assert plans(seen, "node-1") == ["Polling"], "the present problem is new"
    assert rollouts(seen)["p"].stopped_by == ("node-1",)
    seen.profiles_changed({})
    assert plans(seen, "node-1") == []


def test_settings_that_the_profile_before_had_and_the_node_refused_stop_nobody(seen: Seen) -> None:
    unsafe = NodeOptions(kernel=((MIN_FREE, "99999999"),))
    first = msgspec.structs.replace(LIMITED, node=unsafe)
    later = msgspec.structs.replace(NONE, node=unsafe)
    seen.profiles_changed({"p": first})
    for name in seen.nodes:
        heard(seen, name, first)
    assert governed(seen)["node-1"].refused.startswith("vm.min_free_kbytes: ")
    seen.profiles_changed({"p": later}, {plan.reference(first): first})
    cost = state.PreviewCost(plan.reference(later))
    for name in seen.nodes:
        heard(seen, name, first, proposed=later, cost=cost)
    advance(seen)
    assert plans(seen, "node-1") == ["SettingsRefused"]
    heard(seen, "node-1", later, before=("SettingsRefused",))
    assert rollouts(seen)["p"].stopped_by == ()
    heard(seen, "node-1", later, before=())
    assert rollouts(seen)["p"].stopped_by == ("node-1",), "a node that refuses the new plan stops the rollout"


def test_that_an_agent_did_not_answer_before_stands_in_the_state(seen: Seen) -> None:
    seen.profiles_changed({"p": LIMITED})
    heard(seen, "node-1", LIMITED, degraded="StateRefused: no")
    seen.profiles_changed({"p": NONE}, HISTORY)
    overdue = {("node-1", False)}
    seen.admit(NONE, rollouts(seen, overdue)["p"].next, overdue)
    assert plans(seen, "node-1") == ["StateRefused", "NoAnswer"]


def test_which_generations_nodes_follow(waves: Seen) -> None:
    heard(waves, "node-1", NONE, generation=2, observed=2)
    assert progress.generations(waves.planner) == {"p": {1: 1, 2: 1}}


def governed(seen: Seen) -> dict[str, progress.Governed]:
    views = (seen.planner.view(name) for name, _ in progress.selections(seen.planner))
    return {view.node.name: progress.governed(view) for view in views if view is not None}


def test_a_node_has_applied_a_profile_once_its_agent_saw_a_plan_that_names_it(seen: Seen) -> None:
    spec = state.StateSpec(profile_ref=state.ProfileRef("p", 1))
    seen.profiles_changed({"p": named_profile()})
    seen.state_changed("node-1", None, state_row(version=1, generation=4, observed=4, applied=True))
    assert not governed(seen)["node-1"].applied, "that plan was made from another profile"
    seen.wrote(state_row(version=2, spec=spec, generation=5, observed=4, applied=True))
    assert not governed(seen)["node-1"].applied, "the agent has not seen it"
    seen.state_changed("node-1", None, state_row(version=3, spec=spec, generation=5, observed=5, applied=True))
    assert governed(seen)["node-1"].applied
    behind = state_row(version=4, spec=spec, generation=6, observed=5, acted=spec.profile_ref, applied=True)
    seen.wrote(behind)
    assert governed(seen)["node-1"].applied, "a pod more is no reason to say that the profile is not applied"
    assert not governed(seen)["node-2"].applied


def test_nodes_without_a_profile_are_nobodys(seen: Seen) -> None:
    assert governed(seen) == {}


def test_why_a_node_has_not_applied_its_profile(seen: Seen) -> None:
    spec = state.StateSpec(profile_ref=state.ProfileRef("p", 1))
    seen.profiles_changed({"p": named_profile()})

    def pending(**fields: Any) -> str:
        seen.state_changed("node-1", seen.inventory.state_of("node-1"), state_row(**fields))
        return governed(seen)["node-1"].pending

    assert governed(seen)["node-1"].pending == node_verdict.NOT_WRITTEN
    assert pending(version=1) == node_verdict.NOT_WRITTEN, "that is another profile's"
    assert pending(version=2, spec=spec, generation=2, observed=1) == node_verdict.NOT_SEEN
    told = {"version": 3, "spec": spec, "generation": 2, "observed": 2}
    assert pending(**told) == node_verdict.NOT_REPORTED
    assert pending(**{**told, "version": 4}, unapplied="Draining: 1 cgroup") == "Draining: 1 cgroup"
    assert pending(**{**told, "version": 5}, applied=True) == ""


def test_an_agent_outside_of_pods_counts_once_it_has_observed_a_state(seen: Seen) -> None:
    seen.profiles_changed({"p": named_profile()})
    assert not governed(seen)["node-1"].has_agent
    seen.state_changed("node-1", None, state_row(version=1))
    assert not governed(seen)["node-1"].has_agent
    seen.state_changed("node-1", state_row(version=1), state_row(version=2, generation=9, observed=3))
    assert governed(seen)["node-1"].has_agent


def test_an_agent_in_a_pod_counts_while_a_pod_of_it_is_ready() -> None:
    seen = Seen("swapwarden-system")
    seen.node_changed("node-1", None, node())
    seen.profiles_changed({"p": named_profile()})
    seen.state_changed("node-1", None, state_row(observed=1))
    place = {"namespace": "swapwarden-system", "agent": True}
    old, new = pod(container(), name="old", **place), pod(container(), name="new", uid="2", **place)
    unready = pod(container(), name="old", namespace="swapwarden-system")

    def told(key: str, before: pods.PodRow | None, after: pods.PodRow | None) -> tuple[bool, bool]:
        """Whether the node has an agent then, and whether profiles were said to be worth a look."""
        reports = seen.reports
        seen.pod_changed(key, before, after)
        return governed(seen)["node-1"].has_agent, seen.reports > reports

    assert not governed(seen)["node-1"].has_agent, "an old report does not count now"
    assert told("swapwarden-system/old", None, unready) == (False, False)
    assert told("swapwarden-system/old", unready, old) == (True, True)
    assert told("swapwarden-system/new", None, new) == (True, True), "an update with a surge"
    assert told("swapwarden-system/old", old, None) == (True, True)
    assert told("swapwarden-system/new", new, None) == (False, True)
    elsewhere = pod(container(), namespace="default", agent=True)
    assert told("default/pod", None, elsewhere) == (False, False), "anyone can label pods"


def test_what_an_agent_found_on_an_earlier_node_of_the_name_counts_for_nothing(seen: Seen) -> None:
    found = state.Facts(cgroup_version=1, swap_controller=False, swap_bytes=2**40, memory_bytes=2**33)
    spec = state.StateSpec(profile_ref=state.ProfileRef("p", 1))
    row = state_row(spec=spec, observed=1, applied=True, settled=True, facts=found, degraded="Polling: no")
    seen.profiles_changed({"p": named_profile()})
    seen.state_changed("node-1", None, row)
    assert (seen.planner.facts("node-1").swap_bytes, governed(seen)["node-1"].applied) == (2**40, True)
    seen.take()
    seen.node_changed("node-1", node(), node(uid="new"))
    assert seen.take() == [("node-1", LATER)]
    assert (seen.planner.facts("node-1").swap_bytes, seen.planner.facts("node-1").compatible) == (2**30, True)
    assert governed(seen)["node-1"] == progress.Governed(
        "node-1", applied=False, degraded="", pending=node_verdict.NOT_WRITTEN, has_agent=False
    )
    mine = state_row(version=9, uid="mine", owner="new", spec=spec, observed=1, applied=True)
    seen.state_changed("node-1", row, None)
    seen.state_changed("node-1", None, mine)
    assert governed(seen)["node-1"].applied


TEAM = (compiled.LabelExpression("team", "In", frozenset({"a"})),)
WEB = (compiled.LabelExpression("app", "In", frozenset({"web"})),)


def overriding(*entries: compiled.Override, **fields: Any) -> dict[str, compiled.Profile]:
    return {"p": named_profile(overrides=entries, **fields)}


@pytest.mark.parametrize(
    ("entry", "fields", "delay"),
    [
        (make_override(pods=WEB, policy=names.Policy.DISABLED), {"labels": "app=web"}, 0.0),
        (make_override(pods=WEB, policy=names.Policy.DISABLED), {"labels": "app=db"}, LATER),
        (make_override(pods=WEB, swap_limit=1), {"labels": "app=web"}, LATER),
        (make_override(namespaces=TEAM, policy=names.Policy.DISABLED), {}, LATER),
        (make_override(namespaces=TEAM, policy=names.Policy.DISABLED), {"node": "unknown"}, LATER),
    ],
)
def test_a_pod_that_an_override_disables_is_not_kept_waiting(
    seen: Seen, entry: compiled.Override, fields: dict[str, str], delay: float
) -> None:
    seen.profiles_changed(overriding(entry))
    seen.take()
    row = pod(container(), **fields)
    seen.pod_changed("default/pod", None, row)
    assert seen.take() == [(row.node, delay)]


def test_a_node_whose_profile_asks_for_namespaces_waits_until_they_are_known(seen: Seen) -> None:
    own = (compiled.LabelExpression("pool", "Exists"),)
    found = overriding(make_override(namespaces=TEAM, policy=names.Policy.DISABLED), selector=own)
    seen.profiles_changed(found)
    assert seen.planner.needs_namespaces()
    seen.node_changed("node-1", node(), node(labels={"pool": "x"}))
    seen.pod_changed("default/pod", None, pod(container()))
    seen.take()
    assert seen.lacks_namespaces("node-1")
    assert not seen.lacks_namespaces("node-2")
    seen.namespace_changed("default", None, {"team": "a"})
    assert seen.take() == [], "one by one they say nothing"
    seen.namespaces_known({"default": {"team": "a"}})
    assert seen.take() == [("node-1", LATER)]
    assert not seen.lacks_namespaces("node-1")
    assert seen.plan("node-1").pods["uid-1"].swap_max == "0"
    seen.namespaces_known(None)
    assert seen.take() == []
    assert seen.lacks_namespaces("node-1")
    seen.planner.restoring = True
    assert not seen.lacks_namespaces("node-1"), "earlier values can be restored all the same"


def test_a_namespace_that_changes_concerns_nodes_with_its_pods(seen: Seen) -> None:
    seen.profiles_changed(overriding(make_override(namespaces=TEAM, swap_limit=1)))
    labels: dict[str, dict[str, str]] = {"default": {}, "shop": {}}
    seen.namespaces_known(labels)
    seen.pod_changed("default/a", None, pod(container()))
    seen.pod_changed("shop/b", None, pod(container(), node="node-2", namespace="shop"))
    seen.pod_changed("shop/c", None, pod(container(), node="unknown", namespace="shop", uid="3"))
    seen.take()
    labels["shop"] = {"team": "a"}
    seen.namespace_changed("shop", {"team": "b"}, {"team": "c"})
    assert seen.take() == [], "no override distinguishes them"
    seen.namespace_changed("shop", {"team": "b"}, {"team": "a"})
    assert seen.take() == [("node-2", LATER)]
    assert seen.plan("node-2").pods["uid-1"].reason == names.Reason.OVERRIDE_LIMIT
    for old, new in ((None, {"x": "y"}), ({"x": "y"}, None)):
        seen.namespace_changed("shop", old, new)
        assert seen.take() == [("node-2", LATER)], "one that is created, or deleted"
        seen.namespace_changed("empty", old, new)
        assert seen.take() == []
    seen.profiles_changed({"p": named_profile()})
    seen.take()
    assert not seen.planner.needs_namespaces()
    seen.namespace_changed("shop", {"team": "b"}, {"team": "a"})
    assert seen.take() == [], "no profile asks"


def test_what_a_profile_said_before_asks_for_namespaces_while_a_node_follows_it(seen: Seen) -> None:
    [asking] = overriding(make_override(namespaces=TEAM, policy=names.Policy.DISABLED)).values()
    history = {plan.reference(asking): asking}
    seen.profiles_changed({"p": named_profile(generation=2)}, history)
    assert not seen.planner.needs_namespaces()
    heard(seen, "node-1", asking)
    assert seen.planner.needs_namespaces()
    assert seen.lacks_namespaces("node-1"), "though the next generation asks for none"
    heard(seen, "node-1", named_profile(generation=2))
    assert not seen.planner.needs_namespaces()


def test_changes_are_not_asked_whether_there_are_any() -> None:
    with pytest.raises(TypeError, match="applied"):
        bool(cluster.Changes())


def test_nobody_drops_changes() -> None:
    giving = {
        name
        for name, found in vars(cluster.Cluster).items()
        if "Changes" in str(getattr(found, "__annotations__", {}).get("return", ""))
    }
    assert len(giving) > 8
    dropped = [
        (file.name, node.lineno, node.value.func.attr)
        for file in pathlib.Path(cluster.__file__).parent.rglob("*.py")
        for node in ast.walk(ast.parse(file.read_text(encoding="utf-8")))
        if isinstance(node, ast.Expr)
        and isinstance(node.value, ast.Call)
        and isinstance(node.value.func, ast.Attribute)
        and node.value.func.attr in giving
        and ast.unparse(node.value.func.value).endswith("_known")
    ]
    assert dropped == []
