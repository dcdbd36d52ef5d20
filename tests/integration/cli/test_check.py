"""`kubectl swap check` as people and pipelines run it, against a real API server."""

from __future__ import annotations

import datetime
import json
import os
import shlex
from pathlib import Path
from typing import Any

import pytest
import yaml

from hack.docs import commands
from testbed.base import paths
from tests.integration import needs
from tests.integration.cli.conftest import API, GIB, Cluster, Plugin, healthy
from tests.integration.cli.objects import add_node, add_pod

POLICY = "swapwarden.dev/swap-policy"


def found(plugin: Plugin, cluster: Cluster, *arguments: str) -> set[tuple[str, ...]]:
    """Severity, check, reason and object of the problems that concern the test's objects."""
    done = plugin("check", "-o", "json", "--patience", "1s", *arguments)
    assert done.returncode in {0, 1, 2}, done.stderr
    return {
        (one["severity"], one["check"], one["reason"], one["object"])
        for one in json.loads(done.stdout)["problems"]
        if cluster.id in one["object"]
    }


@needs.NODES_TELL_SWAP
def test_nodes_and_their_pods(cluster: Cluster) -> None:
    well = add_node(cluster, "well")
    cluster.node("lone", swap=GIB)
    cluster.node("ill", swap=GIB)
    said = "swap is on, and failSwapOn is true; set failSwapOn: false"
    status = healthy("(built-in)", GIB, KubeletWillNotStart=("True", "FailSwapOn", said))
    status["profileRef"]["generation"] = 0
    cluster.state("ill", {"profileRef": {"name": "(built-in)"}, "epoch": 1}, status)
    add_pod(cluster, "quiet", well, annotations={POLICY: "Disabled"})
    add_pod(cluster, "lost", cluster.name("lone"), annotations={POLICY: "Disabled"})
    add_pod(cluster, "typo", well, annotations={"swapwarden.dev/swap-polcy": "Disabled"})
    pod, ill, lone = f"pod/{cluster.namespace}", f"node/{cluster.name('ill')}", f"node/{cluster.name('lone')}"
    assert found(cluster.admin, cluster) == {
        ("Error", "NoState", "NoState", lone),
        ("Error", "NoAgent", "NoAgent", lone),
        ("Error", "NodeCondition", "KubeletWillNotStart", ill),
        ("Error", "PodNotEnforced", "NoState", f"{pod}/lost"),
        ("Warning", "NoEffect", "NoEffect", f"{pod}/typo"),
    }
    done = cluster.admin("check", "-o", "wide", "--patience", "1s")
    assert done.returncode == 1
    assert f"  {ill}: swap is on, and failSwapOn is true\n" in done.stdout
    assert "  -> set failSwapOn: false\n" in done.stdout


def test_an_agent_that_lags_behind(cluster: Cluster) -> None:
    name = add_node(cluster, "late")
    cluster.patch(f"{API}/nodeswapstates/{name}", {"spec": {"beforePlan": "Unmanaged"}})
    assert found(cluster.admin, cluster) == {("Error", "AgentBehind", "AgentBehind", f"node/{name}")}
    cluster.patch(f"{API}/nodeswapstates/{name}/status", {"status": {"observedGeneration": 2}})
    assert found(cluster.admin, cluster) == set()


def test_namespaces_and_profiles(cluster: Cluster) -> None:
    add_node(cluster, "n")
    cluster.patch(
        f"/api/v1/namespaces/{cluster.namespace}",
        {"metadata": {"labels": {"swapwarden.dev/default-swap-policy": "disabled"}}},
    )
    kind = {"apiVersion": "swapwarden.dev/v1alpha1", "kind": "NodeSwapProfile"}
    for name, value in (("a", cluster.id), ("b", cluster.id), ("c", "nobody")):
        spec = {"nodeSelector": {"matchLabels": {"test": value}}, "priority": 900}
        made = {**kind, "metadata": {"name": f"{name}-{cluster.id}"}, "spec": spec}
        cluster.control_plane.create(f"{API}/nodeswapprofiles", made)
    assert found(cluster.admin, cluster) == {
        ("Error", "NamespacePolicy", "NamespacePolicy", f"namespace/{cluster.namespace}"),
        ("Warning", "ProfileConflict", "ProfileConflict", f"nodeswapprofile/a-{cluster.id}"),
        ("Warning", "GovernsNoNode", "GovernsNoNode", f"nodeswapprofile/b-{cluster.id}"),
        ("Warning", "GovernsNoNode", "GovernsNoNode", f"nodeswapprofile/c-{cluster.id}"),
    }
    inside = found(cluster.admin, cluster, "-n", cluster.namespace)
    assert inside == {("Error", "NamespacePolicy", "NamespacePolicy", f"namespace/{cluster.namespace}")}


def test_the_controller_s_lease(cluster: Cluster) -> None:
    now = datetime.datetime.now(datetime.UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")
    spec = {"holderIdentity": "one", "renewTime": now, "leaseDurationSeconds": 3600}
    path = f"/apis/coordination.k8s.io/v1/namespaces/{cluster.namespace}/leases"
    cluster.control_plane.create(path, {"metadata": {"name": "swapwarden-controller"}, "spec": spec})

    def checks() -> set[str]:
        done = cluster.admin("check", "-o", "json", "--patience", "1s")
        return {one["check"] for one in json.loads(done.stdout)["problems"]}

    # Nothing but the kinds is installed here.
    assert "NoAdmission" in checks()
    assert not {"NoLeader", "NotInstalled", "OtherVersion"} & checks()
    cluster.patch(f"{path}/swapwarden-controller", {"spec": {"holderIdentity": ""}})
    assert "NoLeader" in checks()


def test_a_tenant_sees_which_rights_they_lack(cluster: Cluster) -> None:
    node = add_node(cluster, "n")
    add_pod(cluster, "typo", node, annotations={"swapwarden.dev/swap-polcy": "Disabled"})
    rules = [{"apiGroups": [""], "resources": ["pods"], "verbs": ["get", "list"]}]
    done = cluster.user(rules)("check", "-n", cluster.namespace)
    assert (done.returncode, done.stderr) == (2, "")
    assert f"  pod/{cluster.namespace}/typo: metadata.annotations[swapwarden.dev/swap-polcy]: no effect" in done.stdout
    for plural in ("nodes", "namespaces", "nodeswapprofiles", "nodeswapstates"):
        assert f"Not looked at: {plural}: " in done.stdout


def manifest(annotations: dict[str, str], **fields: Any) -> str:
    template = {"metadata": {"annotations": annotations}, "spec": {"containers": [{"name": "app"}], **fields}}
    body = {"apiVersion": "apps/v1", "kind": "Deployment", "metadata": {"name": "web"}, "spec": {"template": template}}
    return yaml.safe_dump(body)


def test_manifests(cluster: Cluster, tmp_path: Path) -> None:
    add_node(cluster, "n", swap=GIB)
    (tmp_path / "a.yaml").write_text(manifest({POLICY: "disabld"}))
    selector = {"test": cluster.id}
    (tmp_path / "b.yaml").write_text(manifest({"swapwarden.dev/swap-limit": "1Gi"}, nodeSelector=selector))
    body = {"apiVersion": "swapwarden.dev/v1alpha1", "kind": "NodeSwapProfile", "metadata": {"name": f"p-{cluster.id}"}}
    spec = {"nodeSelector": {"matchLabels": selector}, "swap": {"behavior": "NoSwap"}, "priority": 950}
    (tmp_path / "c.yaml").write_text(yaml.safe_dump({**body, "spec": spec}))
    done = cluster.admin("check", "-f", str(tmp_path))
    assert done.returncode == 1
    head, refused, useless = done.stdout.split("\n\n")
    assert head == "1 error, 1 warning."
    title, told, remedy = refused.splitlines()
    place = f"{tmp_path}/a.yaml: document 1: spec.template.metadata.annotations[{POLICY}]"
    assert (title, remedy) == ("Error  Refused", "  -> correct it in the manifest")
    assert told.startswith(f'  {place}: Deployment web: Unsupported value: "disabld": supported values: "Avoid", ')
    title, told, _ = useless.splitlines()
    place = f"{tmp_path}/b.yaml: document 1: spec.template"
    assert title == "Warning  NoEffect: Limit"
    why = "its swap limit would have no effect on any of 1 node: ProfileNoSwap"
    assert told == f"  {place}: Deployment web: {why}"


def test_manifests_without_a_cluster(tmp_path: Path) -> None:
    (tmp_path / "b.yaml").write_text(manifest({"swapwarden.dev/swap-limit": "1Gi"}))
    nobody = Plugin(Path(os.devnull))
    done = nobody("check", "-f", str(tmp_path), "--offline", "-o", "json")
    assert (done.returncode, done.stderr) == (0, "")
    assert json.loads(done.stdout) == {
        "summary": {"errors": 0, "warnings": 0, "notLookedAt": 0},
        "problems": [],
        "notLookedAt": {},
    }
    assert nobody("check", "-f", str(tmp_path)).returncode == 1
    assert nobody("check", "--offline").returncode == 2


def test_what_the_documentation_shows(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(paths.ROOT)
    (block,) = commands.run_by("tests/integration/cli/test_check.py", "docs/kubectl-swap.md")
    for command, shown in block.steps():
        done = Plugin(Path(os.devnull))(*shlex.split(command)[2:])
        assert (done.returncode, done.stderr) == (1, "")
        assert [line.rstrip() for line in done.stdout.splitlines()] == shown
