from __future__ import annotations

import msgspec
import pytest
from swapwarden.api import names, state
from swapwarden.controller import cluster
from swapwarden.policy import profiles

from tests.unit.controller.objects import node, profile, state_row
from tests.unit.policy.rows import container, pod


class Seen:
    """A cluster and what it said must be looked at."""

    def __init__(self) -> None:
        self.dirty: list[tuple[str, float]] = []
        self.reports = 0
        self.cluster = cluster.Cluster(lambda name, delay: self.dirty.append((name, delay)), self.reported)

    def reported(self) -> None:
        self.reports += 1

    def take(self) -> list[tuple[str, float]]:
        taken, self.dirty = self.dirty, []
        return taken


@pytest.fixture
def seen() -> Seen:
    found = Seen()
    found.cluster.node_changed("node-1", None, node())
    found.cluster.node_changed("node-2", None, node("node-2"))
    found.take()
    return found


LATER = cluster.COALESCE_SECONDS


def test_pods_are_found_by_their_node(seen: Seen) -> None:
    bound, other = pod(container(), name="a"), pod(container(), name="b", node="node-2")
    seen.cluster.pod_changed("default/a", None, bound)
    seen.cluster.pod_changed("default/b", None, other)
    assert seen.take() == [("node-1", LATER), ("node-2", LATER)]
    assert list(seen.cluster.pods_on("node-1")) == [bound]
    seen.cluster.pod_changed("default/a", bound, None)
    assert seen.take() == [("node-1", LATER)]
    assert list(seen.cluster.pods_on("node-1")) == []


def test_a_pod_that_is_not_bound_yet_concerns_no_node(seen: Seen) -> None:
    waiting, bound = pod(container(), node=""), pod(container())
    seen.cluster.pod_changed("default/pod", None, waiting)
    assert seen.take() == []
    seen.cluster.pod_changed("default/pod", waiting, bound)
    assert seen.take() == [("node-1", LATER)]
    seen.cluster.pod_changed("default/pod", bound, None)
    seen.cluster.pod_changed("default/other", waiting, None)
    assert list(seen.cluster.pods_on("node-1")) == []


def test_a_pod_made_anew_on_another_node_moves(seen: Seen) -> None:
    old, new = pod(container(), uid="1"), pod(container(), uid="2", node="node-2")
    seen.cluster.pod_changed("default/pod", None, old)
    seen.take()
    seen.cluster.pod_changed("default/pod", old, new)
    assert {name for name, _ in seen.take()} == {"node-1", "node-2"}
    assert list(seen.cluster.pods_on("node-1")) == []
    assert list(seen.cluster.pods_on("node-2")) == [new]


@pytest.mark.parametrize("policy", ["Disabled", "Whatever"])
def test_a_pod_that_may_not_swap_is_not_kept_waiting(seen: Seen, policy: str) -> None:
    seen.cluster.pod_changed("default/pod", None, pod(container(), policy=policy))
    assert seen.take() == [("node-1", 0.0)]


def test_the_plan_follows_profile_facts_and_pods(seen: Seen) -> None:
    seen.cluster.pod_changed("default/pod", None, pod(container(request=2**30)))
    assert seen.cluster.plan("node-1").profile.name == names.BUILT_IN_PROFILE
    seen.cluster.profiles_changed({"p": profile(behavior=names.Behavior.LIMITED_SWAP)})
    assert set(seen.take()) == {("node-1", LATER), ("node-2", LATER)}
    assert seen.cluster.plan("node-1").pods["uid-1"].swap_max == str(2**27)
    found = state.Facts(cgroup_version=2, swap_controller=True, swap_bytes=2**31, memory_bytes=2**33)
    seen.cluster.state_changed("node-1", None, state_row(facts=found))
    assert seen.take() == [("node-1", LATER)]
    assert seen.cluster.plan("node-1").pods["uid-1"].swap_max == str(2**28)


def test_the_same_profiles_are_no_news(seen: Seen) -> None:
    seen.cluster.profiles_changed({"p": profile()})
    seen.take()
    seen.cluster.profiles_changed({"p": profile()})
    assert seen.take() == []


def test_a_node_that_gets_another_label_gets_another_profile(seen: Seen) -> None:
    chosen = profile(selector=(profiles.Requirement("pool", "In", frozenset({"x"})),))
    seen.cluster.profiles_changed({"p": chosen})
    assert seen.cluster.selection("node-1").profile.name == names.BUILT_IN_PROFILE
    seen.cluster.node_changed("node-1", node(), node(labels={"pool": "x"}))
    assert seen.cluster.selection("node-1").profile == chosen


def test_the_answer_to_a_write_counts_until_the_watch_has_caught_up(seen: Seen) -> None:
    seen.cluster.state_changed("node-1", None, state_row(version=1))
    written = state_row(version=5, epoch=3)
    seen.cluster.wrote(written)
    seen.take()
    seen.cluster.state_changed("node-1", state_row(version=1), state_row(version=4))
    assert seen.cluster.state_of("node-1") == written
    assert seen.take() == [], "what was written over is no news"
    seen.cluster.state_changed("node-1", state_row(version=4), written)
    assert seen.take() == [], "nor is the echo"
    theirs = state_row(version=6, spec=state.StateSpec(profile=state.ProfileRef("x"), epoch=9))
    seen.cluster.state_changed("node-1", written, theirs)
    assert seen.cluster.state_of("node-1") == theirs
    assert seen.take() == [("node-1", LATER)]
    assert seen.cluster.largest_epoch() == 9


def test_an_old_answer_is_not_believed(seen: Seen) -> None:
    newest = state_row(version=7)
    seen.cluster.state_changed("node-1", None, newest)
    seen.cluster.wrote(state_row(version=6))
    assert seen.cluster.state_of("node-1") == newest


def test_a_status_that_only_reports_is_no_reason_to_plan(seen: Seen) -> None:
    seen.cluster.state_changed("node-1", None, state_row(version=1))
    seen.take()
    before = seen.reports
    seen.cluster.state_changed("node-1", state_row(version=1), state_row(version=2, observed=1, applied=True))
    assert seen.take() == []
    assert seen.reports > before


def test_a_deleted_state_is_planned_again(seen: Seen) -> None:
    seen.cluster.state_changed("node-1", None, state_row(version=1))
    seen.cluster.wrote(state_row(version=2))
    seen.take()
    seen.cluster.state_changed("node-1", state_row(version=1), None)
    assert seen.cluster.state_of("node-1") is None
    assert seen.take() == [("node-1", LATER)]


def test_a_state_made_anew_outlives_the_late_news_of_the_old_ones_deletion(seen: Seen) -> None:
    old, new = state_row(version=1, uid="old"), state_row(version=5, uid="new")
    seen.cluster.state_changed("node-1", None, old)
    seen.cluster.lost("node-1", "old")
    assert seen.cluster.state_of("node-1") is None
    assert seen.cluster.wrote(new)
    seen.take()
    stale = state_row(version=2, uid="old")
    seen.cluster.state_changed("node-1", old, stale)
    seen.cluster.state_changed("node-1", stale, None)
    assert seen.cluster.state_of("node-1") == new
    assert seen.take() == []


def test_a_node_that_is_gone_is_looked_at_once_more(seen: Seen) -> None:
    seen.cluster.node_changed("node-1", node(), None)
    assert seen.take() == [("node-1", LATER)]
    assert list(seen.cluster.nodes) == ["node-2"]


def test_a_profile_that_changes_concerns_the_nodes_that_it_governs(seen: Seen) -> None:
    seen.cluster.node_changed("node-2", node("node-2"), node("node-2", labels={"pool": "x"}))
    everywhere = profile("everywhere")
    chosen = profile("chosen", selector=(profiles.Requirement("pool", "In", frozenset({"x"})),), priority=1)
    seen.cluster.profiles_changed({"everywhere": everywhere})
    for name in seen.cluster.nodes:
        seen.cluster.plan(name)
    seen.take()
    for found in (
        {"everywhere": everywhere, "chosen": chosen},
        {"everywhere": everywhere, "chosen": msgspec.structs.replace(chosen, generation=2)},
        {"everywhere": everywhere},
    ):
        seen.cluster.profiles_changed(found)
        assert seen.take() == [("node-2", LATER)]


def governed(seen: Seen) -> dict[str, cluster.Governed]:
    return {one.node: one for _, one in seen.cluster.governed()}


def test_a_node_has_applied_a_profile_once_its_agent_saw_a_plan_that_names_it(seen: Seen) -> None:
    spec = state.StateSpec(profile=state.ProfileRef("p", 1))
    seen.cluster.profiles_changed({"p": profile()})
    seen.cluster.state_changed("node-1", None, state_row(version=1, generation=4, observed=4, applied=True))
    assert not governed(seen)["node-1"].applied, "that plan was made from another profile"
    seen.cluster.wrote(state_row(version=2, spec=spec, generation=5, observed=4, applied=True))
    assert not governed(seen)["node-1"].applied, "the agent has not seen it"
    seen.cluster.state_changed("node-1", None, state_row(version=3, spec=spec, generation=5, observed=5, applied=True))
    assert governed(seen)["node-1"].applied
    seen.cluster.wrote(state_row(version=4, spec=spec, generation=6, observed=5, applied=True))
    assert governed(seen)["node-1"].applied, "a pod more is no reason to say that the profile is not applied"
    assert not governed(seen)["node-2"].applied


def test_nodes_without_a_profile_are_nobodys(seen: Seen) -> None:
    assert governed(seen) == {}
