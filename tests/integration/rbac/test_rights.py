"""The rights of each part, asked with its own token: no more than it needs."""

from __future__ import annotations

import contextlib
import uuid
from collections.abc import Iterator
from typing import Any

import pytest
from swapwarden.policy.observed import revisions

from testbed.controlplane.servers import ControlPlane
from testbed.product import manifests
from tests.integration.conftest import Eventually, Json

NAMESPACE = "swapwarden-system"
STATES = "/apis/swapwarden.dev/v1alpha1/nodeswapstates"
PROFILES = "/apis/swapwarden.dev/v1alpha1/nodeswapprofiles"
REVISIONS = revisions.collection(NAMESPACE)
PODS = f"/api/v1/namespaces/{NAMESPACE}/pods"
LEASES = f"/apis/coordination.k8s.io/v1/namespaces/{NAMESPACE}/leases"
REVIEWS = "/apis/authorization.k8s.io/v1/selfsubjectrulesreviews"


class Part:
    """One of the product's parts, as the API server sees it."""

    def __init__(self, control_plane: ControlPlane, token: str) -> None:
        self._control_plane, self._token = control_plane, token

    def ask(self, method: str, path: str, body: Json | None = None) -> tuple[int, Any]:
        return self._control_plane.request(method, path, body, token=self._token)

    def is_forbidden(self, method: str, path: str, body: Json | None = None) -> bool:
        """Whether it has no right to this at all (a refusal by a policy does not count)."""
        status, answer = self.ask(method, path, body)
        return status == 403 and "cannot" in answer["message"] and "ValidatingAdmissionPolicy" not in answer["message"]

    def rules(self, namespace: str) -> set[tuple[str, str, tuple[str, ...]]]:
        """All rights in a namespace, cluster-wide ones included, but those of every service account."""
        everybody = Part(self._control_plane, self._control_plane.token("default", "default"))
        return self.all_rules(namespace) - everybody.all_rules(namespace)

    def all_rules(self, namespace: str) -> set[tuple[str, str, tuple[str, ...]]]:
        _, answer = self.ask("POST", REVIEWS, {"spec": {"namespace": namespace}})
        return {
            (resource, ",".join(rule.get("resourceNames", [])), tuple(sorted(rule["verbs"])))
            for rule in answer["status"]["resourceRules"]
            for resource in rule["resources"]
        }


@pytest.fixture(scope="module")
def installed(crds: ControlPlane) -> Iterator[ControlPlane]:
    """The rights and the policies of build/manifests, without the webhook's registration."""
    crds.apply(*manifests.other_manifests())
    crds.request("POST", "/api/v1/namespaces/default/serviceaccounts", {"metadata": {"name": "default"}})
    crds.wait_for_policies()
    yield crds
    policies = [f"--filename={path}" for path in manifests.policies()]
    crds.kubectl("delete", "--ignore-not-found", "--wait=false", *policies)


@contextlib.contextmanager
def made_node(control_plane: ControlPlane) -> Iterator[str]:
    """A node with a state and an agent's pod, all of the same name."""
    name = f"node-{uuid.uuid4().hex[:8]}"
    control_plane.create("/api/v1/nodes", {"metadata": {"name": name, "labels": {"pool": "batch"}}})
    body = {
        "apiVersion": "swapwarden.dev/v1alpha1",
        "kind": "NodeSwapState",
        "metadata": {"name": name},
        "spec": {"profileRef": {"name": "(built-in)"}, "epoch": 1},
    }
    control_plane.create(STATES, body)
    spec = {
        "nodeName": name,
        "serviceAccountName": "swapwarden-agent",
        "containers": [{"name": "agent", "image": "none"}],
    }
    control_plane.create(PODS, {"metadata": {"name": name}, "spec": spec})
    yield name
    for path in (f"{PODS}/{name}?gracePeriodSeconds=0", f"{STATES}/{name}", f"/api/v1/nodes/{name}"):
        control_plane.request("DELETE", path)


@pytest.fixture(scope="module")
def node(installed: ControlPlane) -> Iterator[str]:
    with made_node(installed) as name:
        yield name


@pytest.fixture(scope="module")
def other_node(installed: ControlPlane) -> Iterator[str]:
    with made_node(installed) as name:
        yield name


@pytest.fixture(scope="module")
def agent(installed: ControlPlane, node: str) -> Part:
    """The agent of NODE, with a token bound to its pod."""
    return Part(installed, installed.token(NAMESPACE, "swapwarden-agent", pod=node))


@pytest.fixture(scope="module")
def controller(installed: ControlPlane) -> Part:
    return Part(installed, installed.token(NAMESPACE, "swapwarden-controller"))


@pytest.fixture
def profile(installed: ControlPlane) -> Iterator[str]:
    name = f"profile-{uuid.uuid4().hex[:8]}"
    body = {
        "apiVersion": "swapwarden.dev/v1alpha1",
        "kind": "NodeSwapProfile",
        "metadata": {"name": name},
        "spec": {"nodeSelector": {"matchLabels": {"nobody": "has-this"}}},
    }
    installed.create(PROFILES, body)
    yield f"{PROFILES}/{name}"
    installed.request("DELETE", f"{PROFILES}/{name}")


def status_of(generation: int) -> Json:
    return {"status": {"observedGeneration": generation}}


def refusal(answer: Json) -> str:
    """The words of the policy that refused, without those of the API server."""
    assert "ValidatingAdmissionPolicy" in answer["message"]
    return str(answer["message"]).partition("denied request: ")[2]


# --- the agent ---


def test_the_agent_has_these_rights_and_no_other(agent: Part) -> None:
    wanted = {("nodeswapstates", "", ("list", "watch")), ("nodeswapstates/status", "", ("patch",))}
    for namespace in ("default", NAMESPACE):
        assert agent.rules(namespace) == wanted


def test_the_agent_reads_states_and_reports_in_its_own(agent: Part, installed: ControlPlane, node: str) -> None:
    assert agent.ask("GET", f"{STATES}?fieldSelector=metadata.name={node}")[0] == 200
    status, answer = agent.ask("PATCH", f"{STATES}/{node}/status", status_of(7))
    assert status == 200, answer
    assert installed.get(f"{STATES}/{node}")["status"]["observedGeneration"] == 7


@pytest.mark.parametrize(
    "path",
    [
        "/api/v1/pods",
        PODS,
        "/api/v1/nodes",
        "/api/v1/secrets",
        f"/api/v1/namespaces/{NAMESPACE}/secrets",
        f"/api/v1/namespaces/{NAMESPACE}/configmaps",
        "/api/v1/namespaces",
        "/api/v1/events",
        PROFILES,
        LEASES,
        "/apis/apps/v1/deployments",
    ],
)
def test_the_agent_reads_nothing_else(agent: Part, path: str) -> None:
    assert agent.is_forbidden("GET", path)


def test_the_agent_reads_no_node_not_even_its_own(agent: Part, node: str) -> None:
    # It lists and watches.
    assert agent.is_forbidden("GET", f"{STATES}/{node}")
    assert agent.is_forbidden("GET", f"/api/v1/nodes/{node}")
    assert agent.is_forbidden("GET", f"{PODS}/{node}")


def test_the_agent_writes_nothing_else(agent: Part, node: str) -> None:
    assert agent.is_forbidden("PATCH", f"{STATES}/{node}", {"spec": {"mode": "Audit"}})
    assert agent.is_forbidden("PUT", f"{STATES}/{node}", {})
    assert agent.is_forbidden("PUT", f"{STATES}/{node}/status", {})
    assert agent.is_forbidden("DELETE", f"{STATES}/{node}")
    assert agent.is_forbidden("POST", STATES, {"metadata": {"name": "made-up"}})
    assert agent.is_forbidden("PATCH", f"/api/v1/nodes/{node}", {"metadata": {"labels": {"a": "b"}}})
    assert agent.is_forbidden("POST", f"/api/v1/namespaces/{NAMESPACE}/events", {})
    assert agent.is_forbidden("POST", f"/api/v1/namespaces/{NAMESPACE}/serviceaccounts/default/token", {})


def test_a_status_carries_no_spec_past_the_subresource(agent: Part, installed: ControlPlane, node: str) -> None:
    before = installed.get(f"{STATES}/{node}")
    sneaky = {"spec": {"mode": "Audit", "epoch": 99}, "metadata": {"labels": {"a": "b"}}, **status_of(8)}
    assert agent.ask("PATCH", f"{STATES}/{node}/status", sneaky)[0] == 200
    after = installed.get(f"{STATES}/{node}")
    assert after["spec"] == before["spec"]
    assert after["metadata"].get("labels") == before["metadata"].get("labels")
    assert after["metadata"]["generation"] == before["metadata"]["generation"]


def test_the_agent_cannot_report_for_another_node(
    agent: Part, installed: ControlPlane, node: str, other_node: str, eventually: Eventually
) -> None:
    path = f"{STATES}/{other_node}/status"
    eventually(lambda: agent.ask("PATCH", path, status_of(9))[0] == 403, "the policy in force")
    status, answer = agent.ask("PATCH", path, status_of(10))
    assert (status, answer["reason"]) == (403, "Forbidden")
    assert refusal(answer) == (
        f"the agent of node {node} may only write the NodeSwapState of that node, not that of {other_node}"
    )
    assert installed.get(f"{STATES}/{other_node}").get("status", {}).get("observedGeneration") != 10


def test_a_token_that_names_no_node_writes_nothing(installed: ControlPlane, node: str, eventually: Eventually) -> None:
    unbound = Part(installed, installed.token(NAMESPACE, "swapwarden-agent"))
    assert unbound.ask("GET", STATES)[0] == 200
    path = f"{STATES}/{node}/status"
    eventually(lambda: unbound.ask("PATCH", path, status_of(11))[0] == 403, "the policy in force")
    status, answer = unbound.ask("PATCH", path, status_of(12))
    assert status == 403
    assert "the agent's token names no node" in refusal(answer)
    assert "bound to the agent's pod" in refusal(answer)


@contextlib.contextmanager
def mistake(control_plane: ControlPlane, part: Part, account: str, eventually: Eventually) -> Iterator[Part]:
    """The part after someone made its account an administrator."""
    path = "/apis/rbac.authorization.k8s.io/v1/clusterrolebindings"
    name = f"mistake-{uuid.uuid4().hex[:8]}"
    body = {
        "metadata": {"name": name},
        "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": "cluster-admin"},
        "subjects": [{"kind": "ServiceAccount", "name": account, "namespace": NAMESPACE}],
    }
    control_plane.create(path, body)
    eventually(lambda: part.ask("GET", "/api/v1/secrets")[0] == 200, "the mistake in force")
    yield part
    control_plane.request("DELETE", f"{path}/{name}")
    eventually(lambda: part.ask("GET", "/api/v1/secrets")[0] == 403, "the mistake undone")


@pytest.fixture
def overprivileged(installed: ControlPlane, agent: Part, eventually: Eventually) -> Iterator[Part]:
    """The agent with too many rights."""
    with mistake(installed, agent, "swapwarden-agent", eventually) as part:
        yield part


def test_the_policy_holds_whatever_rights_the_account_is_given(
    overprivileged: Part, profile: str, node: str, other_node: str
) -> None:
    state = {"apiVersion": "swapwarden.dev/v1alpha1", "kind": "NodeSwapState", "metadata": {"name": "made-up"}}
    for method, path, body in (
        ("PATCH", f"{STATES}/{node}", {"spec": {"mode": "Audit"}}),
        ("PATCH", f"{STATES}/{other_node}/status", status_of(13)),
        ("DELETE", f"{STATES}/{node}", None),
        ("POST", STATES, {**state, "spec": {"profileRef": {"name": "x"}}}),
        ("PATCH", profile, {"spec": {"mode": "Audit"}}),
        ("DELETE", profile, None),
    ):
        status, answer = overprivileged.ask(method, path, body)
        assert status == 403, (method, path, answer)
        assert refusal(answer)
    assert overprivileged.ask("PATCH", f"{STATES}/{node}/status", status_of(14))[0] == 200


# --- the controller ---


def test_the_controller_has_these_rights_and_no_other(controller: Part) -> None:
    everywhere = {
        ("pods", "", ("list", "watch")),
        ("namespaces", "", ("list", "watch")),
        ("nodes", "", ("list", "patch", "watch")),
        ("events", "", ("create", "patch")),
        ("nodeswapprofiles", "", ("get", "list", "patch", "watch")),
        ("nodeswapprofiles/status", "", ("patch",)),
        ("nodeswapstates", "", ("create", "get", "list", "patch", "watch")),
        ("mutatingwebhookconfigurations", "swapwarden", ("get", "update")),
    }
    assert controller.rules("default") == everywhere
    assert controller.rules(NAMESPACE) == everywhere | {
        ("leases", "", ("create",)),
        ("leases", "swapwarden-controller", ("get", "update")),
        ("secrets", "swapwarden-webhook-tls", ("get", "update")),
        ("configmaps", "swapwarden-uninstall", ("get",)),
        ("controllerrevisions", "", ("create", "delete", "list")),
    }


def test_the_controller_keeps_revisions_of_profiles_and_touches_no_others(
    controller: Part, installed: ControlPlane, profile: str
) -> None:
    uid = installed.get(profile)["metadata"]["uid"]
    made = revisions.to_object(profile.rpartition("/")[2], uid, 1, {"nodeSelector": {}})
    status, answer = controller.ask("POST", REVISIONS, made)
    assert status == 201, answer
    assert answer["data"] == made["data"]
    path = f"{REVISIONS}/{made['metadata']['name']}"
    assert controller.ask("DELETE", path)[0] == 200
    daemon_set = {"apiVersion": "apps/v1", "kind": "DaemonSet", "name": "agent", "uid": str(uuid.uuid4())}
    name = f"agent-{uuid.uuid4().hex[:8]}"
    for owners in ([], [daemon_set], [daemon_set, *made["metadata"]["ownerReferences"]]):
        other = {**made, "metadata": {"name": name, "ownerReferences": owners}}
        status, answer = controller.ask("POST", REVISIONS, other)
        assert (status, refusal(answer)) == (
            403,
            "the controller may only create and delete revisions of NodeSwapProfiles",
        )
    installed.create(REVISIONS, {**made, "metadata": {"name": name, "ownerReferences": [daemon_set]}})
    status, answer = controller.ask("DELETE", f"{REVISIONS}/{name}")
    assert (status, refusal(answer)) == (403, "the controller may only create and delete revisions of NodeSwapProfiles")
    installed.request("DELETE", f"{REVISIONS}/{name}")


FINALIZER = "swapwarden.dev/release-nodes"


def test_the_controller_changes_one_finalizer_of_profiles_and_nothing_else(
    controller: Part, installed: ControlPlane, profile: str
) -> None:
    others = ["example.com/theirs"]
    installed.request("PATCH", profile, {"metadata": {"finalizers": others}})
    for finalizers in ([*others, FINALIZER], others):
        status, answer = controller.ask("PATCH", profile, {"metadata": {"finalizers": finalizers}})
        assert status == 200, answer
    changes: list[Json] = [
        {"metadata": {"finalizers": []}},
        {"metadata": {"finalizers": [*others, "example.com/mine"]}},
        {"metadata": {"labels": {"a": "b"}}},
        {"metadata": {"annotations": {"a": "b"}}},
        {"metadata": {"ownerReferences": [{"apiVersion": "v1", "kind": "Pod", "name": "gone", "uid": "gone"}]}},
        {"spec": {"priority": 7}},
    ]
    for change in changes:
        status, answer = controller.ask("PATCH", profile, change)
        assert status == 403, change
        assert refusal(answer) == f"the controller may only change this finalizer of a profile: {FINALIZER}"
    installed.request("PATCH", profile, {"metadata": {"finalizers": None}})


def test_the_controller_does_its_work(controller: Part, installed: ControlPlane, profile: str, node: str) -> None:
    core = ("/api/v1/pods?limit=1", "/api/v1/nodes?limit=1", "/api/v1/namespaces?limit=1")
    for path in (*core, f"{PROFILES}?limit=1", f"{STATES}?limit=1"):
        assert controller.ask("GET", path)[0] == 200, path
    name = f"made-{uuid.uuid4().hex[:8]}"
    state = {
        "apiVersion": "swapwarden.dev/v1alpha1",
        "kind": "NodeSwapState",
        "metadata": {"name": name},
        "spec": {"profileRef": {"name": "(built-in)"}},
    }
    assert controller.ask("POST", STATES, state)[0] == 201
    assert controller.ask("PATCH", f"{STATES}/{name}", {"spec": {"epoch": 2}})[0] == 200
    installed.request("DELETE", f"{STATES}/{name}")
    status, answer = controller.ask("PATCH", f"{profile}/status", {"status": {"observedGeneration": 1}})
    assert status == 200, answer
    labels = {
        "node.swapwarden.dev/swap": "true",
        "node.swapwarden.dev/swap-behavior": "LimitedSwap",
        "node.swapwarden.dev/swap-backing": "nvme_zram",
        "node.swapwarden.dev/swap-encrypted": "true",
        "feature.node.kubernetes.io/memory-swap": "true",
        "swapwarden.dev.node-restriction.kubernetes.io/encrypted-swap": "true",
    }
    status, answer = controller.ask("PATCH", f"/api/v1/nodes/{node}", {"metadata": {"labels": labels}})
    assert status == 200, answer
    removed = {"metadata": {"labels": dict.fromkeys(labels)}}
    assert controller.ask("PATCH", f"/api/v1/nodes/{node}", removed)[0] == 200
    assert installed.get(f"/api/v1/nodes/{node}")["metadata"]["labels"] == {"pool": "batch"}
    lease = {"metadata": {"name": "swapwarden-controller"}, "spec": {"holderIdentity": "one"}}
    status, answer = controller.ask("POST", LEASES, lease)
    assert status in {201, 409}, answer
    found = controller.ask("GET", f"{LEASES}/swapwarden-controller")[1]
    assert controller.ask("PUT", f"{LEASES}/swapwarden-controller", found)[0] == 200
    installed.request("DELETE", f"{LEASES}/swapwarden-controller")
    event = {
        "metadata": {"generateName": "web.", "namespace": "default"},
        "involvedObject": {"kind": "Pod", "name": "web", "namespace": "default"},
        "reason": "Test",
    }
    status, answer = controller.ask("POST", "/api/v1/namespaces/default/events", event)
    assert status == 201, answer


@pytest.mark.parametrize(
    ("method", "path", "body"),
    [
        ("GET", "/api/v1/secrets", None),
        ("GET", f"/api/v1/namespaces/{NAMESPACE}/secrets", None),
        ("GET", f"/api/v1/namespaces/{NAMESPACE}/configmaps", None),
        ("PATCH", "/api/v1/namespaces/default", {"metadata": {"labels": {"a": "b"}}}),
        ("POST", PODS, {"metadata": {"name": "x"}}),
        ("DELETE", f"{PODS}/x", None),
        ("PATCH", f"{PODS}/x", {"metadata": {"labels": {"a": "b"}}}),
        ("POST", f"{PODS}/x/eviction", {}),
        ("POST", f"{PODS}/x/exec", {}),
        ("DELETE", "/api/v1/nodes/x", None),
        ("PATCH", "/api/v1/nodes/x/status", {}),
        ("POST", PROFILES, {}),
        ("DELETE", f"{PROFILES}/x", None),
        ("PATCH", f"{STATES}/x/status", {}),
        ("DELETE", f"{STATES}/x", None),
        ("GET", "/apis/coordination.k8s.io/v1/namespaces/kube-system/leases/kube-scheduler", None),
        ("PUT", f"{LEASES}/another", {}),
        ("POST", f"/api/v1/namespaces/{NAMESPACE}/serviceaccounts/swapwarden-agent/token", {}),
        ("PATCH", "/apis/admissionregistration.k8s.io/v1/validatingadmissionpolicies/swapwarden-agent-own-node", {}),
        ("GET", f"/apis/nfd.k8s-sigs.io/v1alpha1/namespaces/{NAMESPACE}/nodefeatures", None),
        ("POST", f"/apis/nfd.k8s-sigs.io/v1alpha1/namespaces/{NAMESPACE}/nodefeatures", {}),
    ],
)
def test_the_controller_may_not(controller: Part, method: str, path: str, body: Json | None) -> None:
    assert controller.is_forbidden(method, path, body)


@pytest.mark.parametrize(
    ("body", "says"),
    [
        ({"spec": {"unschedulable": True}}, "the controller may only change these taints in the spec of a node: node."),
        (
            {"metadata": {"finalizers": ["example.com/mine"]}},
            "the controller may only change labels and taints of a node",
        ),
        (
            {"metadata": {"ownerReferences": [{"apiVersion": "v1", "kind": "Pod", "name": "gone", "uid": "gone"}]}},
            "the controller may only change labels and taints of a node",
        ),
        (
            {"spec": {"taints": [{"key": "a", "value": "b", "effect": "NoSchedule"}]}},
            "the controller may only change these taints in the spec of a node: node.swapwarden.dev/swap",
        ),
        (
            {"spec": {"taints": [{"key": "node.swapwarden.dev/swap", "effect": "NoExecute"}]}},
            "the controller may only change these taints in the spec of a node: node.swapwarden.dev/swap",
        ),
        (
            {"spec": {"taints": [{"key": "node.swapwarden.dev/memory-pressure", "effect": "NoExecute"}]}},
            "the controller may only change these taints in the spec of a node: node.swapwarden.dev/swap, node.",
        ),
        ({"metadata": {"annotations": {"a": "b"}}}, "the controller may only change labels and taints of a node"),
        ({"metadata": {"labels": {"a": "b"}}}, "the controller may only change these labels of a node: feature.node"),
        (
            {
                "metadata": {
                    "labels": {"node.swapwarden.dev/swap-other": "b", "node-restriction.kubernetes.io/swap": "x"}
                }
            },
            "the controller may only change these labels of a node: feature.node",
        ),
        (
            {"metadata": {"labels": {"pool": "other"}}},
            "the controller may only change these labels of a node: feature.node",
        ),
        (
            {"metadata": {"labels": {"pool": None}}},
            "the controller may only change these labels of a node: feature.node",
        ),
    ],
)
def test_the_controller_changes_nothing_of_a_node_but_its_labels(
    controller: Part, installed: ControlPlane, node: str, eventually: Eventually, body: Json, says: str
) -> None:
    path = f"/api/v1/nodes/{node}"
    before = installed.get(path)
    eventually(
        lambda: controller.ask("PATCH", f"{path}?dryRun=All", {"spec": {"unschedulable": True}})[0] == 403,
        "the policy in force",
    )
    status, answer = controller.ask("PATCH", path, body)
    assert status == 403, answer
    assert refusal(answer).startswith(says)
    assert installed.get(path)["spec"] == before["spec"]


def test_nor_by_way_of_the_status_whatever_rights_it_is_given(
    controller: Part, installed: ControlPlane, node: str, eventually: Eventually
) -> None:
    path = f"/api/v1/nodes/{node}"
    before = installed.get(path)
    with mistake(installed, controller, "swapwarden-controller", eventually):
        nothing: Json = {"status": {}}
        eventually(
            lambda: controller.ask("PATCH", f"{path}/status?dryRun=All", nothing)[0] == 403, "the policy in force"
        )
        for body in ({"metadata": {"labels": {"pool": "other"}}}, {"status": {"phase": "Running"}}):
            status, answer = controller.ask("PATCH", f"{path}/status", body)
            assert status == 403, answer
            assert refusal(answer).startswith("the controller may not write the status of a node")
    assert installed.get(path)["metadata"]["labels"] == before["metadata"]["labels"]


# --- the webhook ---


def test_the_webhook_has_no_right_at_all(installed: ControlPlane) -> None:
    webhook = Part(installed, installed.token(NAMESPACE, "swapwarden-webhook"))
    assert webhook.rules(NAMESPACE) == set()
    for path in ("/api/v1/pods", "/api/v1/namespaces", "/api/v1/secrets", PROFILES, STATES):
        assert webhook.is_forbidden("GET", path)
