"""The release's namespace: its administrators are neither root on nodes, nor able to end all enforcement."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from testbed.controlplane.servers import ControlPlane
from testbed.product import helm, manifests
from tests.integration.conftest import Json

Ask = Callable[..., tuple[int, Json]]

NAMESPACE = "swapwarden-system"
CONFIG_MAPS = f"/api/v1/namespaces/{NAMESPACE}/configmaps"
ORDER = f"{CONFIG_MAPS}/swapwarden-uninstall"
PODS = f"/api/v1/namespaces/{NAMESPACE}/pods"
RBAC = "/apis/rbac.authorization.k8s.io/v1"
GIVEN, NOT_GIVEN = {"restore": "true"}, {"restore": "false"}
OWNER = {"apiVersion": "apps/v1", "kind": "DaemonSet", "name": "swapwarden-agent", "uid": str(uuid.uuid4())}


@pytest.fixture(scope="module")
def installed(crds: ControlPlane) -> Iterator[ControlPlane]:
    crds.apply(*manifests.other_manifests(), manifests.folder() / "uninstall-configmap.yaml")
    crds.wait_for_policies()
    yield crds
    crds.kubectl(
        "delete", "--ignore-not-found", "--wait=false", *(f"--filename={path}" for path in manifests.policies())
    )


def account(cp: ControlPlane, namespace: str, name: str, *, role: str = "", rules: list[Json] | None = None) -> Ask:
    """An account that has a cluster role in the release's namespace, and in the whole cluster these rules."""
    cp.request("POST", f"/api/v1/namespaces/{namespace}/serviceaccounts", {"metadata": {"name": name}})
    subjects = [{"kind": "ServiceAccount", "namespace": namespace, "name": name}]
    group = "rbac.authorization.k8s.io"
    if role:
        body = {"roleRef": {"apiGroup": group, "kind": "ClusterRole", "name": role}, "subjects": subjects}
        cp.create(f"{RBAC}/namespaces/{NAMESPACE}/rolebindings", {"metadata": {"generateName": "test-"}, **body})
    if rules:
        made = cp.create(f"{RBAC}/clusterroles", {"metadata": {"generateName": "test-"}, "rules": rules})
        ref = {"apiGroup": group, "kind": "ClusterRole", "name": made["metadata"]["name"]}
        cp.create(
            f"{RBAC}/clusterrolebindings", {"metadata": {"generateName": "test-"}, "roleRef": ref, "subjects": subjects}
        )
    token = cp.token(namespace, name)
    return lambda method, path, body: cp.request(method, path, body, token=token)


@pytest.fixture(scope="module")
def tenant(installed: ControlPlane, eventually: Callable[..., None]) -> Ask:
    """A user with the rights of the namespace's administrators, and no others."""
    ask = account(installed, "default", "namespace-admin", role="system:aggregate-to-edit")
    probe = {"metadata": {"name": "probe"}}
    eventually(lambda: ask("POST", f"{CONFIG_MAPS}?dryRun=All", probe)[0] == 201, "its rights")
    return ask


@pytest.fixture(scope="module")
def daemon_sets(installed: ControlPlane, eventually: Callable[..., None]) -> Ask:
    """The controller of DaemonSets, as far as admission knows it."""
    ask = account(installed, "kube-system", "daemon-set-controller", role="system:aggregate-to-edit")
    eventually(lambda: ask("POST", f"{PODS}?dryRun=All", pod())[0] == 201, "its rights")
    return ask


def config_map(data: Json) -> Json:
    return {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "swapwarden-uninstall"}, "data": data}


def order(installed: ControlPlane) -> Any:
    return installed.get(ORDER)["data"]["restore"]


@pytest.fixture
def given(installed: ControlPlane) -> Iterator[None]:
    yield
    installed.kubectl(
        "apply", "--server-side", "--force-conflicts", f"--filename={manifests.folder()}/uninstall-configmap.yaml"
    )


@pytest.mark.usefixtures("given")
def test_who_administers_the_namespace_only_does_not_end_enforcement(installed: ControlPlane, tenant: Ask) -> None:
    for method, path, body in (
        ("PATCH", ORDER, {"data": GIVEN}),
        ("PUT", ORDER, config_map(GIVEN)),
        ("PATCH", ORDER, {"data": {**GIVEN, "more": "x"}, "metadata": {"labels": {"a": "b"}}}),
    ):
        status, answer = tenant(method, path, body)
        assert status == 403, answer
        assert "needs the right to `restore` nodeswapstates" in answer["message"]
    assert order(installed) == "false"
    assert tenant("DELETE", ORDER, None)[0] == 200
    status, answer = tenant("POST", CONFIG_MAPS, config_map(GIVEN))
    assert status == 403, answer
    assert "ValidatingAdmissionPolicy 'swapwarden-uninstall-order'" in answer["message"]
    assert tenant("POST", CONFIG_MAPS, config_map(NOT_GIVEN))[0] == 201


@pytest.mark.usefixtures("given")
def test_users_who_may_restore_can_order_it(
    installed: ControlPlane, eventually: Callable[..., None], tenant: Ask
) -> None:
    rule = {"apiGroups": ["swapwarden.dev"], "resources": ["nodeswapstates"], "verbs": ["restore"]}
    allowed = account(installed, "default", "uninstaller", role="system:aggregate-to-edit", rules=[rule])
    eventually(lambda: allowed("PATCH", ORDER, {"data": GIVEN})[0] == 200, "its right")
    assert order(installed) == "true"
    # An unchanged value is no order: changes of other fields are allowed, and the order can be taken back.
    assert tenant("PATCH", ORDER, {"metadata": {"labels": {"a": "b"}}})[0] == 200
    assert tenant("PATCH", ORDER, {"data": NOT_GIVEN})[0] == 200
    assert tenant("PATCH", ORDER, {"data": GIVEN})[0] == 403
    assert installed.request("PATCH", ORDER, {"data": GIVEN})[0] == 200, "a cluster administrator"


def test_other_config_maps_are_nobodys_business(tenant: Ask) -> None:
    for name, path in (("other", CONFIG_MAPS), ("swapwarden-uninstall", "/api/v1/namespaces/default/configmaps")):
        status, answer = tenant("POST", f"{path}?dryRun=All", {"metadata": {"name": name}, "data": GIVEN})
        assert status == 201 or "forbidden: User" in answer["message"], answer


def pod(spec: Json | None = None, container: Json | None = None, **metadata: Any) -> Json:
    containers = [{"name": "app", "image": "busybox", **(container or {})}]
    return {
        "metadata": {"name": f"pod-{uuid.uuid4().hex[:8]}", **metadata},
        "spec": {"serviceAccountName": "swapwarden-agent", "containers": containers, **(spec or {})},
    }


HOST = {"volumes": [{"name": "root", "hostPath": {"path": "/"}}]}
POWERS: dict[str, tuple[Json, Json]] = {
    "host path": (HOST, {}),
    "processes": ({"hostPID": True}, {}),
    "IPC": ({"hostIPC": True}, {}),
    "privileged": ({}, {"securityContext": {"privileged": True}}),
    "capability": ({}, {"securityContext": {"capabilities": {"add": ["SYS_ADMIN"]}}}),
    "capability of the network on the node's network": (
        {"hostNetwork": True},
        {"securityContext": {"capabilities": {"add": ["NET_ADMIN"]}}},
    ),
    "Windows process of the host": (
        {"hostNetwork": True, "securityContext": {"windowsOptions": {"hostProcess": True}}},
        {},
    ),
    "Windows container of the host": (
        {"hostNetwork": True},
        {"securityContext": {"windowsOptions": {"hostProcess": True}}},
    ),
    "in an init container": (
        {"initContainers": [{"name": "i", "image": "i", "securityContext": {"privileged": True}}]},
        {},
    ),
}


@pytest.mark.parametrize("power", POWERS)
def test_users_who_may_create_pods_there_are_not_root_on_nodes(power: str, tenant: Ask) -> None:
    status, answer = tenant("POST", f"{PODS}?dryRun=All", pod(*POWERS[power], ownerReferences=[OWNER]))
    assert status == 403, answer
    assert "only the pods of its DaemonSets may have host paths" in answer["message"]


def test_pods_without_powers_are_admitted(tenant: Ask) -> None:
    modest = {"securityContext": {"privileged": False, "capabilities": {"add": ["NET_BIND_SERVICE"], "drop": ["ALL"]}}}
    volumes = [{"name": "x", "emptyDir": {}}, {"name": "y", "projected": {"sources": []}}]
    mesh = {"name": "i", "image": "i", "securityContext": {"capabilities": {"add": ["NET_ADMIN", "NET_RAW"]}}}
    for spec in (
        {},
        {"volumes": volumes, "hostNetwork": True, "initContainers": [{"name": "i", "image": "i"}]},
        {"volumes": volumes, "initContainers": [mesh]},
    ):
        status, answer = tenant("POST", f"{PODS}?dryRun=All", pod(spec, modest))
        assert status == 201, answer


def test_the_other_daemon_sets_of_the_release_have_their_pods_where_they_exist(
    installed: ControlPlane, eventually: Callable[..., None], daemon_sets: Ask
) -> None:
    owner = {**OWNER, "name": "swapwarden-nri"}
    admitted = pod({**HOST, "serviceAccountName": "swapwarden-nri"}, ownerReferences=[owner])
    remover, stranger = {**OWNER, "name": "swapwarden-drop-ins"}, {**HOST, "serviceAccountName": "swapwarden-nri"}
    removing = pod(HOST, ownerReferences=[remover])
    where = f"{PODS}?dryRun=All"
    policy = "--show-only=templates/agent/policy-host-access.yaml"
    try:
        installed.apply(helm.render(policy, "--show-only=templates/nri/serviceaccount.yaml", "--set=nri.mode=auto"))
        eventually(lambda: daemon_sets("POST", where, admitted)[0] == 201, "the policy with it")
        for other in (
            pod({**HOST, "serviceAccountName": "swapwarden-nri"}, ownerReferences=[OWNER]),
            pod({**HOST, "serviceAccountName": "swapwarden-webhook"}, ownerReferences=[owner]),
            pod(HOST, ownerReferences=[owner]),
        ):
            assert daemon_sets("POST", where, other)[0] == 403
        assert daemon_sets("POST", where, removing)[0] == 403
        installed.apply(helm.render(policy, "--set=nri.mode=auto", "--set=agent.dropIns.mount=true"))
        eventually(lambda: daemon_sets("POST", where, removing)[0] == 201, "the policy with the uninstallation's")
        assert daemon_sets("POST", where, pod(stranger, ownerReferences=[remover]))[0] == 403
    finally:
        installed.apply(helm.render(policy, "--set=nri.mode=off"))
        eventually(lambda: daemon_sets("POST", where, admitted)[0] == 403, "the policy without it")


def test_the_agents_daemon_set_has_its_pods(daemon_sets: Ask) -> None:
    status, answer = daemon_sets("POST", f"{PODS}?dryRun=All", pod(HOST, ownerReferences=[OWNER]))
    assert status == 201, answer
    for other in (
        pod(HOST, ownerReferences=[{**OWNER, "name": "mine"}]),
        pod(HOST),
        pod({**HOST, "serviceAccountName": "default"}, ownerReferences=[OWNER]),
    ):
        assert daemon_sets("POST", f"{PODS}?dryRun=All", other)[0] == 403


def test_users_who_are_root_on_nodes_anyway_may_do_it(installed: ControlPlane, eventually: Callable[..., None]) -> None:
    assert installed.request("POST", f"{PODS}?dryRun=All", pod(HOST))[0] == 201
    rule = {"apiGroups": [""], "resources": ["nodes/proxy"], "verbs": ["create"]}
    allowed = account(installed, "default", "node-operator", role="system:aggregate-to-edit", rules=[rule])
    eventually(lambda: allowed("POST", f"{PODS}?dryRun=All", pod(HOST))[0] == 201, "its right")


def test_a_debugging_container_has_no_powers_either(installed: ControlPlane, eventually: Callable[..., None]) -> None:
    made = installed.create(PODS, pod())["metadata"]["name"]
    agent = installed.create(PODS, pod(HOST))["metadata"]["name"]
    rule = {"apiGroups": [""], "resources": ["pods", "pods/ephemeralcontainers"], "verbs": ["get", "patch"]}
    tenant = account(installed, "default", "debugger", rules=[rule])
    path = f"{PODS}/{made}/ephemeralcontainers?dryRun=All"
    debugger = {"name": "debug", "image": "busybox", "targetContainerName": "app"}
    powerful = {**debugger, "securityContext": {"privileged": True}}
    eventually(lambda: tenant("PATCH", path, {"spec": {"ephemeralContainers": [debugger]}})[0] == 200, "its right")
    status, answer = tenant("PATCH", path, {"spec": {"ephemeralContainers": [powerful]}})
    assert status == 403, answer
    assert "only the pods of its DaemonSets" in answer["message"]
    of_agent = f"{PODS}/{agent}/ephemeralcontainers?dryRun=All"
    for each in (debugger, {**debugger, "volumeMounts": [{"name": "root", "mountPath": "/host"}]}):
        status, answer = tenant("PATCH", of_agent, {"spec": {"ephemeralContainers": [each]}})
        assert status == 403, answer
        assert "no pod with host paths" in answer["message"]
    assert installed.request("PATCH", of_agent, {"spec": {"ephemeralContainers": [debugger]}})[0] == 200
    assert tenant("PATCH", f"{PODS}/{made}", {"metadata": {"labels": {"a": "b"}}})[0] == 200
    for name in (made, agent):
        installed.request("DELETE", f"{PODS}/{name}?gracePeriodSeconds=0")


def test_other_namespaces_are_not_held_to_it(installed: ControlPlane, eventually: Callable[..., None]) -> None:
    ask = account(
        installed, "default", "other-tenant", rules=[{"apiGroups": [""], "resources": ["pods"], "verbs": ["create"]}]
    )
    elsewhere = pod({**HOST, "serviceAccountName": "other-tenant"})
    eventually(lambda: ask("POST", "/api/v1/namespaces/default/pods?dryRun=All", elsewhere)[0] == 201, "admitted")
