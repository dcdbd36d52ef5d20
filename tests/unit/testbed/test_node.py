"""The stand-in's numbers and names are the kubelet's."""

from pathlib import Path
from typing import Any

import pytest

from testbed.standin import nodetree, pods

MIB = 1 << 20


@pytest.mark.parametrize(
    ("quantity", "expected"),
    [
        (None, 0),
        ("", 0),
        ("128Mi", 128 * MIB),
        ("1.5Gi", 1536 * MIB),
        ("500M", 500_000_000),
        ("4096", 4096),
        ("1k", 1000),
    ],
)
def test_to_bytes(quantity: str | None, expected: int) -> None:
    assert pods.to_bytes(quantity) == expected


def test_a_swap_limit_seen_on_a_real_node() -> None:
    given = pods.swap_limit(256 * MIB, 0, 2060390400, 536866816, limited=True, qos="burstable", critical=False)
    assert int(given) // nodetree.PAGE * nodetree.PAGE == 69943296


@pytest.mark.parametrize(
    "change",
    [
        {"limited": False},
        {"qos": "guaranteed"},
        {"qos": "besteffort"},
        {"critical": True},
        {"request": 0},
        {"limit": 64 * MIB},
        {"request": 4096 * MIB},
    ],
)
def test_no_swap_where_the_kubelet_gives_none(change: dict[str, Any]) -> None:
    given: dict[str, Any] = {"request": 64 * MIB, "limit": 128 * MIB, "limited": True, "qos": "burstable"}
    given = given | {"critical": False} | change
    assert pods.swap_limit(memory=1024 * MIB, swap=1024 * MIB, **given) == "0"


UID = "0f3a-77"


@pytest.mark.parametrize(
    ("naming", "qos", "expected"),
    [
        ("systemd", "guaranteed", "kubepods.slice/kubepods-pod0f3a_77.slice"),
        ("systemd", "burstable", "kubepods.slice/kubepods-burstable.slice/kubepods-burstable-pod0f3a_77.slice"),
        ("cgroupfs", "guaranteed", "kubepods/pod0f3a-77"),
        ("cgroupfs", "besteffort", "kubepods/besteffort/pod0f3a-77"),
    ],
)
def test_pod_folders(naming: str, qos: str, expected: str, tmp_path: Path) -> None:
    tree = nodetree.Tree(tmp_path, naming)
    assert tree.pod(UID, qos) == tmp_path / expected


def test_a_plain_folder_behaves_like_a_cgroup(tmp_path: Path) -> None:
    root = tmp_path / "root"
    root.mkdir()
    tree = nodetree.Tree(root, "systemd")
    assert not tree.real
    tree.prepare()
    pod = tree.pod(UID, "burstable")
    tree.make(pod, {"memory.max": "10000"})
    assert (pod / "memory.max").read_text() == "8192\n", "floored to the page"
    assert (pod / "memory.swap.max").read_text() == "max\n"
    assert tree.oom_kills(pod) == 0
    tree.make(tree.container(pod, "ab"))
    assert tree.remove(pod)
    assert not pod.exists()
    assert tree.close()
    assert [path.name for path in tmp_path.iterdir()] == ["root"]
    assert not (root / "kubepods.slice").exists()
