from __future__ import annotations

import datetime
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from swapwarden.api import names, state
from swapwarden.cli.kubectl.cluster import usage
from swapwarden.cli.kubectl.explain import model, screen
from swapwarden.cli.kubectl.explain.kernelview import LimitStatus
from swapwarden.policy import plan
from swapwarden.policy.observed import nodes, pods
from swapwarden.policy.profile import compiled

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

Behavior = names.Behavior
LIMITED, WORKLOAD = Behavior.LIMITED_SWAP, Behavior.WORKLOAD_CONTROLLED
POLICY, LIMIT = "swapwarden.dev/swap-policy", "swapwarden.dev/swap-limit"
DEFAULTED = {POLICY: "Disabled", "swapwarden.dev/policy-source": "namespace"}
REPORT = (container("app", "1Gi", "2Gi"), container("proxy", "64Mi", "64Mi"))


def explain(found: Any, *known: compiled.Profile, **fields: Any) -> model.PodExplanation:
    return model.explain(seen(found, *known, **fields))


def last(told: model.PodExplanation) -> tuple[str, str]:
    return told.rules[-1].reason.value, told.rules[-1].why


def numbers(told: model.PodExplanation) -> list[tuple[str, str, str]]:
    return [(one.of, one.formula, one.result) for one in told.numbers]


def test_a_share_of_the_nodes_swap() -> None:
    told = explain(
        pod(*REPORT),
        profile(reserved="25%"),
        used=usage.PodUse("batch", "report", "batch-1", None, 12 * MI, None, [usage.ContainerUse("app", 12 * MI)]),
    )
    assert told.summary == "up to 384Mi of swap"
    assert told.policy == model.PodPolicy(
        None, model.PolicySource.NOTHING, "none: the pod gets what its node's profile gives"
    )
    assert told.node_text == "batch-1: 8Gi memory, 4Gi swap on /dev/nvme1n1 (NVMe)"
    assert told.profile is not None
    assert told.profile.text == "the only one that selects the node"
    assert [(rule.reason.value, rule.matched) for rule in told.rules][-2:] == [
        ("QoSNotEligible", False),
        ("LimitedSwap", True),
    ]
    assert numbers(told) == [
        ("node", "4Gi - 1Gi (reserved 25%)", str(3 * GI)),
        ("app", "request 1Gi / memory 8Gi x 3Gi", str(384 * MI)),
        ("proxy", "its memory request equals its limit (64Mi)", "0"),
        ("pod", "its containers together", str(384 * MI)),
    ]
    assert told.wanted == told.planned
    assert told.wanted_text == ""
    assert told.kernel is not None
    assert (told.kernel.status, told.kernel.since) == (LimitStatus.HELD, "2026-01-01T00:10:00Z")
    assert (told.used_bytes, told.used_containers) == (12 * MI, {"app": 12 * MI})
    assert [(one.outcome, one.command) for one in told.changes] == [
        ("more", ""),
        ("more", ""),
        ("less", ""),
        ("no swap", "kubectl swap policy -n batch pod/report-6d5f8b7c9-x2x4q Disabled"),
    ]
    assert "of proxy" in told.changes[0].how
    assert "deployment/report" in told.changes[0].how


@pytest.mark.parametrize(
    ("annotations", "reason", "why"),
    [
        ({POLICY: "Disabled"}, "PolicyDisabled", "the policy is Disabled"),
        (DEFAULTED, "PolicyDisabled", "the policy is Disabled, its namespace's default"),
        ({POLICY: "disable"}, "InvalidPolicy", '"disable" is no policy; did you mean Disabled?'),
        ({POLICY: "\x1b[2J"}, "InvalidPolicy", '"\\u001b[2J" is no policy; there are Avoid, '),
        ({LIMIT: "1 GB"}, "InvalidPolicy", 'swapwarden.dev/swap-limit: "1 GB" is no quantity; did you mean 1G?'),
        (
            {"swap-limit.swapwarden.dev/app": "lots"},
            "InvalidPolicy",
            'swap-limit.swapwarden.dev/app: "lots" is no quantity',
        ),
    ],
)
def test_what_the_pod_says_of_itself(annotations: dict[str, str], reason: str, why: str) -> None:
    told = explain(pod(*REPORT, annotations=annotations), profile())
    assert last(told)[0] == reason
    assert last(told)[1].startswith(why)
    assert told.summary == "no swap"
    assert told.numbers == []


def test_whose_word_the_policy_is() -> None:
    assert explain(pod(annotations={POLICY: "Disabled"})).policy.text == "Disabled, an annotation of the pod"
    default = explain(pod(annotations=DEFAULTED))
    assert default.policy.source == "Namespace"
    assert default.policy.text == "Disabled, the default of namespace batch when the pod was made"
    assert [one.command for one in default.changes] == [
        "kubectl swap policy -n batch pod/report-6d5f8b7c9-x2x4q NoPreference",
        "kubectl swap policy namespace/batch --remove",
    ]
    assert not explain(pod(annotations={POLICY: "never"})).policy.valid
    system = explain(pod(namespace="kube-system"))
    assert system.policy.text.endswith("; pods of this namespace are given no default")


class TestWhichProfile:
    def text(self, *known: compiled.Profile, **fields: Any) -> str:
        told = explain(pod(), *known, **fields)
        assert told.profile is not None
        return f"{told.profile.name}: {told.profile.text}"

    def test_none(self) -> None:
        assert self.text() == "(built-in): built in, as there is no profile: what the kubelet gives stays"
        elsewhere = compiled.Profile("other", selector=(compiled.Requirement("pool", "Exists"), *POOL), priority=1)
        away = msgspec.structs.replace(NODE, labels={})
        assert "none of 1 profiles selects the node" in self.text(elsewhere, node=away)

    def test_by_priority(self) -> None:
        low, lower = compiled.Profile("low", priority=50), compiled.Profile("lower", priority=-1)
        assert self.text(profile(), lower, low) == "batch-nodes: priority 100, before low (50), lower (-1)"

    def test_a_tie(self) -> None:
        newer = profile(name="newer", created="2026-01-02T00:00:00Z")
        older = profile(created="2026-01-01T00:00:00Z")
        assert self.text(older, newer) == (
            "batch-nodes: the oldest of those with priority 100; they select the node, too: newer"
        )

    def test_one_that_is_not_the_newest(self) -> None:
        older, newest = profile(), profile(Behavior.NO_SWAP, generation=4)
        found = pod(*REPORT)
        told = explain(found, newest, state=reported(planned(found, older)), history={plan.reference(older): older})
        assert told.profile is not None
        assert told.profile.text == "in force now; batch-nodes generation 4 is next, when the rollout comes to the node"
        assert last(told)[0] == "LimitedSwap"
        assert told.wanted_text == ""


class TestRules:
    @pytest.mark.parametrize(
        ("made", "governing", "expected"),
        [
            (pod(*REPORT), profile(Behavior.NO_SWAP), ("ProfileNoSwap", "behavior NoSwap of batch-nodes")),
            (pod(*REPORT), profile(Behavior.KUBELET), ("KubeletDecides", "behavior Kubelet of batch-nodes")),
            (
                pod(*REPORT, spec={"priority": 2_000_000_000}),
                profile(),
                ("CriticalPod", "a static pod, or one of a system priority: LimitedSwap gives those none"),
            ),
            (
                pod(container()),
                profile(),
                ("QoSNotEligible", "the pod is BestEffort: only Burstable pods get a share"),
            ),
            (
                pod(*REPORT),
                profile(WORKLOAD),
                ("NoLimit", "behavior WorkloadControlled of batch-nodes, and the pod names no limit"),
            ),
            (
                pod(*REPORT, annotations={LIMIT: "512Mi"}),
                profile(WORKLOAD),
                ("WorkloadLimit", "behavior WorkloadControlled of batch-nodes: the limit that the pod names"),
            ),
            (
                pod(*REPORT, annotations={LIMIT: "512Mi"}),
                profile(WORKLOAD, max_per_pod=256 * MI),
                ("Bounded", "batch-nodes, or the node's swap, allows less than that"),
            ),
            (
                pod(*REPORT),
                profile(require=compiled.Require(encrypted=True, tmpfs_noswap=True)),
                ("RequirementUnmet", "batch-nodes requires what the node lacks: encrypted, tmpfsNoswap"),
            ),
            (
                pod(*REPORT),
                profile(overrides=(compiled.Override("caches", policy=names.Policy.DISABLED),)),
                ("OverrideDisabled", "overrides[caches] of batch-nodes says Disabled"),
            ),
            (
                pod(*REPORT),
                profile(overrides=(compiled.Override("caches", swap_limit=100 * MI),)),
                ("OverrideLimit", "overrides[caches] of batch-nodes says at most 100Mi"),
            ),
        ],
    )
    def test_the_one_that_decides(self, made: Any, governing: compiled.Profile, expected: tuple[str, str]) -> None:
        told = explain(made, governing)
        assert last(told) == expected
        assert told.changes, expected

    def test_an_incompatible_node(self) -> None:
        facts = state.Facts(1, False, 0, 8 * GI)
        found = pod(*REPORT)
        incompatible = (state.Condition("Compatible", "False", "NoCgroupV2", "swap limits need cgroup v2"),)
        status = reported(planned(found, profile(), facts), conditions=incompatible, facts=facts)
        told = explain(found, profile(), state=status)
        assert last(told) == ("NodeIncompatible", "batch-1 has no cgroup v2 with the swap controller")
        assert told.summary == "not limited: nothing can be enforced on its node"
        assert told.kernel is not None
        assert (told.kernel.status, told.kernel.text) == (LimitStatus.NOT_WRITTEN, "swap limits need cgroup v2")

    def test_a_lifted_default(self) -> None:
        lifting = profile(overrides=(compiled.Override("caches", policy=names.Policy.NO_PREFERENCE),))
        told = explain(pod(*REPORT, annotations=DEFAULTED), lifting)
        assert told.rules[1].why == "Disabled is the namespace's default, which overrides[caches] lifts"
        assert last(told)[0] == "LimitedSwap"
        assert told.profile is not None
        assert told.profile.override_text == "overrides[caches] selects the pod: policy NoPreference"

    def test_overrides_that_do_not_count(self) -> None:
        other = profile(overrides=(compiled.Override("caches", pods=POOL, policy=names.Policy.DISABLED),))
        for words, text in (
            ({}, "none of 1 selects the pod"),
            ({POLICY: "Disabled"}, "none of 1 counts: the pod itself refuses swap"),
        ):
            told = explain(pod(annotations=words), other)
            assert told.profile is not None
            assert (told.profile.override, told.profile.override_text) == (None, text)

    def test_a_namespace_that_is_not_known(self) -> None:
        asking = profile(overrides=(compiled.Override("caches", namespaces=POOL, policy=names.Policy.DISABLED),))
        told = explain(pod(), asking)
        assert told.rules == []
        assert told.wanted_text.startswith("an override may select the pod by labels of its namespace")
        assert last(explain(pod(*REPORT), asking, namespace={"pool": "batch"}))[0] == "OverrideDisabled"


class TestNumbers:
    def of(self, made: Any, governing: compiled.Profile, **fields: Any) -> list[tuple[str, str, str]]:
        return numbers(explain(made, governing, **fields))

    def test_limits_of_containers_and_the_pod(self) -> None:
        made = pod(
            container("a", "1Gi"),
            container("b", "1Gi"),
            annotations={LIMIT: "600Mi", "swap-limit.swapwarden.dev/a": "100Mi"},
        )
        assert self.of(made, profile()) == [
            ("node", "its swap, nothing reserved", str(4 * GI)),
            ("a", "request 1Gi / memory 8Gi x 4Gi, at most its limit 100Mi", str(100 * MI)),
            ("b", "request 1Gi / memory 8Gi x 4Gi", str(512 * MI)),
            ("pod", "its containers together, at most its limit 600Mi", str(600 * MI)),
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
            ("node", "its swap, nothing reserved", str(4 * GI)),
            ("migrate (init)", "request 4Gi / memory 8Gi x 4Gi", str(2 * GI)),
            ("mesh (sidecar)", "request 512Mi / memory 8Gi x 4Gi", str(256 * MI)),
            ("app", "request 1Gi / memory 8Gi x 4Gi", str(512 * MI)),
            ("pod", "the larger of its containers together and its start-up", str(2 * GI)),
        ]

    def test_containers_without_a_share(self) -> None:
        made = pod(container("idle"), container("huge", "9Gi"))
        assert [formula for _, formula, _ in self.of(made, profile())][1:3] == [
            "no memory request",
            "its request 9Gi is more than the node's memory",
        ]

    def test_the_kubelets(self) -> None:
        made = pod(container("a"), container("b"), annotations={"swap-limit.swapwarden.dev/b": "1Gi"})
        assert self.of(made, profile(Behavior.KUBELET)) == [
            ("b", "its limit 1Gi, or what the kubelet gives where that is less", str(GI)),
            ("pod", "no limit: what the kubelet gives", "max"),
        ]

    def test_workload_controlled(self) -> None:
        made = pod(container("a"), container("b"), annotations={LIMIT: "3Gi", "swap-limit.swapwarden.dev/a": "2Gi"})
        bounded = profile(WORKLOAD, max_per_pod=GI, max_per_container=GI // 2)
        assert self.of(made, bounded) == [
            ("node", "its swap, nothing reserved", str(4 * GI)),
            ("a", "its limit 2Gi, at most 512Mi (maxPerContainer)", str(GI // 2)),
            ("b", "no limit of its own: below the pod's", str(GI // 2)),
            ("pod", "its limit 3Gi, at most 1Gi (maxPerPod), at most 4Gi (the node's)", str(GI)),
        ]

    def test_overcommit(self) -> None:
        rival = pod(container(), annotations={LIMIT: "3Gi"}, uid="rival", creationTimestamp="2025-01-01T00:00:00Z")
        first = msgspec.structs.replace(pods.project(rival), started="2025-01-01T00:00:00Z")
        made = pod(container(), annotations={LIMIT: "3Gi"})
        told = explain(made, profile(WORKLOAD, overcommit_percent=125), others=(first,))
        assert last(told) == ("OvercommitReached", "pods that came before leave 2Gi")
        assert numbers(told)[-2:] == [
            ("pod", "its limit 3Gi", str(3 * GI)),
            ("pod", "125% of 4Gi (overcommitPercent) - 3Gi of pods before it", str(2 * GI)),
        ]
        # The state is of a node without the rival.
        assert told.wanted_text.startswith("by what is known now it would be 2147483648 (2Gi)")

    def test_an_override(self) -> None:
        capped = profile(overrides=(compiled.Override("caches", swap_limit=100 * MI),))
        assert self.of(pod(*REPORT), capped)[-2:] == [
            ("pod", "its containers together", str(512 * MI)),
            ("pod", "at most 100Mi (overrides[caches])", str(100 * MI)),
        ]
        named = profile(WORKLOAD, overrides=(compiled.Override("caches", swap_limit=100 * MI),))
        assert self.of(pod(*REPORT), named)[-1] == ("pod", "overrides[caches]", str(100 * MI))


class TestWhatIsNotThere:
    def test_a_pod_that_waits_for_a_node(self) -> None:
        told = model.explain(model.Observed(pod(*REPORT, spec={"nodeName": ""}), profiles={}))
        assert told.summary == "not on a node yet: what it gets depends on the node's profile"
        assert told.node_text == "none yet: the pod waits to be scheduled"
        assert [(one.of, one.formula) for one in told.behaviors] == [
            ("Kubelet", "what the kubelet gives"),
            ("NoSwap", "no swap"),
            ("LimitedSwap", "a share, by the memory request of app"),
            ("WorkloadControlled", "no swap: it names no limit"),
        ]
        assert told.kernel is None

    def test_by_behavior(self) -> None:
        def of(*containers: dict[str, Any], **fields: Any) -> dict[str, str]:
            told = model.explain(model.Observed(pod(*containers, **fields)))
            return {one.of: one.formula for one in told.behaviors}

        assert of(container())["LimitedSwap"] == "no swap: the pod is BestEffort, not Burstable"
        assert of(container(), spec={"priority": 2_000_000_000})["LimitedSwap"] == "no swap: a critical pod"
        equal = of(container("a", "1Gi", "1Gi"), container("b"))
        assert equal["LimitedSwap"] == "no swap: no container has a memory request below its limit"
        limited = of(*REPORT, annotations={LIMIT: "1Gi"})
        assert limited["WorkloadControlled"] == "its own limit, as far as the profile allows"
        assert limited["Kubelet"] == "what the kubelet gives, at most its limit"
        assert of(*REPORT, annotations={POLICY: "Disabled"}) == {}
        assert of(*REPORT, annotations=DEFAULTED) != {}

    def test_who_may_see_the_pod_only(self) -> None:
        unseen = ("nodes", "nodeswapprofiles", "nodeswapstates")
        told = model.explain(model.Observed(pod(*REPORT), unseen=unseen))
        assert told.summary == "what it gets depends on the profile of its node, which cannot be seen"
        assert told.node_text == "batch-1, which may not be seen"
        assert told.unseen == list(unseen)
        assert (told.kernel, told.rules) == (None, [])
        refusing = model.explain(model.Observed(pod(annotations={POLICY: "Disabled"}), unseen=unseen))
        assert refusing.summary == "no swap, on any node with an agent"
        assert [one.outcome for one in refusing.changes] == ["swap, where the node gives some"]

    def test_the_condition_of_a_pod_is_for_those_who_may_not_see_the_state(self) -> None:
        condition = {
            "type": "swapwarden.dev/SwapPolicyEnforced",
            "status": "True",
            "reason": "PolicyDisabled",
            "message": "the kernel holds what is planned for this pod on node batch-1",
        }
        refusing = pod(
            annotations={POLICY: "Disabled"}, status={"conditions": [{"type": "Ready", "status": "True"}, condition]}
        )
        told = model.explain(model.Observed(refusing, unseen=("nodes", "nodeswapstates")))
        assert msgspec.to_builtins(told.enforced) == condition
        lines = screen.text(told, datetime.datetime.now(datetime.UTC)).splitlines()
        assert "ENFORCED   True, PolicyDisabled: the kernel holds what is planned for this pod on node batch-1" in lines
        assert explain(refusing).enforced is None
        assert model.explain(model.Observed(pod(), unseen=("nodeswapstates",))).enforced is None

    def test_a_pod_that_has_ended(self) -> None:
        told = explain(pod(*REPORT, status={"phase": "Succeeded"}), profile())
        assert told.summary == "has ended (Succeeded): pods that have ended are not planned, and use no swap"
        assert (told.rules, told.behaviors, told.kernel, told.changes) == ([], [], None, [])

    def test_a_node_that_is_gone(self) -> None:
        assert explain(pod(), node=None, state=None).node_text == "batch-1, which does not exist any more"

    def test_a_node_without_a_state(self) -> None:
        told = explain(pod(*REPORT), profile(), state=None)
        assert told.rules[0].why == "not known before an agent reports"
        assert told.node_text.endswith("by the Node's own word, as no agent has reported")
        assert told.kernel is not None
        assert (told.kernel.status, told.wanted) == (LimitStatus.UNKNOWN, None)
        assert told.summary == "up to 512Mi of swap"

    @pytest.mark.parametrize(
        ("unknown", "text"),
        [
            (names.BeforePlan.NO_SWAP, "until then it has no swap"),
            (names.BeforePlan.UNMANAGED, "until then it is left alone"),
        ],
    )
    def test_a_state_that_does_not_name_the_pod(self, unknown: names.BeforePlan, text: str) -> None:
        spec = state.StateSpec(state.ProfileRef("batch-nodes", 3), before_plan=unknown)
        told = explain(pod(*REPORT), profile(), state=reported(spec))
        assert told.wanted_text == f"the state does not name the pod yet: {text}"
        assert told.kernel is not None
        assert told.kernel.status is LimitStatus.AWAITING_STATE

    def test_a_static_pod(self) -> None:
        mirror = {"kubernetes.io/config.mirror": "hash", "kubernetes.io/config.hash": "hash"}
        told = explain(pod(*REPORT, annotations=mirror, ownerReferences=[]), profile(Behavior.KUBELET))
        assert told.wanted is not None
        assert {one.command for one in told.changes} == {"", "kubectl edit nodeswapprofile batch-nodes"}
        assert any("the pod's file on batch-1" in one.how for one in told.changes)


@pytest.mark.parametrize(
    ("facts", "found", "text"),
    [
        (FACTS, True, "can reach the disk, whatever the pod's limit: their pages are the kubelet's"),
        (msgspec.structs.replace(FACTS, tmpfs_noswap=True), False, "stay in memory: the kubelet mounts them"),
        (msgspec.structs.replace(FACTS, swap_bytes=0), False, "cannot reach a disk: the node has no swap"),
        (
            msgspec.structs.replace(FACTS, devices=[msgspec.structs.replace(DISK, encrypted=True)]),
            False,
            "reach swap encrypted only, or not at all",
        ),
        (FACTS, False, "stay in memory: the kubelet, whose pages they are, does not swap"),
    ],
)
def test_secrets(facts: state.Facts, found: bool, text: str) -> None:
    conditions = (state.Condition("SecretsOnDisk", "True", "NoTmpfsNoswap", "they can"),) if found else ()
    volumes = [{"name": "key", "secret": {"secretName": "key"}}, {"name": "scratch"}]
    made = pod(*REPORT, spec={"volumes": volumes})
    told = explain(made, profile(), state=reported(planned(made, profile()), conditions=conditions, facts=facts))
    assert told.secrets.startswith(text)
    assert ("it mounts 1 " in told.secrets) == found


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
                compiled.Override,
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
        require=draw(st.sampled_from([None, compiled.Require(encrypted=True)])),
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
    assert told.planned is not None
    assert (told.planned.swap_max, told.planned.reason) == (written.swap_max, written.reason)
    assert (told.wanted_text, told.rules[-1].reason, told.rules[-1].matched) == ("", written.reason, True)
    if told.numbers:
        assert told.numbers[-1].result == written.swap_max
    # On a node without a page of memory or of swap there is nothing to advise.
    facts = case.state.status.facts if case.state.status else None
    assert told.changes or (facts and min(facts.memory_bytes, facts.swap_bytes) < facts.page_size)
    assert all("None" not in text for text in (*(one.why for one in told.rules), *(one.how for one in told.changes)))
