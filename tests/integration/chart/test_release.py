"""A release on a real API server: installed, upgraded, rolled back, removed. No pod runs here, so no hook does."""

from __future__ import annotations

import base64
import json
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from testbed.base import process
from testbed.controlplane.servers import ControlPlane
from testbed.product import helm, manifests
from testbed.product.controller import Controller

SECRET = f"/api/v1/namespaces/{helm.NAMESPACE}/secrets/swapwarden-webhook-tls"
ORDER = f"/api/v1/namespaces/{helm.NAMESPACE}/configmaps/swapwarden-uninstall"
JOBS = f"/apis/batch/v1/namespaces/{helm.NAMESPACE}/jobs"
REGISTRATION = "/apis/admissionregistration.k8s.io/v1/mutatingwebhookconfigurations/swapwarden"
CRD = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions/nodeswapstates.swapwarden.dev"


class Release:
    def __init__(self, control_plane: ControlPlane) -> None:
        self.cp = control_plane

    def helm(self, command: str, *arguments: str, name: str = helm.RELEASE, namespace: str = helm.NAMESPACE) -> str:
        # Helm would load all schemas for it each time; tests/integration/chart/test_chart.py is stricter.
        options = ("--disable-openapi-validation",) if command in {"install", "upgrade"} else ()
        cluster = (f"--namespace={namespace}", f"--kubeconfig={self.cp.kubeconfig}")
        return helm.run(command, name, *arguments, *options, *cluster)

    def objects(self) -> set[str]:
        """Everything that the release has, as kind/name."""
        kinds = "deploy,ds,svc,sa,secret,configmap,lease,pdb,netpol,role,rolebinding,clusterrole,clusterrolebinding,crd"
        kinds += ",validatingwebhookconfiguration,mutatingwebhookconfiguration"
        kinds += ",validatingadmissionpolicy,validatingadmissionpolicybinding"
        if self.cp.version() >= (1, 36):
            kinds += ",mutatingadmissionpolicy,mutatingadmissionpolicybinding"
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


@pytest.fixture
def installed(release: Release) -> Iterator[Release]:
    """Installed, and removed at the end without any hook."""
    release.helm("install", str(helm.chart()), "--create-namespace")
    yield release
    release.helm("uninstall", "--no-hooks")


def test_a_chart_without_its_generated_files_installs_nothing(release: Release, cloned: Path) -> None:
    before = release.objects()
    for options in ((), ("--set=crds.install=false",)):
        with pytest.raises(process.ProcessError, match="run `make chart`"):
            release.helm("install", str(cloned), "--create-namespace", *options)
    assert release.objects() == before
    assert release.helm("list", "--all", "--short", name="--filter=.") == ""


def test_a_removal_that_failed_is_taken_back_by_a_rollback(installed: Release) -> None:
    with pytest.raises(process.ProcessError, match="timed out"):
        installed.helm("uninstall", "--timeout=2s")
    # The hook's command would have done this by then; its Job finds no work.
    assert installed.cp.get(JOBS)["items"] == []
    installed.cp.request("PATCH", ORDER, {"data": {"restore": "true"}})
    with pytest.raises(process.ProcessError, match="has no deployed releases"):
        installed.helm("upgrade", str(helm.chart()))
    installed.helm("rollback", "1")
    assert installed.cp.get(ORDER)["data"] == {"restore": "false"}
    installed.helm("upgrade", str(helm.chart()), "--no-hooks")


def test_who_makes_the_certificate_can_be_changed_and_changed_back(installed: Release) -> None:
    installed.cp.apply_crds(Path(__file__).parent / "foreign")
    installed.helm("upgrade", str(helm.chart()), "--no-hooks", "--set=certificates.source=CertManager")
    assert installed.cp.request("GET", SECRET)[0] == 404
    certificates = f"/apis/cert-manager.io/v1/namespaces/{helm.NAMESPACE}/certificates"
    for each in installed.cp.get(certificates)["items"]:
        made = {"metadata": {"name": each["spec"]["secretName"]}, "type": "kubernetes.io/tls"}
        installed.cp.create(SECRET.rpartition("/")[0], {**made, "data": {"tls.crt": "", "tls.key": ""}})
    installed.helm("upgrade", str(helm.chart()), "--no-hooks", "--set=certificates.source=Controller")
    assert installed.cp.get(SECRET)["type"] == "Opaque"
    assert installed.cp.get(certificates)["items"] == []
    installed.helm("upgrade", str(helm.chart()), "--no-hooks", "--set=certificates.source=CertManager")


def test_the_mode_of_admission_can_be_changed_and_changed_back(installed: Release) -> None:
    if installed.cp.version() < (1, 36):
        with pytest.raises(
            process.ProcessError, match=r"needs Kubernetes 1\.36 or newer.*Set admission.mode to Webhook"
        ):
            installed.helm("upgrade", str(helm.chart()), "--no-hooks", "--set=admission.mode=Policy")
        return
    group = "/apis/admissionregistration.k8s.io/v1"
    registration = f"{group}/mutatingwebhookconfigurations/swapwarden"
    completion = f"{group}/mutatingadmissionpolicies/swapwarden-pod-completion"
    for mode, there, gone in (("Policy", completion, registration), ("Webhook", registration, completion)):
        installed.helm("upgrade", str(helm.chart()), "--no-hooks", f"--set=admission.mode={mode}")
        assert installed.cp.request("GET", there)[0] == 200
        assert installed.cp.request("GET", gone)[0] == 404
        assert (installed.cp.request("GET", SECRET)[0] == 200) is (mode == "Webhook")


def test_a_second_release_is_refused_and_kinds_of_the_first_are_taken_over_on_request(release: Release) -> None:
    options = (str(helm.chart()), "--create-namespace")
    release.helm("install", *options)
    with pytest.raises(process.ProcessError, match=r"swapwarden-namespace-default.*cannot be imported"):
        release.helm("install", *options, "--set=crds.install=false", name="other", namespace="elsewhere")
    release.helm("uninstall", "--no-hooks")
    with pytest.raises(process.ProcessError, match="exists and cannot be imported"):
        release.helm("install", *options, name="other", namespace="elsewhere")
    release.helm("install", *options, "--take-ownership", name="other", namespace="elsewhere")
    release.helm("uninstall", "--no-hooks", name="other", namespace="elsewhere")
    release.cp.kubectl("delete", "crd", *(f"{kind}.swapwarden.dev" for kind in ("nodeswapstates", "nodeswapprofiles")))
    release.cp.apply_crds(manifests.folder() / "01-crds.yaml")
    with pytest.raises(process.ProcessError, match="invalid ownership metadata"):
        release.helm("install", *options)
    release.helm("install", *options, "--take-ownership")
    release.helm("uninstall", "--no-hooks")


def test_from_the_first_installation_to_the_second(
    release: Release, tmp_path: Path, eventually: Callable[[Callable[[], object], str], None]
) -> None:
    said = release.helm("install", str(helm.chart()), "--create-namespace")
    assert "Nothing has changed for your pods" in said
    assert f"kubectl label namespace {helm.NAMESPACE}" in said
    assert said.count("    kubectl ") >= 3
    assert "--timeout" not in said
    installed = release.objects()
    assert "daemonset.apps/swapwarden-agent" in installed
    assert "customresourcedefinition.apiextensions.k8s.io/nodeswapstates.swapwarden.dev" in installed

    # An upgrade or a rollback does not undo a controller's changes meanwhile.
    flags = ("--webhook-service=swapwarden-webhook", "--webhook-registration=swapwarden", "--lease-duration=3")
    with Controller(release.cp, *flags):
        eventually(lambda: release.certificate() and release.trusts(), "a certificate that is trusted")
    certificate, trusts = release.certificate(), release.trusts()
    assert (certificate, trusts) == (release.certificate(), release.trusts())

    values = tmp_path / "values.json"
    values.write_text(json.dumps({"controller": {"replicas": 3}, "podMonitor": {"interval": "1m"}}), encoding="utf-8")
    release.helm("upgrade", str(helm.chart()), f"--values={values}", "--no-hooks")
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
    said = release.helm("install", str(helm.chart()), "--set=crds.keep=false", "--set=uninstall.timeout=600")
    assert f"helm uninstall {helm.RELEASE} --namespace {helm.NAMESPACE} --timeout 750s" in said
    assert release.objects() == installed
    release.helm("uninstall", "--no-hooks")
    eventually(lambda: not release.objects(), "nothing left")
