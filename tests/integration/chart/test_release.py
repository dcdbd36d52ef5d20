"""A release on a real API server: installed, upgraded, rolled back, removed. No pod runs here, so no hook does."""

from __future__ import annotations

import base64
import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from testbed import chart, helm
from testbed.controller import Controller
from testbed.controlplane import ControlPlane

Json = dict[str, Any]

SECRET = f"/api/v1/namespaces/{helm.NAMESPACE}/secrets/swapwarden-webhook-tls"
REGISTRATION = "/apis/admissionregistration.k8s.io/v1/validatingwebhookconfigurations/swapwarden"
CRD = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions/nodeswapstates.swapwarden.dev"


class Release:
    def __init__(self, control_plane: ControlPlane) -> None:
        self.cp = control_plane

    def helm(self, command: str, *arguments: str) -> str:
        where = (f"--namespace={helm.NAMESPACE}", f"--kubeconfig={self.cp.kubeconfig}")
        return helm.run(command, helm.RELEASE, *arguments, *where)

    def objects(self) -> set[str]:
        """Everything that the release has, as kind/name."""
        kinds = "deploy,ds,svc,sa,secret,configmap,lease,pdb,netpol,role,rolebinding,clusterrole,clusterrolebinding,crd"
        kinds += ",validatingwebhookconfiguration,mutatingwebhookconfiguration"
        kinds += ",validatingadmissionpolicy,validatingadmissionpolicybinding"
        selector = f"--selector=app.kubernetes.io/instance={helm.RELEASE}"
        found = self.cp.kubectl("get", kinds, selector, f"--namespace={helm.NAMESPACE}", "-o", "name").stdout
        return set(found.split())

    def certificate(self) -> bytes:
        data = self.cp.get(SECRET).get("data") or {}
        return base64.b64decode(data.get("tls.crt") or "")

    def trusts(self) -> str:
        return str(self.cp.get(REGISTRATION)["webhooks"][0]["clientConfig"].get("caBundle") or "")


@pytest.fixture(scope="module")
def release() -> Iterator[Release]:
    """A cluster of its own: helm takes over no CRD that it has not made."""
    with ControlPlane() as running:
        yield Release(running)


def test_from_the_first_installation_to_the_second(
    release: Release, tmp_path: Path, eventually: Callable[[Callable[[], object], str], None]
) -> None:
    said = release.helm("install", str(chart.FOLDER), "--create-namespace")
    assert "Nothing has changed for your pods" in said
    assert f"kubectl label namespace {helm.NAMESPACE}" in said
    assert said.count("    kubectl ") >= 3
    installed = release.objects()
    assert "daemonset.apps/swapwarden-agent" in installed
    assert "customresourcedefinition.apiextensions.k8s.io/nodeswapstates.swapwarden.dev" in installed

    # What a controller does meanwhile is not undone by an upgrade or a rollback.
    flags = ("--webhook-service=swapwarden-webhook", "--webhook-registration=swapwarden", "--lease-duration=3")
    with Controller(release.cp, *flags):
        eventually(lambda: release.certificate() and release.trusts(), "a certificate that is trusted")
    certificate, trusts = release.certificate(), release.trusts()
    assert (certificate, trusts) == (release.certificate(), release.trusts())

    values = tmp_path / "values.json"
    values.write_text(json.dumps({"controller": {"replicas": 3}, "podMonitor": {"interval": "1m"}}), encoding="utf-8")
    release.helm("upgrade", str(chart.FOLDER), f"--values={values}", "--no-hooks")
    deployment = f"/apis/apps/v1/namespaces/{helm.NAMESPACE}/deployments/swapwarden-controller"
    assert release.cp.get(deployment)["spec"]["replicas"] == 3
    assert release.objects() == installed
    assert (certificate, trusts) == (release.certificate(), release.trusts())

    release.helm("rollback", "1", "--no-hooks")
    assert release.cp.get(deployment)["spec"]["replicas"] == 2
    assert (certificate, trusts) == (release.certificate(), release.trusts())

    release.helm("uninstall", "--no-hooks")
    assert {name.partition("/")[0] for name in release.objects()} == {"customresourcedefinition.apiextensions.k8s.io"}
    assert release.cp.request("GET", SECRET)[0] == 404

    # The CRDs that were kept are taken over.
    release.helm("install", str(chart.FOLDER), "--set=crds.keep=false")
    assert release.objects() == installed
    release.helm("uninstall", "--no-hooks")
    eventually(lambda: not release.objects(), "nothing left")
