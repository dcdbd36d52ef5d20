"""`kubectl swap nodes` against a real API server, by people with more and fewer rights."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from testbed.controlplane.servers import ControlPlane
from tests.integration import needs
from tests.integration.cli.conftest import GIB, Cluster, Plugin, healthy

DISK = {
    "name": "/dev/nvme0n1p3",
    "type": "partition",
    "sizeBytes": 4 * GIB,
    "priority": -2,
    "backing": "NVMe",
    "encrypted": True,
}
LABELS = {"node.swapwarden.dev/swap-behavior": "LimitedSwap"}


@pytest.fixture
def two(cluster: Cluster) -> Cluster:
    """A node on which all is well, and one that the controller has not planned."""
    cluster.node("batch", LABELS, swap=4 * GIB)
    cluster.state("batch", {"profileRef": {"name": "batch", "generation": 1}}, healthy("batch", 4 * GIB, DISK))
    cluster.node("new", swap=GIB)
    return cluster


@needs.NODES_TELL_SWAP
def test_an_administrator_sees_all_nodes_that_the_selector_matches(two: Cluster) -> None:
    # Without an agent's pod, a node that has reported is silent.
    unknown = ["<unknown>"] * 2
    assert two.admin.rows("nodes", "-l", two.selector) == [
        [two.name("batch"), "Silent", "batch", "LimitedSwap", "Standard", "4Gi", *unknown, "nvme", "true"],
        [two.name("new"), "NoState", *["<unknown>"] * 3, "1Gi", *["<unknown>"] * 4],
    ]
    assert two.admin.rows("nodes", two.name("new"))[0][:2] == [two.name("new"), "NoState"]


def test_forms_for_programs(two: Cluster) -> None:
    done = two.admin("nodes", "-l", two.selector, "-o", "json")
    found = json.loads(done.stdout)["items"]
    assert [item["state"] for item in found] == ["Silent", "NoState"]
    assert found[0]["devices"] == [DISK]
    assert two.admin.rows("nodes", "-l", two.selector, "-o", "name") == [
        [f"node/{two.name('batch')}"],
        [f"node/{two.name('new')}"],
    ]


def test_a_node_that_is_not_there(two: Cluster) -> None:
    done = two.admin("nodes", "absent")
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr == 'error: nodes "absent" not found\n'


def test_no_node_at_all(two: Cluster) -> None:
    done = two.admin("nodes", "-l", "test=nobody")
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "No nodes found.\n")


@needs.NODES_TELL_SWAP
def test_a_user_who_may_only_read_nodes_sees_their_fields(two: Cluster) -> None:
    user = two.user([{"apiGroups": [""], "resources": ["nodes"], "verbs": ["list"]}], everywhere=True)
    done = user("nodes", "-l", two.selector, "--no-headers")
    assert done.returncode == 0
    batch = done.stdout.splitlines()[0].split()
    assert batch == [
        two.name("batch"), "Unknown", "<unknown>", "LimitedSwap", "<unknown>", "4Gi", *["<unknown>"] * 4,
    ]  # fmt: skip
    told = done.stderr.splitlines()
    assert len(told) == 3
    assert all(line.startswith("note: ") for line in told)
    assert any("cannot list resource" in line and "nodeswapstates" in line for line in told)


def test_a_user_who_may_not_read_nodes_gets_an_error(two: Cluster) -> None:
    done = two.user([{"apiGroups": [""], "resources": ["pods"], "verbs": ["get", "list"]}])("nodes")
    assert (done.returncode, done.stdout) == (1, "")
    assert "error: nodes is forbidden: User" in done.stderr
    assert "docs/kubectl-swap.md" in done.stderr


def test_bad_credentials(control_plane: ControlPlane) -> None:
    done = Plugin(control_plane.kubeconfig_for("nonsense", "nobody"))("nodes")
    assert done.returncode == 1
    assert done.stderr.startswith("error: the API server refused the credentials (401): Unauthorized; log in again")


def test_nobody_answers(control_plane: ControlPlane) -> None:
    away = control_plane.kubeconfig_for("token", "away", server="https://127.0.0.1:9")
    done = Plugin(away)("nodes", "--request-timeout=5s")
    assert done.returncode == 1
    assert done.stderr.startswith("error: cannot connect to 127.0.0.1:9: ")
    assert "kubectl config current-context" in done.stderr


def test_several_kubeconfigs_and_a_context(two: Cluster, tmp_path: Path) -> None:
    first = tmp_path / "first"
    first.write_text(json.dumps({"current-context": "elsewhere"}))
    plugin = Plugin(first)
    both = f"{first}:{two.admin.kubeconfig}"
    assert "has an entry 'elsewhere' in contexts" in plugin("nodes", KUBECONFIG=both).stderr
    done = plugin("nodes", two.name("new"), "--context", "admin", "-o", "name", KUBECONFIG=both)
    assert (done.returncode, done.stdout) == (0, f"node/{two.name('new')}\n")
