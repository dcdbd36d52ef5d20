"""`kubectl swap simulate` as people run it, against a real API server."""

from __future__ import annotations

import json
import shlex
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from hack.docs import commands
from testbed.base import paths
from testbed.controlplane.servers import ControlPlane
from tests.integration import needs
from tests.integration.cli.conftest import API, GIB, Cluster
from tests.integration.cli.front import Front
from tests.integration.cli.objects import add_node, add_pod

CONTROLLED: dict[str, Any] = {"behavior": "WorkloadControlled"}
READS = [
    {"apiGroups": [""], "resources": ["nodes", "pods", "namespaces"], "verbs": ["get", "list"]},
    {"apiGroups": ["swapwarden.dev"], "resources": ["nodeswapprofiles"], "verbs": ["get", "list"]},
]


def profile(cluster: Cluster, **spec: Any) -> dict[str, Any]:
    selector = {"matchLabels": {"test": cluster.id}}
    kind = {"apiVersion": "swapwarden.dev/v1alpha1", "kind": "NodeSwapProfile"}
    return {**kind, "metadata": {"name": f"p-{cluster.id}"}, "spec": {"nodeSelector": selector, **spec}}


@pytest.fixture
def file(cluster: Cluster, tmp_path: Path) -> Path:
    path = tmp_path / "profile.yaml"
    path.write_text(yaml.safe_dump(profile(cluster, swap=CONTROLLED)))
    return path


def test_who_gains_and_who_loses(cluster: Cluster, file: Path) -> None:
    quiet, limited = add_node(cluster, "quiet"), add_node(cluster, "limited", "LimitedSwap")
    add_pod(cluster, "asks", quiet, "512Mi")
    add_pod(cluster, "asks-not", limited)
    done = cluster.admin("simulate", "-f", str(file), "--node", quiet, "--node", limited)
    assert (done.returncode, done.stderr) == (0, "")
    head, pods, nodes, rollout = done.stdout.split("\n\n")
    assert head.splitlines()[:2] == [
        "Pods: 1 gain swap, 1 lose, 0 stay as they are.",
        "Nodes: 2 get another profile, 0 another version of theirs, 0 stay as they are.",
    ]
    assert [line.split() for line in pods.splitlines()[1:]] == [
        [cluster.namespace, "asks", quiet, "Gains", "0", "->", "512Mi", "KubeletDecides", "->", "WorkloadLimit"]
        + ["<unknown>"] * 2,
        [cluster.namespace, "asks-not", limited, "Loses", "128Mi", "->", "0", "KubeletDecides", "->", "NoLimit"]
        + ["<unknown>"] * 2,
    ]
    assert [line.split()[:4] for line in nodes.splitlines()[1:]] == [
        [name, "(built-in)", "->", f"p-{cluster.id}"] for name in (limited, quiet)
    ]
    assert rollout.splitlines()[:2] == [f"Rollout of p-{cluster.id}:", "  2 nodes in 2 waves, at most 1 at a time"]


def test_some_of_it_for_programs(cluster: Cluster, file: Path) -> None:
    node = add_node(cluster, "n")
    cluster.control_plane.create_namespace(f"{cluster.namespace}-b")
    add_pod(cluster, "one", node, "512Mi")
    add_pod(cluster, "two", node, "512Mi")
    add_pod(cluster, "two", node, "512Mi", namespace=f"{cluster.namespace}-b")

    def pods(*arguments: str) -> list[tuple[str, str]]:
        done = cluster.admin("simulate", "-f", str(file), "-o", "json", *arguments)
        assert done.returncode == 0, done.stderr
        return [(one["namespace"], one["name"]) for one in json.loads(done.stdout)["pods"]]

    here, there = cluster.namespace, f"{cluster.namespace}-b"
    assert pods("--node", node) == [(here, "one"), (here, "two"), (there, "two")]
    assert pods("-n", here) == [(here, "one"), (here, "two")]
    assert pods("-l", "app=two", "--node", node) == [(here, "two"), (there, "two")]
    assert pods("-n", there, "-l", "app=two") == [(there, "two")]


def test_a_profile_as_it_is_changes_nothing(cluster: Cluster, file: Path) -> None:
    node = add_node(cluster, "n")
    add_pod(cluster, "one", node, "512Mi")
    made = profile(cluster, swap=CONTROLLED)
    cluster.control_plane.create(f"{API}/nodeswapprofiles", made)
    reference = {"name": f"p-{cluster.id}", "generation": 1}
    cluster.patch(f"{API}/nodeswapstates/{node}", {"spec": {"profileRef": reference}})
    cluster.patch(f"{API}/nodeswapstates/{node}/status", {"status": {"profileRef": reference}})
    done = cluster.admin("simulate", "-f", str(file), "--node", node, "-o", "json", "--all")
    assert done.returncode == 0, done.stderr
    (one,) = json.loads(done.stdout)["pods"]
    assert (one["change"], one["before"]) == ("Same", one["after"])
    removed = cluster.admin("simulate", "--delete", f"p-{cluster.id}", "--node", node, "-o", "json")
    found = json.loads(removed.stdout)
    assert [each["change"] for each in found["pods"]] == ["Loses"]
    assert found["nodes"][0]["after"] == {"profile": "(built-in)", "generation": 0, "behavior": "Kubelet"}


def test_all_errors_are_shown_as_by_the_api_server(cluster: Cluster, tmp_path: Path) -> None:
    wrong = profile(cluster, swap={"behavior": "Guess"}, priority="high", nonsense=1)
    (tmp_path / "wrong.yaml").write_text(yaml.safe_dump(wrong))
    done = cluster.admin("simulate", "-f", str(tmp_path / "wrong.yaml"))
    assert (done.returncode, done.stdout) == (2, "")
    assert [line.split(": ")[3] for line in done.stderr.splitlines()] == [
        "spec.priority",
        "spec.swap.behavior",
        "spec.nonsense",
    ]
    assert 'Unsupported value: "Guess": supported values: "Kubelet", "NoSwap"' in done.stderr


def test_a_missing_profile_or_node(cluster: Cluster, file: Path) -> None:
    assert cluster.admin("simulate").returncode == 2
    missing = cluster.admin("simulate", "--delete", "nobody-has-this-name")
    assert missing.returncode == 1
    assert "there is no NodeSwapProfile 'nobody-has-this-name'" in missing.stderr
    nowhere = cluster.admin("simulate", "-f", str(file), "--node", "no-such-node")
    assert (nowhere.returncode, nowhere.stderr) == (1, "error: there is no node no-such-node\n")


@needs.NODES_TELL_SWAP
def test_somebody_who_sees_no_states_and_one_who_sees_their_pods_only(cluster: Cluster, file: Path) -> None:
    node = add_node(cluster, "n")
    add_pod(cluster, "one", node, "512Mi")
    some = cluster.user(READS, everywhere=True)("simulate", "-f", str(file), "--node", node, "-o", "json")
    assert some.returncode == 0, some.stderr
    found = json.loads(some.stdout)
    assert [one["change"] for one in found["pods"]] == ["Unknown"]
    assert any(note.startswith("nodeswapstates cannot be read") for note in found["notes"])
    rules = [{"apiGroups": [""], "resources": ["pods"], "verbs": ["get", "list"]}]
    tenant = cluster.user(rules)("simulate", "-f", str(file), "-n", cluster.namespace)
    assert tenant.returncode == 1
    assert tenant.stderr.splitlines()[-1].startswith("error: without the right to list nodes nothing can be said")


@pytest.fixture
def example() -> Iterator[Cluster]:
    """The cluster of the documentation, in a control plane of its own: what other tests leave behind would be noted."""
    with ControlPlane() as running, Front(running) as front:
        running.apply_crds(paths.CRDS)
        yield Cluster(running, front, "shop")


def test_what_the_documentation_shows(example: Cluster, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(paths.ROOT)
    (block,) = commands.run_by("tests/integration/cli/test_simulate.py", "docs/kubectl-swap.md")
    for node, behavior in (("batch-1", "NoSwap"), ("batch-2", "LimitedSwap")):
        add_node(example, node, behavior, 4 * GIB, {"pool": "batch"})
    for pod, node in (("web", "batch-1"), ("queue", "batch-2"), ("cache", "batch-2")):
        add_pod(example, pod, node)
    for command, shown in block.steps():
        done = example.admin(*shlex.split(command)[2:])
        assert (done.returncode, done.stderr) == (0, "")
        assert [line.rstrip() for line in done.stdout.splitlines()] == shown
