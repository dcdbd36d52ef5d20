"""A cgroup above all pods that takes their protection away, on trees as the kernel and kind have them."""

from __future__ import annotations

import pathlib

import pytest
from swapwarden.agent.host import cgroupfs
from swapwarden.agent.node import diagnostics, protection

from tests.unit.agent.cgroup_tree import PAGE, CgroupTree
from tests.unit.agent.node.test_diagnostics import FACTS, SEEN

GIB = 1 << 30
LOW, MIN = "memory.low", "memory.min"


def found(tree: CgroupTree, **needed: int) -> tuple[str, str, int] | None:
    """Return the cgroup, the file and what it holds, where pods need `needed`."""
    root = str(tree.kubepods.relative_to(tree.root))
    wanted = {f"memory.{name}": amount for name, amount in needed.items()}
    short = protection.shortfall(cgroupfs.Cgroups(str(tree.root), PAGE), root, wanted)
    return None if short is None else (short.path, short.file, short.found)


@pytest.mark.parametrize("naming", ["systemd", "cgroupfs"])
def test_nothing_is_above_all_pods_of_a_node_of_its_own(tmp_path: pathlib.Path, naming: str) -> None:
    assert found(CgroupTree(tmp_path, naming), low=GIB, min=GIB) is None


def test_the_ancestor_with_the_least_is_named(tmp_path: pathlib.Path) -> None:
    tree = CgroupTree(tmp_path, "kind")
    above = tree.kubepods.parent
    (above / LOW).write_text("0\n")
    (above / MIN).write_text("0\n")
    assert found(tree, low=GIB) == ("kubelet.slice", LOW, 0)
    assert found(tree, min=GIB) == ("kubelet.slice", MIN, 0)
    assert found(tree) is None, "nobody asks for protection"
    (above / LOW).write_text(f"{GIB}\n")
    assert found(tree, low=GIB) is None
    assert found(tree, low=GIB, min=PAGE) == ("kubelet.slice", MIN, 0), "either does not replace the other"
    (above / LOW).write_text("max\n")
    (tree.root / LOW).write_text(f"{GIB // 2}\n")
    assert found(tree, low=GIB) == ("", LOW, GIB // 2), "the node itself is in a cgroup"
    (above / LOW).write_text("0\n")
    assert found(tree, low=GIB) == ("kubelet.slice", LOW, 0)


@pytest.mark.parametrize(("holds", "words"), [(0, "nothing"), (GIB // 2, "no more than 512 MiB")])
@pytest.mark.parametrize("path", ["kubelet.slice", ""])
def test_the_condition_names_it_with_the_remedy(holds: int, words: str, path: str) -> None:
    short = protection.Shortfall(path, LOW, holds, GIB)
    (told,) = diagnostics.conditions(FACTS, SEEN, short=short)
    assert (told.kind, told.reason) == ("ProtectionIneffective", "AncestorTooLow")
    assert f"cgroup /{path}" in told.message
    assert words in told.message
    assert ("the node itself" in told.message) is (path == "")
    assert f"{GIB} or more (as MemoryLow=" in told.remedy
