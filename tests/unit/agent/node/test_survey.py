from __future__ import annotations

import pathlib
from collections.abc import Iterator

import pytest
from swapwarden.agent.host import cgroupfs
from swapwarden.agent.node import kubelet_config, survey
from swapwarden.api import state

from tests.unit.agent import host_tree
from tests.unit.agent.cgroup_tree import PAGE
from tests.unit.agent.host_tree import HostTree


@pytest.fixture
def node(tmp_path: pathlib.Path) -> HostTree:
    return HostTree(tmp_path)


@pytest.fixture
def cgroups(node: HostTree) -> Iterator[cgroupfs.Cgroups]:
    opened = cgroupfs.Cgroups(str(node.root), PAGE)
    yield opened
    opened.close()


def seen(node: HostTree, cgroups: cgroupfs.Cgroups) -> survey.Look:
    return survey.look(node.proc, node.sys, cgroups, "kubepods.slice", survey.configuration_files(node.host))


def test_look(node: HostTree, cgroups: cgroupfs.Cgroups) -> None:
    node.burstable(1, "max", "max")
    found = seen(node, cgroups)
    assert found.configuration is not None
    assert found.configuration.swap_behavior == "LimitedSwap"
    assert (found.watermark_low, found.kubelet_swaps) == (host_tree.LOW_PAGES * PAGE, True)
    assert found.containers == survey.Containers(without=1)


def test_a_configuration_that_is_none_is_told(node: HostTree, cgroups: cgroupfs.Cgroups) -> None:
    file = node.file(node.host / "config", "nonsense")
    found = survey.look(node.proc, node.sys, cgroups, None, kubelet_config.Files(file))
    assert (found.configuration, found.containers) == (None, survey.Containers())
    assert "no kind" in found.unreadable


def test_the_configuration_is_where_distributions_keep_it(node: HostTree) -> None:
    (node.host / "var/lib/kubelet/config.yaml").unlink()
    assert survey.configuration_files(node.host) == (None, None)
    # kubeadm keeps a kubeconfig where others keep the configuration.
    node.file(node.host / "etc/kubernetes/kubelet.conf", "apiVersion: v1\nkind: Config\n")
    assert survey.configuration_files(node.host) == (None, None)
    node.file(node.host / "etc/kubernetes/kubelet.conf", host_tree.LIMITED)
    (drop_ins := node.host / "var/lib/rancher/k3s/agent/etc/kubelet.conf.d").mkdir(parents=True)
    assert survey.configuration_files(node.host) == (node.host / "etc/kubernetes/kubelet.conf", drop_ins)


def test_containers(node: HostTree, cgroups: cgroupfs.Cgroups) -> None:
    def tally() -> survey.Containers:
        return survey.containers(cgroups, "kubepods.slice", lambda path: path in ours)

    ours: set[str] = set()
    node.burstable(1)  # the sandbox alone tells nothing
    node.container(node.pod(2, "besteffort"), "other")
    assert tally() == survey.Containers()
    node.burstable(3, "0")
    assert tally() == survey.Containers(limited=1)
    raised, _ = node.burstable(4, "8192", "max")
    assert tally() == survey.Containers(limited=2, swapping=1)
    ours.add(str(raised.relative_to(node.root)))
    assert tally() == survey.Containers(limited=1)
    for number in range(5, 50):
        node.burstable(number, "max")
    assert sum(tally()[:2]) <= 32


def test_a_kubelet_swaps_unless_a_limit_of_its_unit_or_above_is_0(node: HostTree, cgroups: cgroupfs.Cgroups) -> None:
    def swaps() -> bool | None:
        return seen(node, cgroups).kubelet_swaps

    (node.system / "memory.swap.max").write_text("0\n")
    assert swaps() is False
    (node.system / "memory.swap.max").write_text("max\n")
    (node.unit / "memory.swap.max").write_text("0\n")
    assert swaps() is False
    (node.unit / "memory.swap.max").write_text("nonsense\n")
    assert swaps() is True
    (node.system / "memory.swap.max").unlink()
    assert swaps() is None
    node.remove(node.unit)
    assert swaps() is None


def test_runtime(node: HostTree, cgroups: cgroupfs.Cgroups) -> None:
    assert survey.runtime(cgroups, "kubepods.slice") == survey.runtime(cgroups, None) == ""
    node.burstable(1)
    assert survey.runtime(cgroups, "kubepods.slice") == "containerd"


def test_what_else_there_is(node: HostTree) -> None:
    assert survey.zswap(node.sys) == state.Zswap(enabled=True, compressor="zstd", max_pool_percent=20)
    for odd in ("200", "much", "\N{ARABIC-INDIC DIGIT ONE}"):
        node.file(node.sys / "module/zswap/parameters/max_pool_percent", odd)
        assert survey.zswap(node.sys) == state.Zswap(enabled=True, compressor="zstd")
    assert survey.zswap(node.host) is None
    assert (survey.pressure(node.proc), survey.pressure(node.host)) == (True, None)
    assert (survey.sysctl(node.proc, "vm/swappiness"), survey.sysctl(node.proc, "vm/none")) == (60, None)
    assert (survey.systemd(node.host), survey.systemd(node.sys)) == ("252", None)
    (node.host / "usr/lib/x86_64-linux-gnu/systemd/libsystemd-shared-252.so").unlink()
    assert survey.systemd(node.host) == ""
    node.file(node.host / "usr/lib/systemd/libsystemd-shared-255.4-1ubuntu8.so", "")
    assert survey.systemd(node.host) == "255.4-1ubuntu8"
    assert survey.controllers(node.root) == "cpu io memory pids"


def test_with_crun_the_inner_cgroup_counts(node: HostTree, cgroups: cgroupfs.Cgroups) -> None:
    (scope,) = node.burstable(1, "max")
    node.group(scope / "container", memory_swap_max="8192\n")
    assert survey.containers(cgroups, "kubepods.slice", lambda _: False) == survey.Containers(limited=1, swapping=1)
    inner = str((scope / "container").relative_to(node.root))
    assert survey.containers(cgroups, "kubepods.slice", lambda path: path == inner) == survey.Containers()


def test_what_the_state_says_of_the_kubelet(node: HostTree, cgroups: cgroupfs.Cgroups) -> None:
    told = survey.kubelet_facts(seen(node, cgroups), "kubepods.slice")
    assert told == state.Kubelet(
        fail_swap_on=False,
        swap_behavior="LimitedSwap",
        eviction_memory="50Mi",
        enforce_node_allocatable=["pods"],
        cgroup_driver="systemd",
        cgroup_root="/",
    )


def test_what_a_nodes_state_tells(node: HostTree, cgroups: cgroupfs.Cgroups) -> None:
    node.burstable(1)
    bare = state.Facts(cgroup_version=2, swap_controller=True, swap_bytes=1, memory_bytes=1)
    told = survey.told(bare, seen(node, cgroups), "kubepods.slice")
    assert (told.controllers, told.memory_pressure, told.runtime) == (
        ["cpu", "io", "memory", "pids"],
        True,
        "containerd",
    )
    assert told.zswap == state.Zswap(enabled=True, compressor="zstd", max_pool_percent=20)
    assert told.kubelet is not None
    assert survey.told(bare, survey.Look(), None) == bare
    node.file(node.root / "cgroup.controllers", " ".join("x" * 99 for _ in range(99)))
    long = survey.told(bare, seen(node, cgroups), None)
    assert long.controllers == ["x" * 32] * 16


def test_whether_the_runtime_may_swap(node: HostTree, cgroups: cgroupfs.Cgroups) -> None:
    assert seen(node, cgroups).runtime_swaps is True
    (node.system / "containerd.service/memory.swap.max").write_text("0\n")
    assert seen(node, cgroups).runtime_swaps is False
    node.remove(node.system / "containerd.service")
    assert seen(node, cgroups).runtime_swaps is None
    node.group(node.system / "k3s.service")
    assert seen(node, cgroups).runtime_swaps is True, "in the kubelet's unit"


def test_the_share_of_disks(node: HostTree) -> None:
    assert survey.io_weight(node.system) is None
    node.file(node.system / "io.bfq.weight", "default 100\n")
    assert survey.io_weight(node.system) == "default 100"
    node.file(node.system / "io.weight", "default 800\n8:0 100\n")
    assert survey.io_weight(node.system) == "default 800\n8:0 100"


def test_what_is_inferred_of_the_kubelet() -> None:
    unlimited, none = survey.Look(containers=survey.Containers(without=1)), survey.Containers(limited=2)
    assert survey.kubelet_facts(survey.Look(), None) is None
    assert survey.kubelet_facts(unlimited, "kubepods") == state.Kubelet(
        inferred=True, cgroup_driver="cgroupfs", cgroup_root="/"
    )
    nested = survey.kubelet_facts(survey.Look(containers=none), "kubelet.slice/kubelet-kubepods.slice")
    assert nested == state.Kubelet(inferred=True, cgroup_driver="systemd", cgroup_root="/kubelet.slice"), (
        "critical pods have none, whatever it does"
    )
    some = survey.kubelet_facts(survey.Look(containers=survey.Containers(limited=2, swapping=1)), "kubepods")
    assert some is not None
    assert some.swap_behavior == "LimitedSwap"
