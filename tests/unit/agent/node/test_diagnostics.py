from __future__ import annotations

import pathlib
from typing import Any

import msgspec
import pytest
from swapwarden.agent.host import cgroupfs
from swapwarden.agent.inventory import board
from swapwarden.agent.node import diagnostics, eviction_order, kubelet_config, node_info
from swapwarden.agent.reconcile import runtime_plugins
from swapwarden.api import state
from swapwarden.api.conditions import DIAGNOSTICS, ConditionType

from tests.unit.agent.cgroup_tree import PAGE, CgroupTree

DISK = state.SwapDevice("/dev/vda", "partition", 1 << 30)
FACTS = state.Facts(
    cgroup_version=2,
    swap_controller=True,
    swap_bytes=1 << 30,
    memory_bytes=4 << 30,
    kernel_release="6.12.0",
    tmpfs_noswap=True,
    devices=[DISK],
)
GOOD = kubelet_config.Configuration(
    "config.yaml", fail_swap_on=False, swap_behavior="LimitedSwap", eviction_memory="50Mi"
)
HOSTILE = "a\x1b[31m\nb"
MEMORY = eviction_order.NodeMemory(
    total=4 << 30,
    free=1 << 30,
    inactive_file=1 << 30,
    kernel=10 << 20,
    slab=2 << 20,
    minimum=41 << 20,
    low=60 << 20,
)
SEEN = node_info.NodeLook(GOOD, memory=MEMORY, containers=node_info.Containers(limited=3))


def kinds(facts: state.Facts = FACTS, **changes: Any) -> list[str]:
    return [each.kind for each in diagnostics.conditions(facts, msgspec.structs.replace(SEEN, **changes))]


def test_nothing_to_say() -> None:
    assert kinds() == []
    assert kinds(configuration=None, memory=None) == []


def test_without_swap_there_is_nothing_to_say() -> None:
    old = msgspec.structs.replace(FACTS, tmpfs_noswap=False)
    bad = msgspec.structs.replace(GOOD, fail_swap_on=True)
    assert kinds(old, configuration=bad) == ["KubeletWillNotStart", "SecretsOnDisk"]
    assert kinds(msgspec.structs.replace(old, devices=[], swap_bytes=0), configuration=bad) == []


def test_a_kubelet_that_sets_no_limits() -> None:
    assert kinds(containers=node_info.Containers(without=2)) == ["KubeletSetsNoLimits"]
    assert kinds(containers=node_info.Containers(without=2, limited=1)) == []
    assert kinds(containers=node_info.Containers()) == []
    assert (
        kinds(
            containers=node_info.Containers(without=2),
            configuration=msgspec.structs.replace(GOOD, swap_behavior="NoSwap"),
        )
        == []
    )
    assert kinds(containers=node_info.Containers(without=2), configuration=None) == []


def test_eviction_before_swap() -> None:
    assert kinds(configuration=msgspec.structs.replace(GOOD, eviction_memory="100Mi")) == ["EvictionBeforeSwap"]
    assert kinds(configuration=msgspec.structs.replace(GOOD, eviction_memory="5%")) == ["EvictionBeforeSwap"]
    assert kinds(configuration=msgspec.structs.replace(GOOD, eviction_memory="what")) == []
    assert kinds(configuration=msgspec.structs.replace(GOOD, eviction_memory="70Mi")) == []
    assert kinds(configuration=msgspec.structs.replace(GOOD, eviction_memory="100Mi"), memory=None) == []


def test_eviction_by_the_limit_of_pods_before_swap() -> None:
    limited = msgspec.structs.replace(MEMORY, pods=eviction_order.PodsMemory(limit=1 << 30, working_set=512 << 20))
    (diagnostic,) = diagnostics.conditions(FACTS, msgspec.structs.replace(SEEN, memory=limited))
    assert (diagnostic.kind, diagnostic.reason) == ("EvictionBeforeSwap", "AllocatableThreshold")
    # 4096 less the threshold of 50, and less 2500 at which the kernel swaps: 512, 2048 that are not in use, less 60.
    assert "974 MiB" in diagnostic.message
    assert "2500 MiB" in diagnostic.message
    assert "at most 1546 MiB (now 3072 MiB)" in diagnostic.remedy
    without = msgspec.structs.replace(GOOD, enforce_node_allocatable=("none",))
    assert kinds(memory=limited, configuration=without) == []


@pytest.mark.parametrize(
    ("threshold", "reason", "says"), [("", "NoThreshold", "never"), ("40Mi", "ThresholdTooLow", "below 40 MiB")]
)
def test_the_oom_killer_before_an_eviction(threshold: str, reason: str, says: str) -> None:
    (diagnostic,) = diagnostics.conditions(
        FACTS, msgspec.structs.replace(SEEN, configuration=msgspec.structs.replace(GOOD, eviction_memory=threshold))
    )
    assert (diagnostic.kind, diagnostic.reason) == ("OOMKillBeforeEviction", reason)
    assert "49 MiB" in diagnostic.message
    assert diagnostic.message.endswith(says)
    assert "between 51 MiB and 70 MiB" in diagnostic.remedy


def test_secrets_on_disk() -> None:
    old = msgspec.structs.replace(FACTS, tmpfs_noswap=False)
    encrypted = msgspec.structs.replace(DISK, encrypted=True)
    assert kinds(old) == kinds(old, kubelet_swaps=True) == ["SecretsOnDisk"]
    assert kinds(old, kubelet_swaps=False) == []
    assert kinds(msgspec.structs.replace(old, devices=[encrypted])) == []
    assert kinds(msgspec.structs.replace(old, devices=[encrypted, DISK])) == ["SecretsOnDisk"]


def test_lost_events_are_reported_also_without_swap() -> None:
    (diagnostic,) = diagnostics.conditions(msgspec.structs.replace(FACTS, devices=[]), SEEN, lost=3)
    assert (diagnostic.kind, "3" in diagnostic.message.split()) == ("EventsLost", True)
    assert "fs.inotify.max_queued_events" in diagnostic.remedy


def test_all_of_them_together_are_short() -> None:
    worst = msgspec.structs.replace(
        SEEN,
        configuration=msgspec.structs.replace(GOOD, fail_swap_on=True, eviction_memory="100Gi"),
        containers=node_info.Containers(without=1),
    )
    runtime = board.RuntimeStatus(connected=False, reason="Refused", message="x" * 1000)
    short = diagnostics.Shortfall("x" * 4000, "memory.low", 0, 1 << 62)
    first = diagnostics.conditions(
        msgspec.structs.replace(FACTS, tmpfs_noswap=False), worst, 1, runtime, storm=True, short=short
    )
    late = msgspec.structs.replace(worst, configuration=msgspec.structs.replace(GOOD, eviction_memory="1"))
    listed = [*first, *diagnostics.conditions(FACTS, late)]
    assert {each.kind for each in listed} == set(DIAGNOSTICS)
    assert max(len(f"{each.message}; {each.remedy}") for each in listed) < 400
    assert not any("; " in each.remedy for each in listed), "readers of a condition split it there"


@pytest.mark.parametrize(
    "reason",
    [
        *runtime_plugins.REASONS,
        runtime_plugins.PLUGIN_AWAY,
        runtime_plugins.LINK_FAILED,
        runtime_plugins.SLOW,
        runtime_plugins.DROPPED,
    ],
)
def test_a_runtime_without_a_plugin_is_a_finding_with_its_own_remedy(reason: str) -> None:
    (diagnostic,) = diagnostics.conditions(
        FACTS, SEEN, runtime=board.RuntimeStatus(connected=False, reason=reason, message=HOSTILE)
    )
    (other,) = diagnostics.conditions(FACTS, SEEN, runtime=board.RuntimeStatus(connected=False, reason="Odd"))
    assert (diagnostic.kind, diagnostic.reason) == (ConditionType.NRI_UNAVAILABLE, reason)
    assert diagnostic.message.endswith("a?[31m?b")
    assert reason == "Refused" or diagnostic.message.partition(":")[0] != other.message


@pytest.mark.parametrize("runtime", [None, board.RuntimeStatus(connected=False), board.RuntimeStatus(connected=True)])
def test_no_runtime_or_one_that_is_away_for_a_moment_is_no_finding(runtime: board.RuntimeStatus | None) -> None:
    assert list(diagnostics.conditions(FACTS, SEEN, runtime=runtime)) == []


def test_each_is_documented() -> None:
    page = (pathlib.Path(__file__).parents[4] / "docs/node-check.md").read_text()
    assert [kind for kind in DIAGNOSTICS if f"`{kind}`" not in page] == []


GIB = 1 << 30
LOW, MIN = "memory.low", "memory.min"


def shortfall(tree: CgroupTree, **needed: int) -> tuple[str, str, int] | None:
    """Return the cgroup, the file and what it holds, where pods need `needed`."""
    root = str(tree.kubepods.relative_to(tree.root))
    amounts = {f"memory.{name}": amount for name, amount in needed.items()}
    short = diagnostics.shortfall(cgroupfs.Cgroups(str(tree.root), PAGE), root, amounts)
    return None if short is None else (short.path, short.file, short.observed)


@pytest.mark.parametrize("naming", ["systemd", "cgroupfs"])
def test_nothing_is_above_all_pods_of_a_node_of_its_own(tmp_path: pathlib.Path, naming: str) -> None:
    assert shortfall(CgroupTree(tmp_path, naming), low=GIB, min=GIB) is None


def test_the_ancestor_with_the_least_is_named(tmp_path: pathlib.Path) -> None:
    tree = CgroupTree(tmp_path, "kind")
    above = tree.kubepods.parent
    (above / LOW).write_text("0\n")
    (above / MIN).write_text("0\n")
    assert shortfall(tree, low=GIB) == ("kubelet.slice", LOW, 0)
    assert shortfall(tree, min=GIB) == ("kubelet.slice", MIN, 0)
    assert shortfall(tree) is None, "nobody asks for protection"
    (above / LOW).write_text(f"{GIB}\n")
    assert shortfall(tree, low=GIB) is None
    assert shortfall(tree, low=GIB, min=PAGE) == ("kubelet.slice", MIN, 0), "either does not replace the other"
    (above / LOW).write_text("max\n")
    (tree.root / LOW).write_text(f"{GIB // 2}\n")
    assert shortfall(tree, low=GIB) == ("", LOW, GIB // 2), "the node itself is in a cgroup"
    (above / LOW).write_text("0\n")
    assert shortfall(tree, low=GIB) == ("kubelet.slice", LOW, 0)


@pytest.mark.parametrize(("holds", "words"), [(0, "nothing"), (GIB // 2, "no more than 512 MiB")])
@pytest.mark.parametrize("path", ["kubelet.slice", ""])
def test_the_condition_names_it_with_the_remedy(holds: int, words: str, path: str) -> None:
    short = diagnostics.Shortfall(path, LOW, holds, GIB)
    (told,) = diagnostics.conditions(FACTS, SEEN, short=short)
    assert (told.kind, told.reason) == ("ProtectionIneffective", "AncestorTooLow")
    assert f"cgroup /{path}" in told.message
    assert words in told.message
    assert ("the node itself" in told.message) is (path == "")
    assert f"{GIB} or more (as MemoryLow=" in told.remedy
