from __future__ import annotations

import datetime
import re
from collections.abc import Iterator
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from swapwarden.api import names, state
from swapwarden.cli.kubectl.cluster import usage
from swapwarden.cli.kubectl.explain import model, screen
from swapwarden.cli.kubectl.explain.advice import AdviceKind
from swapwarden.policy import plan
from swapwarden.policy.observed import nodes, pods
from swapwarden.policy.profile import compiled
from swapwarden.policy.swap import requirements

from tests.unit.cli.kubectl.explained import (
    DISK,
    FACTS,
    GI,
    MI,
    NODE,
    POOL,
    container,
    planned,
    pod,
    profile,
    reported,
    seen,
)
from tests.unit.objects import make_override

Behavior = names.Behavior
LIMITED, WORKLOAD = Behavior.LIMITED_SWAP, Behavior.WORKLOAD_CONTROLLED
POLICY, LIMIT = "swapwarden.dev/swap-policy", "swapwarden.dev/swap-limit"
DEFAULTED = {POLICY: "Disabled", "swapwarden.dev/policy-source": "namespace"}
FIGURE = r"~?\b\d[\w.]*%?|\b[a-z]+[A-Z]\w*|overrides\[\w+\]"
REPORT = (container("app", "1Gi", "2Gi"), container("proxy", "64Mi", "64Mi"))


def explain(found: Any, *known: compiled.Profile, **fields: Any) -> model.PodExplanation:
    return model.explain(seen(found, *known, **fields))


def patching(policy: str) -> str:
    patch = f'{{"spec":{{"template":{{"metadata":{{"annotations":{{"{POLICY}":"{policy}"}}}}}}}}}}'
    return f"kubectl patch deployment report -n batch -p '{patch}'"


def last(told: model.PodExplanation) -> str:
    assert told.rules[-1].matched
    return told.rules[-1].reason.value


def mentions(text: str, *words: str) -> bool:
    return all(word in text for word in words)


def numbers(told: model.PodExplanation) -> list[tuple[str, list[str], str]]:
    """Of what, the amounts and fields in the formula, and the result."""
    return [(one.of, re.findall(FIGURE, one.formula), one.result) for one in told.numbers]


def test_a_share_of_the_nodes_swap() -> None:
    told = explain(
        pod(*REPORT),
        profile(reserved="25%"),
        used=usage.PodUse(
            namespace="batch",
            name="report",
            node="batch-1",
            swap_bytes=12 * MI,
            containers=[usage.LimitedUse(name="app", swap_bytes=12 * MI)],
        ),
    )
    assert mentions(told.summary, "384Mi")
    assert (told.policy.value, told.policy.source) == (None, "Nothing")
    assert mentions(told.node_text, "batch-1", "8Gi", "4Gi", "/dev/nvme1n1", "NVMe")
    assert told.profile is not None
    assert told.profile.name == "batch-nodes"
    assert [(rule.reason.value, rule.matched) for rule in told.rules][-2:] == [
        ("QoSNotEligible", False),
        ("LimitedSwap", True),
    ]
    assert numbers(told) == [
        ("node", ["4Gi", "1Gi", "25%"], str(3 * GI)),
        ("app", ["1Gi", "8Gi", "3Gi"], str(384 * MI)),
        ("proxy", ["64Mi"], "0"),
        ("pod", [], str(384 * MI)),
    ]
    assert told.desired == told.planned
    assert told.desired_text == ""
    assert told.kernel is not None
    assert (told.kernel.status, told.kernel.since) == ("True", "2026-01-01T00:10:00Z")
    assert (told.used_bytes, told.used_containers) == (12 * MI, {"app": 12 * MI})
    assert [(one.outcome, one.kind, one.target) for one in told.changes] == [
        ("more", AdviceKind.MEMORY_LIMIT_OR_REQUEST, "proxy"),
        ("more", AdviceKind.MEMORY_REQUEST, "app"),
        ("less", AdviceKind.LOWER_LIMIT, LIMIT),
        ("no swap", AdviceKind.POLICY, "Disabled"),
    ]
    assert told.changes[-1].command == patching("Disabled")
    assert mentions(told.changes[0].how, "proxy", "deployment/report")


@pytest.mark.parametrize(
    ("annotations", "reason", "words"),
    [
        ({POLICY: "Disabled"}, "PolicyDisabled", ["Disabled"]),
        (DEFAULTED, "PolicyDisabled", ["Disabled", "namespace"]),
        ({POLICY: "disable"}, "InvalidPolicy", ['"disable"', "mean Disabled?"]),
        ({POLICY: "\x1b[2J"}, "InvalidPolicy", ['"\\u001b[2J"', *names.Policy]),
        ({LIMIT: "1 GB"}, "InvalidPolicy", [LIMIT, '"1 GB"', "mean 1G?"]),
        ({"swap-limit.swapwarden.dev/app": "lots"}, "InvalidPolicy", ["swap-limit.swapwarden.dev/app", '"lots"']),
    ],
)
def test_what_the_pod_says_of_itself(annotations: dict[str, str], reason: str, words: list[str]) -> None:
    told = explain(pod(*REPORT, annotations=annotations), profile())
    assert last(told) == reason
    assert mentions(told.rules[-1].why, *words)
    assert told.planned is not None
    assert told.planned.swap_max == "0"
    assert told.numbers == []


def test_whose_word_the_policy_is() -> None:
    assert explain(pod(annotations={POLICY: "Disabled"})).policy.source == "Pod"
    default = explain(pod(annotations=DEFAULTED))
    assert default.policy.source == "Namespace"
    assert mentions(default.policy.text, "Disabled", "namespace batch")
    assert [one.command for one in default.changes] == [
        patching("NoPreference"),
        "kubectl label namespace batch swapwarden.dev/default-swap-policy-",
    ]
    assert not explain(pod(annotations={POLICY: "never"})).policy.valid
    undefaulted, usual = explain(pod(namespace="kube-system")).policy, explain(pod()).policy
    assert undefaulted.text != usual.text


class TestWhichProfile:
    def governing(self, *known: compiled.Profile, **fields: Any) -> model.GoverningProfile:
        told = explain(pod(), *known, **fields)
        assert told.profile is not None
        return told.profile

    def test_none(self) -> None:
        assert self.governing().name == names.BUILT_IN_PROFILE
        elsewhere = compiled.Profile("other", selector=(compiled.LabelExpression("pool", "Exists"), *POOL), priority=1)
        away = msgspec.structs.replace(NODE, labels={})
        found = self.governing(elsewhere, node=away)
        assert found.name == names.BUILT_IN_PROFILE
        assert mentions(found.text, "1 profiles")

    def test_by_priority(self) -> None:
        low, lower = compiled.Profile("low", priority=50), compiled.Profile("lower", priority=-1)
        found = self.governing(profile(), lower, low)
        assert found.name == "batch-nodes"
        assert mentions(found.text, "100", "low (50), lower (-1)")

    def test_a_tie(self) -> None:
        newer = profile(name="newer", created="2026-01-02T00:00:00Z")
        older = profile(created="2026-01-01T00:00:00Z")
        found = self.governing(older, newer)
        assert found.name == "batch-nodes"
        assert mentions(found.text, "oldest", "priority 100", "newer")

    def test_one_that_is_not_the_newest(self) -> None:
        older, newest = profile(), profile(Behavior.NO_SWAP, generation=4)
        found = pod(*REPORT)
        told = explain(found, newest, state=reported(planned(found, older)), history={plan.reference(older): older})
        assert told.profile is not None
        assert told.profile.generation == 3
        assert mentions(told.profile.text, "batch-nodes generation 4")
        assert last(told) == "LimitedSwap"
        assert told.desired_text == ""


class TestRules:
    @pytest.mark.parametrize(
        ("made", "governing", "reason", "words"),
        [
            (pod(*REPORT), profile(Behavior.NO_SWAP), "ProfileNoSwap", ["NoSwap", "batch-nodes"]),
            (pod(*REPORT), profile(Behavior.KUBELET), "KubeletDecides", ["Kubelet", "batch-nodes"]),
            (pod(*REPORT, spec={"priority": 2_000_000_000}), profile(), "CriticalPod", ["priority"]),
            (pod(container()), profile(), "QoSNotEligible", ["BestEffort", "Burstable"]),
            (pod(*REPORT), profile(WORKLOAD), "NoLimit", ["WorkloadControlled", "batch-nodes"]),
            (pod(*REPORT, annotations={LIMIT: "512Mi"}), profile(WORKLOAD), "WorkloadLimit", ["batch-nodes"]),
            (
                pod(*REPORT, annotations={LIMIT: "512Mi"}),
                profile(WORKLOAD, max_per_pod=256 * MI),
                "Bounded",
                ["batch-nodes"],
            ),
            (
                pod(*REPORT),
                profile(require=requirements.Require(encrypted=True, tmpfs_noswap=True)),
                "RequirementUnmet",
                ["batch-nodes", "encrypted, tmpfsNoswap"],
            ),
            (
                pod(*REPORT),
                profile(overrides=(make_override("caches", policy=names.Policy.DISABLED),)),
                "OverrideDisabled",
                ["overrides[caches]", "batch-nodes", "Disabled"],
            ),
            (
                pod(*REPORT),
                profile(overrides=(make_override("caches", swap_limit=100 * MI),)),
                "OverrideLimit",
                ["overrides[caches]", "batch-nodes", "100Mi"],
            ),
        ],
    )
    def test_the_one_that_decides(self, made: Any, governing: compiled.Profile, reason: str, words: list[str]) -> None:
        told = explain(made, governing)
        assert last(told) == reason
        assert mentions(told.rules[-1].why, *words)
        assert told.changes, reason

    def test_an_incompatible_node(self) -> None:
        facts = state.Facts(1, False, 0, 8 * GI)
        found = pod(*REPORT)
        incompatible = (state.Condition("Compatible", "False", "NoCgroupV2", "swap limits need cgroup v2"),)
        status = reported(planned(found, profile(), facts), conditions=incompatible, facts=facts)
        told = explain(found, profile(), state=status)
        assert last(told) == "NodeIncompatible"
        assert mentions(told.rules[-1].why, "batch-1", "cgroup v2")
        assert told.planned is not None
        assert told.planned.swap_max is None
        assert told.kernel is not None
        assert (told.kernel.status, told.kernel.reason) == ("False", "NodeIncompatible")

    def test_a_lifted_default(self) -> None:
        lifting = profile(overrides=(make_override("caches", policy=names.Policy.NO_PREFERENCE),))
        told = explain(pod(*REPORT, annotations=DEFAULTED), lifting)
        assert (told.rules[1].reason, told.rules[1].matched) == ("PolicyDisabled", False)
        assert mentions(told.rules[1].why, "Disabled", "overrides[caches]")
        assert last(told) == "LimitedSwap"
        assert told.profile is not None
        assert told.profile.override == "caches"
        assert mentions(told.profile.override_text, "overrides[caches]", "NoPreference")

    def test_overrides_that_do_not_count(self) -> None:
        other = profile(overrides=(make_override("caches", pods=POOL, policy=names.Policy.DISABLED),))
        texts = set()
        for words in ({}, {POLICY: "Disabled"}):
            told = explain(pod(annotations=words), other)
            assert told.profile is not None
            assert told.profile.override is None
            assert mentions(told.profile.override_text, "none of 1")
            texts.add(told.profile.override_text)
        assert len(texts) == 2, "one text for a pod that is not selected, one for a pod that refuses swap"

    def test_an_override_about_memory(self) -> None:
        soft = names.ReservationPolicy.SOFT
        about = profile(overrides=(make_override("caches", memory_reservation=soft, memory_throttling=90),))
        for words in ({}, {POLICY: "Disabled"}):
            told = explain(pod(annotations=words), about)
            assert told.profile is not None
            assert told.profile.override == "caches"
            assert mentions(told.profile.override_text, "overrides[caches]", "Soft", "90%")

    def test_a_namespace_that_is_not_known(self) -> None:
        asking = profile(overrides=(make_override("caches", namespaces=POOL, policy=names.Policy.DISABLED),))
        told = explain(pod(), asking)
        assert told.rules == []
        assert mentions(told.desired_text, "override", "labels of its namespace")
        assert last(explain(pod(*REPORT), asking, namespace={"pool": "batch"})) == "OverrideDisabled"


class TestNumbers:
    def of(self, made: Any, governing: compiled.Profile, **fields: Any) -> list[tuple[str, list[str], str]]:
        return numbers(explain(made, governing, **fields))

    def test_limits_of_containers_and_the_pod(self) -> None:
        made = pod(
            container("a", "1Gi"),
            container("b", "1Gi"),
            annotations={LIMIT: "600Mi", "swap-limit.swapwarden.dev/a": "100Mi"},
        )
        assert self.of(made, profile()) == [
            ("node", [], str(4 * GI)),
            ("a", ["1Gi", "8Gi", "4Gi", "100Mi"], str(100 * MI)),
            ("b", ["1Gi", "8Gi", "4Gi"], str(512 * MI)),
            ("pod", ["600Mi"], str(600 * MI)),
        ]

    def test_start_up(self) -> None:
        made = pod(
            container("app", "1Gi"),
            spec={
                "initContainers": [
                    container("migrate", "4Gi"),
                    container("mesh", "512Mi", restartPolicy="Always"),
                ]
            },
        )
        assert self.of(made, profile()) == [
            ("node", [], str(4 * GI)),
            ("migrate (init)", ["4Gi", "8Gi", "4Gi"], str(2 * GI)),
            ("mesh (sidecar)", ["512Mi", "8Gi", "4Gi"], str(256 * MI)),
            ("app", ["1Gi", "8Gi", "4Gi"], str(512 * MI)),
            ("pod", [], str(2 * GI)),
        ]

    def test_containers_without_a_share(self) -> None:
        made = pod(container("idle"), container("huge", "9Gi"))
        assert self.of(made, profile())[1:3] == [("idle", [], "0"), ("huge", ["9Gi"], "0")]

    def test_the_kubelets(self) -> None:
        made = pod(container("a"), container("b"), annotations={"swap-limit.swapwarden.dev/b": "1Gi"})
        assert self.of(made, profile(Behavior.KUBELET)) == [
            ("b", ["1Gi"], str(GI)),
            ("pod", [], ""),
        ]
        assert [one.at_most for one in explain(made, profile(Behavior.KUBELET)).numbers] == [True, False]

    def test_workload_controlled(self) -> None:
        made = pod(container("a"), container("b"), annotations={LIMIT: "3Gi", "swap-limit.swapwarden.dev/a": "2Gi"})
        bounded = profile(WORKLOAD, max_per_pod=GI, max_per_container=GI // 2)
        assert self.of(made, bounded) == [
            ("node", [], str(4 * GI)),
            ("a", ["2Gi", "512Mi", "maxPerContainer"], str(GI // 2)),
            ("b", [], str(GI // 2)),
            ("pod", ["3Gi", "1Gi", "maxPerPod", "4Gi"], str(GI)),
        ]

    def test_overcommit(self) -> None:
        rival = pod(container(), annotations={LIMIT: "3Gi"}, uid="rival", creationTimestamp="2025-01-01T00:00:00Z")
        first = msgspec.structs.replace(pods.project(rival), started="2025-01-01T00:00:00Z")
        made = pod(container(), annotations={LIMIT: "3Gi"})
        told = explain(made, profile(WORKLOAD, overcommit_percent=125), others=(first,))
        assert last(told) == "OvercommitReached"
        assert mentions(told.rules[-1].why, "2Gi")
        assert numbers(told)[-2:] == [
            ("pod", ["3Gi"], str(3 * GI)),
            ("pod", ["125%", "4Gi", "overcommitPercent", "3Gi"], str(2 * GI)),
        ]
        # The state is of a node without the rival.
        assert mentions(told.desired_text, "2147483648 (2Gi)")

    def test_an_override(self) -> None:
        capped = profile(overrides=(make_override("caches", swap_limit=100 * MI),))
        assert self.of(pod(*REPORT), capped)[-2:] == [
            ("pod", [], str(512 * MI)),
            ("pod", ["100Mi", "overrides[caches]"], str(100 * MI)),
        ]
        named = profile(WORKLOAD, overrides=(make_override("caches", swap_limit=100 * MI),))
        assert self.of(pod(*REPORT), named)[-1] == ("pod", ["overrides[caches]"], str(100 * MI))


class TestWhatIsNotThere:
    def test_a_pod_that_waits_for_a_node(self) -> None:
        told = model.explain(model.Observed(pod(*REPORT, spec={"nodeName": ""}), profiles={}))
        assert (told.node, told.planned, told.desired, told.kernel) == ("", None, None, None)
        assert [(one.of, one.result) for one in told.behaviors] == [
            ("Kubelet", ""),
            ("NoSwap", "0"),
            ("LimitedSwap", ""),
            ("WorkloadControlled", "0"),
        ]
        assert mentions(told.behaviors[2].formula, "app")

    def test_by_behavior(self) -> None:
        def of(*containers: dict[str, Any], **fields: Any) -> dict[str, tuple[str, str]]:
            told = model.explain(model.Observed(pod(*containers, **fields)))
            return {one.of: (one.result, one.formula) for one in told.behaviors}

        assert mentions(of(container())["LimitedSwap"][1], "BestEffort", "Burstable")
        critical = of(container(), spec={"priority": 2_000_000_000})["LimitedSwap"]
        equal = of(container("a", "1Gi", "1Gi"), container("b"))["LimitedSwap"]
        assert (critical[0], equal[0]) == ("0", "0")
        assert mentions(critical[1], "critical")
        assert mentions(equal[1], "request", "limit")
        limited, unlimited = of(*REPORT, annotations={LIMIT: "1Gi"}), of(*REPORT)
        assert (limited["WorkloadControlled"][0], unlimited["WorkloadControlled"][0]) == ("", "0")
        assert limited["Kubelet"] != unlimited["Kubelet"]
        assert of(*REPORT, annotations={POLICY: "Disabled"}) == {}
        assert of(*REPORT, annotations=DEFAULTED) != {}

    def test_a_user_who_may_only_read_the_pod(self) -> None:
        unseen = ("nodes", "nodeswapprofiles", "nodeswapstates")
        told = model.explain(model.Observed(pod(*REPORT), unseen=unseen))
        assert mentions(told.node_text, "batch-1")
        assert told.unseen == list(unseen)
        assert (told.kernel, told.rules) == (None, [])
        refusing = model.explain(model.Observed(pod(annotations={POLICY: "Disabled"}), unseen=unseen))
        assert refusing.summary != told.summary, "it has no swap, whatever the node"
        assert [(one.kind, one.target) for one in refusing.changes] == [(AdviceKind.POLICY, "NoPreference")]

    def test_the_condition_of_a_pod_is_for_those_who_may_not_see_the_state(self) -> None:
        condition = {
            "type": "swapwarden.dev/SwapPolicyEnforced",
            "status": "True",
            "reason": "PolicyDisabled",
            "message": "the kernel holds the planned swap limit of this pod on node batch-1",
        }
        refusing = pod(
            annotations={POLICY: "Disabled"}, status={"conditions": [{"type": "Ready", "status": "True"}, condition]}
        )
        told = model.explain(model.Observed(refusing, unseen=("nodes", "nodeswapstates")))
        assert msgspec.to_builtins(told.enforced) == condition
        lines = screen.text(told, datetime.datetime.now(datetime.UTC)).splitlines()
        assert (
            "ENFORCED   True, PolicyDisabled: the kernel holds the planned swap limit of this pod on node batch-1"
            in lines
        )
        assert explain(refusing).enforced is None
        assert model.explain(model.Observed(pod(), unseen=("nodeswapstates",))).enforced is None

    def test_a_pod_that_has_ended(self) -> None:
        told = explain(pod(*REPORT, status={"phase": "Succeeded"}), profile())
        assert mentions(told.summary, "ended", "Succeeded")
        assert (told.rules, told.behaviors, told.kernel, told.changes) == ([], [], None, [])

    def test_a_node_that_is_gone(self) -> None:
        gone = explain(pod(), node=None, state=None)
        assert mentions(gone.node_text, "batch-1")
        assert gone.node_text != model.explain(model.Observed(pod(), unseen=("nodes",))).node_text

    def test_a_node_without_a_state(self) -> None:
        told = explain(pod(*REPORT), profile(), state=None)
        known = explain(pod(*REPORT), profile())
        assert told.rules[0].why != known.rules[0].why
        assert mentions(told.node_text, "no agent has reported")
        assert told.kernel is not None
        assert (told.kernel.status, told.kernel.reason, told.desired) == ("Unknown", "NoState", None)
        assert mentions(told.summary, "512Mi")

    @pytest.mark.parametrize(
        ("before", "words"), [(names.BeforePlan.NO_SWAP, "no swap"), (names.BeforePlan.UNMANAGED, "left alone")]
    )
    def test_a_state_that_does_not_name_the_pod(self, before: names.BeforePlan, words: str) -> None:
        spec = state.StateSpec(state.ProfileRef("batch-nodes", 3), before_plan=before)
        told = explain(pod(*REPORT), profile(), state=reported(spec))
        assert told.desired is None
        assert mentions(told.desired_text, words)
        assert told.kernel is not None
        assert told.kernel.reason == "NotPlanned"

    def test_a_static_pod(self) -> None:
        mirror = {"kubernetes.io/config.mirror": "hash", "kubernetes.io/config.hash": "hash"}
        told = explain(pod(*REPORT, annotations=mirror, ownerReferences=[]), profile(Behavior.KUBELET))
        assert told.desired is not None
        assert {one.command for one in told.changes} == {"", "kubectl edit nodeswapprofile batch-nodes"}
        assert any("the pod's file on batch-1" in one.how for one in told.changes)


@pytest.mark.parametrize(
    ("facts", "found", "can_reach", "words"),
    [
        (FACTS, True, True, ["the disk", "they can"]),
        (msgspec.structs.replace(FACTS, tmpfs_noswap=True), False, False, ["memory", "noswap"]),
        (msgspec.structs.replace(FACTS, swap_bytes=0), False, False, ["no swap"]),
        (
            msgspec.structs.replace(FACTS, devices=[msgspec.structs.replace(DISK, encrypted=True)]),
            False,
            False,
            ["encrypted"],
        ),
        (FACTS, False, False, ["memory", "kubelet"]),
    ],
)
def test_secrets(facts: state.Facts, found: bool, can_reach: bool, words: list[str]) -> None:
    conditions = (state.Condition("SecretsOnDisk", "True", "NoTmpfsNoswap", "they can"),) if found else ()
    volumes = [{"name": "key", "secret": {"secretName": "key"}}, {"name": "scratch"}]
    made = pod(*REPORT, spec={"volumes": volumes})
    told = explain(made, profile(), state=reported(planned(made, profile()), conditions=conditions, facts=facts))
    assert told.secrets.startswith("can ") == can_reach, "such a line is yellow"
    assert mentions(told.secrets, *words)
    assert ("1 volume" in told.secrets) == found


SIZES = st.integers(0, 2**35)
LIMITS = st.none() | st.sampled_from(["0", "100Mi", "1Gi", "lots", "3000"])


@st.composite
def cases(draw: st.DrawFn) -> model.Observed:
    containers = [
        container(name, *draw(st.sampled_from([("", ""), ("1Gi", ""), ("1Gi", "2Gi"), ("1Gi", "1Gi"), ("99Gi", "")])))
        for name in ("a", "b")
    ]
    limits = {
        LIMIT: draw(LIMITS),
        "swap-limit.swapwarden.dev/a": draw(LIMITS),
        POLICY: draw(st.sampled_from([None, "Disabled", "NoPreference", "Required", "rubbish"])),
    }
    if draw(st.booleans()):
        limits["swapwarden.dev/policy-source"] = "namespace"
    made = pod(
        *containers,
        annotations={key: value for key, value in limits.items() if value is not None},
        spec={"priority": draw(st.sampled_from([0, 2_000_000_000]))},
    )
    overrides = draw(
        st.lists(
            st.builds(
                make_override,
                pods=st.sampled_from([(), POOL]),
                policy=st.sampled_from([None, names.Policy.DISABLED, names.Policy.NO_PREFERENCE]),
                swap_limit=st.none() | SIZES,
            ),
            max_size=2,
        )
    )
    governing = profile(
        draw(st.sampled_from(Behavior)),
        reserved=draw(st.sampled_from([None, "10%", "100%", "1Gi"])),
        max_per_pod=draw(st.none() | SIZES),
        max_per_container=draw(st.none() | SIZES),
        overcommit_percent=draw(st.none() | st.integers(0, 300)),
        overrides=tuple(overrides),
        require=draw(st.sampled_from([None, requirements.Require(encrypted=True)])),
    )
    facts = state.Facts(draw(st.sampled_from([1, 2])), True, draw(SIZES), draw(SIZES), devices=[DISK])
    rival = pods.project(pod(container(), uid="rival", annotations={LIMIT: "1Gi"}))
    rival = msgspec.structs.replace(rival, started=draw(st.sampled_from(["", "2020-01-01T00:00:00Z"])))
    spec = plan.plan_node(governing, nodes.facts(NODE, facts), [pods.project(made), rival])
    return seen(made, governing, state=reported(spec, facts=facts), others=(rival,))


@given(cases())
def test_it_never_says_something_other_than_the_plan(case: model.Observed) -> None:
    told = model.explain(case)
    assert case.state is not None
    assert case.state.spec is not None
    written = case.state.spec.pods["uid-1"]
    reason = state.reason_of(case.state.spec, written)
    assert told.planned is not None
    assert (told.planned.swap_max, told.planned.swap_at_most) == (written.swap_max, written.swap_at_most)
    assert told.planned.reason == reason
    assert (told.desired_text, told.rules[-1].reason, told.rules[-1].matched) == ("", reason, True)
    if told.numbers:
        assert told.numbers[-1].result == (written.swap_max or written.swap_at_most or "")
        assert told.numbers[-1].at_most is (written.swap_at_most is not None)
    # ADMISSION repeats messages of the webhook.
    for text in texts({**msgspec.to_builtins(told), "admission": ""}):
        assert "None" not in text, text
        assert text.isprintable(), text
        assert not text.endswith("."), text
        assert len(text.split()) <= 45, text


def texts(value: Any) -> Iterator[str]:
    """All that it says, wherever it stands."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, (dict, list)):
        for each in value.values() if isinstance(value, dict) else value:
            yield from texts(each)
