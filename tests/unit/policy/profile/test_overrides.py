from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from swapwarden.api import names
from swapwarden.policy import plan
from swapwarden.policy.observed import nodes, pods
from swapwarden.policy.profile import compiled, overrides
from swapwarden.policy.swap import limits

from tests.unit.objects import GI, MI, container, facts, make_override, pod, profile, swap
from tests.unit.policy.swap.test_limits import FACTS, PODS, SETTINGS, SIZES

KUBELET, NO_SWAP = names.Behavior.KUBELET, names.Behavior.NO_SWAP
LIMITED, WORKLOAD = names.Behavior.LIMITED_SWAP, names.Behavior.WORKLOAD_CONTROLLED
DISABLED, NO_PREFERENCE = names.Policy.DISABLED, names.Policy.NO_PREFERENCE
Override = compiled.Override


def having(key: str, value: str) -> compiled.Selector:
    return (compiled.LabelExpression(key, "In", frozenset({value})),)


PROFILES = st.builds(compiled.Profile, name=st.just("p"), swap=SETTINGS)
WEB, QUIET = having("app", "web"), having("team", "quiet")
NAMESPACES = {"loud": {}, "still": {"team": "quiet"}}


class TestFind:
    @pytest.mark.parametrize(
        ("namespace", "labels", "place"),
        [
            ("loud", "", None),
            ("loud", "app=web", 2),
            ("loud", "app=web,tier=x", 2),
            ("still", "", 1),
            ("still", "tier=x,app=web", 0),
            ("nowhere", "app=db,last=", 3),
        ],
    )
    def test_the_first_that_selects_the_pod(self, namespace: str, labels: str, place: int | None) -> None:
        entries = (
            make_override(namespaces=QUIET, pods=WEB, policy=DISABLED),
            make_override(namespaces=QUIET, swap_limit=1),
            make_override(pods=WEB, swap_limit=2),
            make_override(pods=having("last", ""), swap_limit=3),
        )
        if namespace == "nowhere":
            entries = (*entries[:1], make_override(pods=having("app", "other")), *entries[2:])
        row = pod(namespace=namespace, labels=labels)
        assert overrides.find(profile(KUBELET, overrides=entries), row, NAMESPACES) == place

    def test_a_namespace_that_is_not_known_matters_where_it_decides(self) -> None:
        made = profile(
            KUBELET, overrides=(make_override(pods=WEB, swap_limit=1), make_override(namespaces=QUIET, swap_limit=2))
        )
        assert overrides.find(made, pod(namespace="new", labels="app=web"), NAMESPACES) == 0
        with pytest.raises(overrides.UnknownNamespaceError, match="new"):
            overrides.find(made, pod(namespace="new"), NAMESPACES)
        assert overrides.find(made, pod(namespace="new", policy="Disabled"), NAMESPACES) is None

    @pytest.mark.parametrize(("policy", "defaulted", "place"), [("Disabled", False, None), ("Disabled", True, 0)])
    def test_who_refuses_swap_for_itself_needs_none(self, policy: str, defaulted: bool, place: int | None) -> None:
        made = profile(KUBELET, overrides=(make_override(swap_limit=1),))
        assert overrides.find(made, pod(policy=policy, defaulted=defaulted), {}) == place

    def test_an_override_about_memory_counts_for_who_refuses_swap(self) -> None:
        made = profile(KUBELET, overrides=(make_override(pods=WEB, swap_limit=1), make_override(memory_throttling=90)))
        refusing = pod(policy="Disabled", labels="app=web")
        assert overrides.find(made, refusing, {}) == 0, "the first that selects the pod, as for others"
        assert overrides.find(made, pod(policy="Disabled"), {}) == 1
        assert limits.decide(made.swap, facts(), refusing, made.overrides[0].swap).swap_max == "0"


def decided(behavior: names.Behavior, override: Override, row: pods.PodRow, **fields: Any) -> tuple[str | None, str]:
    decision = limits.decide(swap(behavior, **fields), facts(), row, override.swap)
    return decision.swap_max, decision.reason.value


LIMIT = make_override(swap_limit=2 * GI)


class TestDecide:
    @pytest.mark.parametrize("behavior", list(names.Behavior))
    @pytest.mark.parametrize(
        ("fields", "reason"),
        [
            ({}, "OverrideDisabled"),
            ({"policy": "Required"}, "OverrideDisabled"),
            ({"policy": "NoPreference", "swap_limit": "1Gi"}, "OverrideDisabled"),
            ({"policy": "Disabled"}, "PolicyDisabled"),
            ({"policy": "disabled"}, "InvalidPolicy"),
            ({"policy": "disabled", "defaulted": True}, "InvalidPolicy"),
            ({"swap_limit": "1GB"}, "InvalidPolicy"),
        ],
    )
    def test_disabled_is_stricter_than_all(self, behavior: names.Behavior, fields: dict[str, Any], reason: str) -> None:
        row = pod(container(request=GI), **fields)
        assert decided(behavior, make_override(policy=DISABLED), row) == ("0", reason)

    @pytest.mark.parametrize(
        ("defaulted", "override", "wanted"),
        [
            (False, make_override(policy=NO_PREFERENCE), ("0", "PolicyDisabled")),
            (True, make_override(policy=NO_PREFERENCE), (str(GI // 2), "LimitedSwap")),
            (True, make_override(policy=NO_PREFERENCE, swap_limit=MI), (str(MI), "OverrideLimit")),
            (True, make_override(swap_limit=MI), ("0", "PolicyDisabled")),
            (True, make_override(policy=DISABLED), ("0", "OverrideDisabled")),
        ],
    )
    def test_only_a_namespaces_default_is_lifted(
        self, defaulted: bool, override: Override, wanted: tuple[str, str]
    ) -> None:
        assert decided(LIMITED, override, pod(container(request=GI), policy="Disabled", defaulted=defaulted)) == wanted

    @pytest.mark.parametrize(
        ("behavior", "row", "wanted"),
        [
            (KUBELET, pod(container()), (2 * GI, "OverrideLimit")),
            (KUBELET, pod(container(), swap_limit="1Gi"), (GI, "KubeletDecides")),
            (KUBELET, pod(container(), swap_limit="3Gi"), (2 * GI, "OverrideLimit")),
            (NO_SWAP, pod(container()), (0, "ProfileNoSwap")),
            (LIMITED, pod(container(request=GI)), (GI // 2, "LimitedSwap")),
            (LIMITED, pod(container(request=6 * GI)), (2 * GI, "OverrideLimit")),
            (LIMITED, pod(container(request=GI), critical=True), (0, "CriticalPod")),
            (WORKLOAD, pod(container()), (2 * GI, "OverrideLimit")),
            (WORKLOAD, pod(container(), swap_limit="1Gi"), (GI, "WorkloadLimit")),
            (WORKLOAD, pod(container(), swap_limit="3Gi"), (2 * GI, "OverrideLimit")),
            (WORKLOAD, pod(container(swap_limit="1Gi"), container("b")), (GI, "WorkloadLimit")),
            (WORKLOAD, pod(container(swap_limit="3Gi"), container("b")), (2 * GI, "OverrideLimit")),
        ],
    )
    def test_of_two_limits_the_smaller_one_counts(
        self, behavior: names.Behavior, row: pods.PodRow, wanted: tuple[int, str]
    ) -> None:
        assert decided(behavior, LIMIT, row) == (str(wanted[0]), wanted[1])

    def test_a_limit_stays_within_the_profiles_bounds(self) -> None:
        assert decided(WORKLOAD, LIMIT, pod(container()), max_per_pod=GI) == (str(GI), "Bounded")

    def test_a_limit_of_0_is_one(self) -> None:
        for behavior, reason in ((KUBELET, "OverrideLimit"), (LIMITED, "OverrideLimit"), (WORKLOAD, "OverrideLimit")):
            assert decided(behavior, make_override(swap_limit=0), pod(container(request=GI))) == ("0", reason)

    def test_containers_share_what_an_override_gives(self) -> None:
        decision = limits.decide(swap(WORKLOAD), facts(), pod(container("a"), container("b")), LIMIT.swap)
        assert [(one.swap_max, one.reason.value) for one in decision.containers] == [("max", "OverrideLimit")] * 2

    def test_those_without_a_limit_get_nothing_from_an_override_of_a_pod_that_names_some(self) -> None:
        row = pod(container("a", swap_limit="3Gi"), container("b"))
        decision = limits.decide(swap(WORKLOAD), facts(), row, LIMIT.swap)
        assert [(one.swap_max, one.reason.value) for one in decision.containers] == [
            (str(2 * GI), "OverrideLimit"),
            ("0", "NoLimit"),
        ]

    def test_the_kubelets_own_limits_of_containers_stay(self) -> None:
        decision = limits.decide(
            swap(KUBELET), facts(), pod(container("a", swap_limit="1Gi"), container("b")), LIMIT.swap
        )
        assert [(one.swap_max, one.cap, one.write) for one in decision.containers] == [
            (str(GI), True, True),
            ("max", True, False),
        ]

    def test_a_node_that_cannot_has_no_override_either(self) -> None:
        decision = limits.decide(
            swap(KUBELET), facts(compatible=False), pod(container()), make_override(policy=DISABLED).swap
        )
        assert (decision.swap_max, decision.reason.value) == (None, "NodeIncompatible")


class TestPlan:
    def test_a_pod_waits_for_its_namespace_unless_it_has_no_swap(self) -> None:
        made = profile(KUBELET, overrides=(make_override(namespaces=QUIET, policy=NO_PREFERENCE, swap_limit=GI),))
        found = [
            pod(uid="free", namespace="new"),
            pod(uid="own", namespace="new", policy="Disabled"),
            pod(uid="default", namespace="new", policy="Disabled", defaulted=True),
            pod(uid="known", namespace="loud"),
        ]
        planned = plan.plan_node(made, facts(), found, NAMESPACES).pods
        assert {key: one.swap_max for key, one in planned.items()} == {"own": "0", "default": "0", "known": None}
        planned = plan.plan_node(made, facts(), found, {**NAMESPACES, "new": {"team": "quiet"}}).pods
        assert {key: one.swap_max or one.swap_at_most for key, one in planned.items()} == {
            "free": str(GI),
            "own": "0",
            "default": str(GI),
            "known": None,
        }

    def test_an_explanation_names_the_entry_that_made_a_difference(self) -> None:
        made = profile(
            WORKLOAD,
            overcommit_percent=25,
            overrides=(
                make_override("quiet", namespaces=QUIET, policy=DISABLED),
                make_override("web", pods=WEB, swap_limit=GI),
            ),
        )
        found = [
            pod(container(), uid="1", name="a", namespace="still"),
            pod(container(), uid="2", name="b", namespace="loud", labels="app=web", started="1"),
            pod(container(), uid="3", name="c", namespace="loud", labels="app=web", swap_limit="1Mi", started="2"),
            pod(container(), uid="4", name="d", namespace="loud", labels="app=web", started="3"),
            pod(container(), uid="5", name="e", namespace="loud"),
        ]
        explained = plan.explain_node(made, facts(), found, NAMESPACES)
        assert {one.row.name: (one.decision.reason.value, one.override) for one in explained.pods} == {
            "a": ("OverrideDisabled", "quiet"),
            "b": ("OverrideLimit", "web"),
            "c": ("OvercommitReached", None),
            "d": ("OvercommitReached", "web"),
            "e": ("NoLimit", None),
        }


REQUIREMENTS = st.sampled_from([(), WEB, QUIET])
OVERRIDES = st.lists(
    st.builds(
        make_override,
        namespaces=REQUIREMENTS,
        pods=REQUIREMENTS,
        policy=st.sampled_from([None, DISABLED, NO_PREFERENCE]),
        swap_limit=st.none() | SIZES,
    ),
    max_size=3,
)
SUBJECTS = st.builds(
    lambda row, fields: msgspec.structs.replace(row, **fields),
    PODS,
    st.fixed_dictionaries(
        {
            "labels": st.sampled_from(["", "app=web", "app=web,team=quiet"]),
            "namespace": st.sampled_from(["loud", "still", "new"]),
            "defaulted": st.booleans(),
        }
    ),
)
KNOWN = st.sampled_from([{}, NAMESPACES])


def limit_of(value: str | None) -> int:
    return limits.in_bytes(value or "max")


class TestProperties:
    @given(PROFILES, OVERRIDES, FACTS, SUBJECTS, KNOWN)
    def test_a_pod_that_refuses_swap_never_gets_any(
        self,
        profile: compiled.Profile,
        entries: list[Override],
        node: nodes.NodeFacts,
        row: pods.PodRow,
        known: Mapping[str, Mapping[str, str]],
    ) -> None:
        made = msgspec.structs.replace(profile, overrides=tuple(entries))
        refusing = msgspec.structs.replace(row, policy="Disabled", defaulted=False)
        [planned] = plan.plan_node(made, node, [refusing], known).pods.values()
        assert planned.swap_max == ("0" if node.compatible else None)
        assert not planned.containers

    @given(PROFILES, OVERRIDES, FACTS, SUBJECTS, KNOWN)
    def test_no_override_gives_more_than_the_pod_itself_allows(
        self,
        profile: compiled.Profile,
        entries: list[Override],
        node: nodes.NodeFacts,
        row: pods.PodRow,
        known: Mapping[str, Mapping[str, str]],
    ) -> None:
        own = row.swap_limit is not None or any(one.swap_limit is not None for one in row.containers)
        lifted = row.defaulted and row.policy == "Disabled"
        free = plan.explain_node(profile, node, [row])
        made = plan.explain_node(msgspec.structs.replace(profile, overrides=tuple(entries)), node, [row], known)
        for before, after in zip(free.pods, made.pods, strict=False):
            if lifted or (not own and profile.swap.behavior is WORKLOAD):
                continue
            assert limit_of(after.decision.swap_max) <= limit_of(before.decision.swap_max)
            for own_one, one in zip(before.decision.containers, after.decision.containers, strict=True):
                # The pod's value holds for a container whose own is "max".
                assert min(limit_of(one.swap_max), limit_of(after.decision.swap_max)) <= limit_of(own_one.swap_max)

    @given(PROFILES, OVERRIDES, FACTS, SUBJECTS)
    def test_a_disabling_override_leaves_no_swap(
        self, profile: compiled.Profile, entries: list[Override], node: nodes.NodeFacts, row: pods.PodRow
    ) -> None:
        made = msgspec.structs.replace(profile, overrides=(make_override(policy=DISABLED), *entries))
        [planned] = plan.plan_node(made, node, [row]).pods.values()
        assert planned.swap_max == ("0" if node.compatible else None)

    @given(PROFILES, OVERRIDES, FACTS, SUBJECTS, KNOWN)
    def test_every_number_is_what_the_kernel_keeps_and_within_the_swap_there_is(
        self,
        profile: compiled.Profile,
        entries: list[Override],
        node: nodes.NodeFacts,
        row: pods.PodRow,
        known: Mapping[str, Mapping[str, str]],
    ) -> None:
        made = msgspec.structs.replace(profile, overrides=tuple(entries))
        top = node.swap_bytes if profile.swap.behavior is KUBELET else limits.available(profile.swap, node)
        for one in plan.explain_node(made, node, [row], known).pods:
            for value in (one.decision.swap_max, *(each.swap_max for each in one.decision.containers)):
                if value not in {None, "max"}:
                    assert 0 <= int(value or "") <= top
                    assert int(value or "") % node.page_size == 0
