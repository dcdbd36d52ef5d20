"""The testbed's control plane does what the other tests count on."""

import ssl
import stat
import urllib.request
from pathlib import Path

import pytest

from testbed.base.process import ProcessError
from testbed.controlplane.servers import ControlPlane, ControlPlaneError

CRD = """
apiVersion: apiextensions.k8s.io/v1
kind: CustomResourceDefinition
metadata: {name: lamps.testbed.example.com}
spec:
  group: testbed.example.com
  names: {kind: Lamp, plural: lamps}
  scope: Cluster
  versions:
  - {name: v1, served: true, storage: true, schema: {openAPIV3Schema: {type: object}}}
"""


def _pod(name: str, node: str) -> dict[str, object]:
    containers = [{"name": "main", "image": "none", "resources": {"requests": {"memory": "16Mi"}}}]
    return {"metadata": {"name": name}, "spec": {"nodeName": node, "containers": containers}}


def test_a_token_bound_to_a_pod_carries_its_node(control_plane: ControlPlane, fresh_namespace: str) -> None:
    control_plane.create("/api/v1/nodes", {"metadata": {"name": f"node-{fresh_namespace}"}})
    control_plane.create(f"/api/v1/namespaces/{fresh_namespace}/pods", _pod("bound", f"node-{fresh_namespace}"))
    token = control_plane.token(fresh_namespace, "default", pod="bound")
    review = {"apiVersion": "authentication.k8s.io/v1", "kind": "SelfSubjectReview"}
    status, answer = control_plane.request(
        "POST", "/apis/authentication.k8s.io/v1/selfsubjectreviews", review, token=token
    )
    assert status == 201
    who = answer["status"]["userInfo"]
    assert who["username"] == f"system:serviceaccount:{fresh_namespace}:default"
    assert who["extra"]["authentication.kubernetes.io/node-name"] == [f"node-{fresh_namespace}"]


def test_rbac_refuses_a_service_account_without_rights(control_plane: ControlPlane, fresh_namespace: str) -> None:
    token = control_plane.token(fresh_namespace, "default")
    status, answer = control_plane.request("GET", "/api/v1/nodes", token=token)
    assert status == 403
    assert "cannot list resource" in answer["message"]
    assert control_plane.request("GET", "/api/v1/nodes", token="not-a-token")[0] == 401


def test_kubectl_uses_the_token_it_is_given(control_plane: ControlPlane, fresh_namespace: str) -> None:
    kubeconfig = control_plane.kubeconfig_for(control_plane.token(fresh_namespace, "default"), "nobody")
    assert stat.S_IMODE(kubeconfig.stat().st_mode) == 0o600
    with pytest.raises(ProcessError, match="cannot list resource"):
        control_plane.kubectl(f"--kubeconfig={kubeconfig}", "get", "nodes")


def test_a_kind_is_served_once_apply_crds_returns(control_plane: ControlPlane) -> None:
    control_plane.apply_crds(CRD)
    control_plane.apply("apiVersion: testbed.example.com/v1\nkind: Lamp\nmetadata: {name: desk}")
    assert control_plane.get("/apis/testbed.example.com/v1/lamps/desk")["metadata"]["name"] == "desk"


def test_a_refusal_is_raised_in_the_api_servers_words(control_plane: ControlPlane) -> None:
    with pytest.raises(ControlPlaneError, match="not found"):
        control_plane.get("/api/v1/namespaces/nowhere")


def test_its_authority_vouches_for_other_servers(control_plane: ControlPlane) -> None:
    certificate, key = control_plane.credentials.issue("webhook", ["127.0.0.1", "webhook.example.com"])
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.load_cert_chain(certificate, key)  # raises when the key is another one's
    client = ssl.create_default_context(cafile=str(control_plane.ca_file))
    with urllib.request.urlopen(f"{control_plane.url}/version", context=client, timeout=10) as answer:  # noqa: S310 - https
        assert answer.status == 200


def test_two_run_side_by_side_and_one_survives_a_pause_and_its_api_servers_crash(control_plane: ControlPlane) -> None:
    with ControlPlane() as one:
        one.create_namespace("only-here")
        assert control_plane.request("GET", "/api/v1/namespaces/only-here")[0] == 404
        one.servers.pause()
        assert not one.ready(timeout=0.5)
        one.servers.resume()
        assert one.ready()
        port = one.port
        one.servers.stop_apiserver()
        assert not one.ready()
        one.servers.start_apiserver()
        assert one.port == port
        assert one.get("/api/v1/namespaces/only-here")["metadata"]["name"] == "only-here"
    assert not Path(one.folder).exists()
    assert control_plane.ready()
