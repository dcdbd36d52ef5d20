"""`swapwarden profiles`, which the chart's hook runs: with the rights that the chart gives it, at a real API server."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from swapwarden.api import profile as api
from swapwarden.policy.profile import compiled

from testbed.base import process
from testbed.controlplane.servers import ControlPlane
from testbed.product import helm, manifests
from tests.integration import preloaded
from tests.integration.conftest import Json
from tests.integration.controller.cluster import PROFILES

Apply = Callable[..., "subprocess.CompletedProcess[str]"]

BATCH: Json = {"nodeSelector": {"matchLabels": {"pool": "batch"}}, "swap": {"behavior": "LimitedSwap"}}
ALL: Json = {"nodeSelector": {}, "swap": {"reserved": "10%"}}


@pytest.fixture(scope="module")
def hook() -> list[Json]:
    """The hook's objects, as the chart makes them."""
    text = helm.render("--set-json=profiles={}", "--is-upgrade")
    return [
        each
        for each in manifests.read(text)
        if each and each["metadata"].get("labels", {}).get("app.kubernetes.io/component") == "profiles"
    ]


@pytest.fixture(scope="module")
def account(crds: ControlPlane, hook: list[Json], eventually: Callable[..., None]) -> Iterator[Path]:
    """A kubeconfig with the hook's rights."""
    crds.request("POST", "/api/v1/namespaces", {"metadata": {"name": helm.NAMESPACE}})
    text = manifests.written([each for each in hook if each["kind"] not in {"Job", "ConfigMap"}])
    crds.apply(text)
    token = crds.token(helm.NAMESPACE, "swapwarden-profiles")
    # The API server sees new rights through a watch of its own.
    eventually(lambda: crds.request("GET", PROFILES, token=token)[0] == 200, "the hook has its rights")
    yield crds.kubeconfig_for(token, "profiles")
    crds.kubectl("delete", "-f", "-", text=text)


@pytest.fixture
def apply(account: Path, crds: ControlPlane, tmp_path: Path) -> Iterator[Apply]:
    """Run the command as the hook does; its result."""

    def run(specs: Json, *options: str, owner: str = "swapwarden") -> subprocess.CompletedProcess[str]:
        file = tmp_path / "profiles.json"
        file.write_text(json.dumps(specs), encoding="utf-8")
        command = [sys.executable, "-m", "swapwarden", "profiles", f"--filename={file}", f"--owner={owner}"]
        return preloaded.run([*command, f"--kubeconfig={account}", *options], timeout=60, check=False)

    yield run
    crds.request("DELETE", PROFILES)


def specs(control_plane: ControlPlane) -> Json:
    return {each["metadata"]["name"]: each["spec"] for each in control_plane.get(PROFILES)["items"]}


def test_profiles_become_what_the_values_say(apply: Apply, crds: ControlPlane) -> None:
    done = apply({"batch": BATCH, "all": ALL})
    assert (done.returncode, done.stderr) == (0, "")
    found = specs(crds)
    assert found.keys() == {"batch", "all"}
    assert found["batch"]["swap"] == {**BATCH["swap"], "beforePlan": "NoSwap"}
    kept = crds.get(f"{PROFILES}/batch")["metadata"]["uid"]
    done = apply({"batch": {**BATCH, "mode": "Audit", "swap": {}}})
    assert done.returncode == 0
    assert "all deleted" in done.stdout
    found = specs(crds)
    assert found.keys() == {"batch"}
    assert (found["batch"]["mode"], found["batch"]["swap"]["behavior"]) == ("Audit", "Kubelet")
    assert crds.get(f"{PROFILES}/batch")["metadata"]["uid"] == kept, "changed, not recreated"
    assert apply({}).returncode == 0
    assert specs(crds) == {}


def test_one_that_is_being_deleted_is_waited_for_and_named(apply: Apply, crds: ControlPlane) -> None:
    """A change would be lost with it, and would look like a success until then."""
    assert apply({"batch": BATCH}).returncode == 0
    crds.request("PATCH", f"{PROFILES}/batch", {"metadata": {"finalizers": ["swapwarden.dev/release-nodes"]}})
    crds.request("DELETE", f"{PROFILES}/batch")
    late = apply({"batch": BATCH, "all": ALL}, "--timeout=1")
    assert late.returncode == 1
    assert "NodeSwapProfile batch is being deleted" in late.stderr
    crds.request("PATCH", f"{PROFILES}/batch", {"metadata": {"finalizers": None}})
    assert apply({"batch": BATCH, "all": ALL}, "--timeout=1").returncode == 0
    assert specs(crds).keys() == {"batch", "all"}


def test_doing_it_again_changes_nothing(apply: Apply, crds: ControlPlane) -> None:
    apply({"batch": BATCH})
    before = crds.get(f"{PROFILES}/batch")
    assert apply({"batch": BATCH}).returncode == 0
    assert crds.get(f"{PROFILES}/batch") == before


def test_profiles_of_others_are_left_alone(apply: Apply, crds: ControlPlane) -> None:
    body = {"apiVersion": "swapwarden.dev/v1alpha1", "kind": "NodeSwapProfile"}
    crds.create(PROFILES, {**body, "metadata": {"name": "mine"}, "spec": ALL})
    apply({"theirs": BATCH}, owner="another")
    before = specs(crds)
    done = apply({"mine": BATCH, "ours": BATCH})
    assert done.returncode == 1
    assert "NodeSwapProfile mine that is not this release's" in done.stderr
    assert specs(crds) == {**before, "ours": before["theirs"]}


def test_a_bad_profile_is_named_with_the_api_servers_words_and_keeps_no_other_back(
    apply: Apply, crds: ControlPlane
) -> None:
    bad = {"nodeSelector": {}, "swap": {"workloadControlled": {"maxPerPod": "1Gi"}}}
    done = apply({"bad": bad, "good": BATCH})
    assert done.returncode == 1
    assert "NodeSwapProfile bad: " in done.stderr
    assert "workloadControlled has no effect" in done.stderr
    assert specs(crds).keys() == {"good"}


def test_what_cannot_be_reached_is_given_up_in_time(apply: Apply, account: Path, tmp_path: Path) -> None:
    nowhere = tmp_path / "kubeconfig"
    content = json.loads(account.read_text(encoding="utf-8"))
    content["clusters"][0]["cluster"]["server"] = "https://127.0.0.1:1"
    nowhere.write_text(json.dumps(content), encoding="utf-8")
    done = apply({"batch": BATCH}, f"--kubeconfig={nowhere}", "--timeout=1")
    assert done.returncode == 1
    assert "not done after 1 s" in done.stderr


def test_a_file_that_is_none_is_named(apply: Apply) -> None:
    done = apply({"batch": "not a spec"})
    assert done.returncode == 2
    assert "profiles.json: Expected `object`, got `str`" in done.stderr


def test_the_job_runs_the_tested_command(hook: list[Json]) -> None:
    by_kind = {each["kind"]: each for each in hook}
    assert by_kind.keys() == {"ConfigMap", "ServiceAccount", "ClusterRole", "ClusterRoleBinding", "Job"}
    for each in hook:
        annotations = each["metadata"]["annotations"]
        assert annotations["helm.sh/hook"] == "post-install,post-upgrade,post-rollback"
        # Rights stay for no longer than the hook runs, and what fails is not left behind when the release is removed.
        assert annotations["helm.sh/hook-delete-policy"] == "before-hook-creation,hook-succeeded,hook-failed"
    weights = {kind: int(each["metadata"]["annotations"]["helm.sh/hook-weight"]) for kind, each in by_kind.items()}
    assert max(weights, key=lambda kind: weights[kind]) == "Job"
    assert by_kind["Job"]["metadata"]["annotations"]["helm.sh/hook-output-log-policy"] == "hook-failed"
    pod = by_kind["Job"]["spec"]["template"]["spec"]
    (container,) = pod["containers"]
    assert container["args"] == ["profiles", "--filename=/profiles/profiles.json", f"--owner={helm.RELEASE}"]
    assert "/profiles" in {each["mountPath"] for each in container["volumeMounts"]}
    assert "profiles.json" in by_kind["ConfigMap"]["data"]
    assert pod["securityContext"]["runAsNonRoot"] is True
    assert container["securityContext"]["capabilities"] == {"drop": ["ALL"]}


def given(*arguments: str) -> Json:
    """The command's input in an installation with these values."""
    (found,) = (
        each["data"]["profiles.json"]
        for each in manifests.read(helm.render(*arguments))
        if each and "profiles.json" in each.get("data", {})
    )
    loaded: Json = json.loads(found)
    return loaded


CONTROL_PLANE = "--set=controlPlaneProfile.enabled=true"


def test_control_plane_nodes_get_a_profile_that_wins_over_the_usual_one(apply: Apply, crds: ControlPlane) -> None:
    specs_given = given(CONTROL_PLANE, f"--set-json=profiles={json.dumps({'all': ALL})}")
    assert specs_given.keys() == {"control-plane", "all"}
    done = apply(specs_given)
    assert (done.returncode, done.stderr) == (0, "")
    found = {
        each["metadata"]["name"]: compiled.compile_profile(api.NodeSwapProfile.model_validate(each))
        for each in crds.get(PROFILES)["items"]
    }
    # With the label's value as kubeadm sets it, and with one.
    for value in ("", "true"):
        selection = compiled.select(found.values(), {"node-role.kubernetes.io/control-plane": value})
        assert (selection.profile.name, selection.profile.swap.behavior) == ("control-plane", "NoSwap")
        assert selection.conflicts == ()
    assert compiled.select(found.values(), {}).profile.name == "all"


def test_that_profile_alone_is_reason_enough_for_the_hook() -> None:
    assert given(CONTROL_PLANE).keys() == {"control-plane"}
    kinds = [each["kind"] for each in manifests.read(helm.render(CONTROL_PLANE)) if each]
    assert kinds.count("Job") == 2, "the other one is that of the removal"


def test_two_profiles_of_that_name_are_refused() -> None:
    with pytest.raises(process.ProcessError, match="two profiles of one name"):
        helm.render(CONTROL_PLANE, f"--set-json=profiles={json.dumps({'control-plane': ALL})}")


def test_an_installation_without_profiles_runs_no_hook() -> None:
    assert "swapwarden-profiles" not in helm.render()
