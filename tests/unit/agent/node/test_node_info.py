from __future__ import annotations

import pathlib
import tempfile
from collections.abc import Iterator

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from swapwarden.agent.host import cgroupfs
from swapwarden.agent.node import eviction_order, kubelet_config, node_info
from swapwarden.api import state

from tests.unit.agent import host_tree
from tests.unit.agent.cgroup_tree import PAGE, CgroupTree
from tests.unit.agent.host_tree import HostTree


@pytest.fixture
def node(tmp_path: pathlib.Path) -> HostTree:
    return HostTree(tmp_path)


@pytest.fixture
def cgroups(node: HostTree) -> Iterator[cgroupfs.Cgroups]:
    opened = cgroupfs.Cgroups(str(node.root), PAGE)
    yield opened
    opened.close()


def seen(node: HostTree, cgroups: cgroupfs.Cgroups) -> node_info.NodeLook:
    return node_info.look(node.proc, node.sys, cgroups, "kubepods.slice", node_info.configuration_files(node.host))


def test_look(node: HostTree, cgroups: cgroupfs.Cgroups) -> None:
    node.burstable(1, "max", "max")
    look = seen(node, cgroups)
    assert look.configuration is not None
    assert look.configuration.swap_behavior == "LimitedSwap"
    assert look.kubelet_swaps is True
    assert look.containers == node_info.Containers(without=1)


def test_how_memory_is_used(node: HostTree, cgroups: cgroupfs.Cgroups) -> None:
    memory = seen(node, cgroups).memory
    assert memory == eviction_order.NodeMemory(
        total=4194304 << 10,
        free=3145728 << 10,
        inactive_file=204800 << 10,
        kernel=host_tree.KERNEL_KIB << 10,
        slab=2048 << 10,
        minimum=host_tree.MIN_PAGES * PAGE,
        low=host_tree.LOW_PAGES * PAGE,
    )
    (node.kubepods / "memory.max").write_text("3221225472\n")
    (node.kubepods / "memory.current").write_text("10485760\n")
    (node.kubepods / "memory.stat").write_text("anon 1\ninactive_file 4194304\n")
    assert seen(node, cgroups).memory == msgspec.structs.replace(
        memory, pods=eviction_order.PodsMemory(3221225472, 6291456)
    )
    (node.proc / "zoneinfo").write_text("Node 0\n")
    assert seen(node, cgroups).memory is None


@pytest.mark.parametrize("name", ["MemTotal", "MemFree", "Inactive(file)", "AnonPages", "Cached", "Buffers"])
def test_memory_is_unknown_without_one_of_its_sizes(node: HostTree, cgroups: cgroupfs.Cgroups, name: str) -> None:
    lines = host_tree.MEMINFO.splitlines(keepends=True)
    (node.proc / "meminfo").write_text("".join(line for line in lines if not line.startswith(name)))
    assert seen(node, cgroups).memory is None


def test_free_memory_on_lists_of_processors_is_no_memory_of_the_kernel(
    node: HostTree, cgroups: cgroupfs.Cgroups
) -> None:
    before = seen(node, cgroups).memory
    assert before is not None
    file = node.proc / "zoneinfo"
    file.write_text(file.read_text() + "    cpu: 0\n              count:    300\n    cpu: 1\n              count: 20\n")
    listed = 320 * PAGE
    assert seen(node, cgroups).memory == msgspec.structs.replace(
        before, free=before.free + listed, kernel=before.kernel - listed
    )


def test_a_file_that_is_no_configuration_is_reported(node: HostTree, cgroups: cgroupfs.Cgroups) -> None:
    file = node.file(node.host / "config", "nonsense")
    look = node_info.look(node.proc, node.sys, cgroups, None, kubelet_config.Files(file))
    assert (look.configuration, look.containers) == (None, node_info.Containers())
    assert "no kind" in look.unreadable


def test_the_configuration_is_where_distributions_keep_it(node: HostTree) -> None:
    (node.host / "var/lib/kubelet/config.yaml").unlink()
    assert node_info.configuration_files(node.host) == kubelet_config.Files()
    # kubeadm keeps a kubeconfig where others keep the configuration.
    node.file(node.host / "etc/kubernetes/kubelet.conf", "apiVersion: v1\nkind: Config\n")
    assert node_info.configuration_files(node.host) == kubelet_config.Files()
    node.file(node.host / "etc/kubernetes/kubelet.conf", host_tree.LIMITED)
    (drop_ins := node.host / "var/lib/rancher/k3s/agent/etc/kubelet.conf.d").mkdir(parents=True)
    assert node_info.configuration_files(node.host) == kubelet_config.Files(
        node.host / "etc/kubernetes/kubelet.conf", drop_ins
    )


def test_containers(node: HostTree, cgroups: cgroupfs.Cgroups) -> None:
    def tally() -> node_info.Containers:
        return node_info.containers(cgroups, "kubepods.slice", ours)

    ours: set[str] = set()
    node.burstable(1)  # the sandbox alone shows nothing
    node.container(node.pod(2, "besteffort"), "other")
    assert tally() == node_info.Containers()
    node.burstable(3, "0")
    assert tally() == node_info.Containers(limited=1)
    raised, _ = node.burstable(4, "8192", "max")
    assert tally() == node_info.Containers(limited=2, swapping=1)
    ours.add(str(raised.relative_to(node.root)))
    assert tally() == node_info.Containers(limited=1)
    for number in range(5, 50):
        node.burstable(number, "max")
    assert tally().without + tally().limited <= 32


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
    assert node_info.runtime(cgroups, "kubepods.slice") == node_info.runtime(cgroups, None) == ""
    node.burstable(1)
    assert node_info.runtime(cgroups, "kubepods.slice") == "containerd"


def test_what_else_there_is(node: HostTree) -> None:
    assert node_info.zswap(node.sys) == state.ZswapFacts(enabled=True, compressor="zstd", max_pool_percent=20)
    for odd in ("200", "much", "\N{ARABIC-INDIC DIGIT ONE}"):
        node.file(node.sys / "module/zswap/parameters/max_pool_percent", odd)
        assert node_info.zswap(node.sys) == state.ZswapFacts(enabled=True, compressor="zstd")
    assert node_info.zswap(node.host) is None
    assert (node_info.pressure(node.proc), node_info.pressure(node.host)) == (True, None)
    assert (node_info.sysctl(node.proc, "vm/swappiness"), node_info.sysctl(node.proc, "vm/none")) == (60, None)
    assert (node_info.systemd(node.host), node_info.systemd(node.sys)) == ("252", None)
    (node.host / "usr/lib/x86_64-linux-gnu/systemd/libsystemd-shared-252.so").unlink()
    assert node_info.systemd(node.host) == ""
    node.file(node.host / "usr/lib/systemd/libsystemd-shared-255.4-1ubuntu8.so", "")
    assert node_info.systemd(node.host) == "255.4-1ubuntu8"
    assert node_info.controllers(node.root) == "cpu io memory pids"


def test_with_crun_the_inner_cgroup_counts(node: HostTree, cgroups: cgroupfs.Cgroups) -> None:
    (scope,) = node.burstable(1, "max")
    node.group(scope / "container", memory_swap_max="8192\n")
    assert node_info.containers(cgroups, "kubepods.slice", ()) == node_info.Containers(limited=1, swapping=1)
    inner = str((scope / "container").relative_to(node.root))
    assert node_info.containers(cgroups, "kubepods.slice", {inner}) == node_info.Containers()


def test_what_the_state_says_of_the_kubelet(node: HostTree, cgroups: cgroupfs.Cgroups) -> None:
    told = node_info.kubelet_facts(seen(node, cgroups), "kubepods.slice")
    assert told == state.Kubelet(
        fail_swap_on=False,
        swap_behavior="LimitedSwap",
        eviction_memory="50Mi",
        enforce_node_allocatable=["pods"],
        cgroup_driver="systemd",
        cgroup_root="/",
    )


def test_facts_in_a_nodes_state(node: HostTree, cgroups: cgroupfs.Cgroups) -> None:
    node.burstable(1)
    bare = state.Facts(cgroup_version=2, swap_controller=True, swap_bytes=1, memory_bytes=1)
    told = node_info.reported(bare, seen(node, cgroups), "kubepods.slice")
    assert (told.controllers, told.psi_available, told.runtime) == (
        ["cpu", "io", "memory", "pids"],
        True,
        "containerd",
    )
    assert told.zswap == state.ZswapFacts(enabled=True, compressor="zstd", max_pool_percent=20)
    assert told.kubelet is not None
    assert node_info.reported(bare, node_info.NodeLook(), None) == bare
    node.file(node.root / "cgroup.controllers", " ".join("x" * 99 for _ in range(99)))
    long = node_info.reported(bare, seen(node, cgroups), None)
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
    assert node_info.io_weight(node.system) is None
    node.file(node.system / "io.bfq.weight", "default 100\n")
    assert node_info.io_weight(node.system) == "default 100"
    node.file(node.system / "io.weight", "default 800\n8:0 100\n")
    assert node_info.io_weight(node.system) == "default 800\n8:0 100"


def test_facts_inferred_about_the_kubelet() -> None:
    unlimited, none = node_info.NodeLook(containers=node_info.Containers(without=1)), node_info.Containers(limited=2)
    assert node_info.kubelet_facts(node_info.NodeLook(), None) is None
    assert node_info.kubelet_facts(unlimited, "kubepods") == state.Kubelet(
        inferred=True, cgroup_driver="cgroupfs", cgroup_root="/"
    )
    nested = node_info.kubelet_facts(node_info.NodeLook(containers=none), "kubelet.slice/kubelet-kubepods.slice")
    assert nested == state.Kubelet(inferred=True, cgroup_driver="systemd", cgroup_root="/kubelet.slice"), (
        "critical pods have none, whatever it does"
    )
    some = node_info.kubelet_facts(
        node_info.NodeLook(containers=node_info.Containers(limited=2, swapping=1)), "kubepods"
    )
    assert some is not None
    assert some.swap_behavior == "LimitedSwap"


# Facts

SWAPS = """Filename\t\t\t\tType\t\tSize\t\tUsed\t\tPriority
/dev/vda                                partition\t524284\t\t0\t\t-2
/var/my\\040swap\\134file                  file\t\t1024\t\t8\t\t10
nonsense
"""


def test_devices(tmp_path: pathlib.Path) -> None:
    first, second = node_info.devices(SWAPS, tmp_path)
    assert (first.name, first.type, first.size_bytes, first.priority) == ("/dev/vda", "partition", 524284 * 1024, -2)
    assert (second.name, second.type, second.priority) == ("/var/my swap\\file", "file", 10)
    assert (first.backing, second.backing, second.encrypted) == ("Unknown", "File", False)
    assert node_info.devices("", tmp_path) == []


def test_the_kind_of_swap_devices(tmp_path: pathlib.Path) -> None:
    (tmp_path / "vda").mkdir()
    (tmp_path / "zram0").mkdir()
    lines = f"{SWAPS}/dev/zram0 partition 1024 0 100\n"
    kinds = {each.name: (each.backing, each.encrypted) for each in node_info.devices(lines, tmp_path)}
    assert kinds == {
        "/dev/vda": ("Virtual", False),
        "/var/my swap\\file": ("File", False),
        "/dev/zram0": ("Zram", True),
    }


@pytest.mark.parametrize(
    ("of_the_node", "dedicated"),
    [(frozenset({"vda"}), [False, None, True]), (frozenset(), [True, None, True]), (None, [None, None, None])],
)
def test_whether_they_share_a_disk(
    tmp_path: pathlib.Path, of_the_node: frozenset[str] | None, dedicated: list[bool | None]
) -> None:
    for name in ("vda", "zram0"):
        (tmp_path / name).mkdir()
    lines = f"{SWAPS}/dev/zram0 partition 1024 0 100\n"
    assert [each.dedicated for each in node_info.devices(lines, tmp_path, of_the_node)] == dedicated


def test_no_kernel_has_more_than_are_kept(tmp_path: pathlib.Path) -> None:
    lines = "".join(f"/dev/zram{number} partition 1024 0 100\n" for number in range(100))
    assert len(node_info.devices(f"Filename\n{lines}", tmp_path)) == 32


@pytest.mark.parametrize(
    ("release", "can"),
    [
        ("6.1.0-25-amd64", False),
        ("6.3.9", False),
        ("6.4.0", True),
        ("6.12", True),
        ("7.0-rc1", True),
        ("", False),
        ("6.40", True),
        ("5.14.0-427.13.1.el9_4.x86_64", False),
        ("6.", False),
        ("x6.4", False),
        ("9" * 5000 + ".1", False),
    ],
)
def test_tmpfs_noswap(release: str, *, can: bool) -> None:
    assert node_info.noswap(release) is can


def test_all_facts(tmp_path: pathlib.Path) -> None:
    tree = CgroupTree(tmp_path)
    cgroups = cgroupfs.Cgroups(str(tree.root), PAGE)
    read = node_info.read_facts(tree.proc, tmp_path, cgroups, "kubepods.slice")
    assert (read.cgroup_version, read.swap_controller) == (2, True)
    assert (read.swap_bytes, read.memory_bytes, read.page_size) == (1 << 30, 4 << 30, PAGE)
    assert (read.kernel_release, read.tmpfs_noswap, len(read.devices)) == ("6.1.0-25-amd64", False, 1)
    assert node_info.available(tree.proc) == 3 << 30
    token = "9 1 0:9 / /run/secrets/kubernetes.io/serviceaccount ro - tmpfs tmpfs rw,noswap\n"
    (tree.proc / "self").mkdir()
    (tree.proc / "self/mountinfo").write_text(token)
    assert node_info.read_facts(tree.proc, tmp_path, cgroups, None).tmpfs_noswap, (
        "the kernel's release is no more than a guess"
    )
    (tree.kubepods / "memory.swap.max").unlink()
    assert not node_info.read_facts(tree.proc, tmp_path, cgroups, "kubepods.slice").swap_controller
    assert not node_info.read_facts(tree.proc, tmp_path, cgroups, None).swap_controller
    (tree.root / "cgroup.controllers").unlink()
    assert node_info.read_facts(tree.proc, tmp_path, cgroups, None).cgroup_version == 0
    (tree.root / "memory").mkdir()
    assert node_info.read_facts(tree.proc, tmp_path, cgroups, None).cgroup_version == 1
    cgroups.close()


DIGITS = st.text("0123456789٣²-", max_size=30).map(lambda text: text * 300)


@given(st.data())
def test_no_content_of_the_kernels_files_stops_the_agent(data: st.DataObject) -> None:
    """Not that a kernel writes such things: a mount of something else in its place might."""
    text = st.one_of(st.text(max_size=200), DIGITS)
    line = st.builds("MemTotal: {} kB\n{} partition {} 0 {}\n".format, text, text, text, text)
    content = st.one_of(line, text).map(str.encode) | st.binary(max_size=300)
    with tempfile.TemporaryDirectory() as name:
        folder = pathlib.Path(name)
        proc = folder / "proc"
        (proc / "sys/kernel").mkdir(parents=True)
        for file in ("meminfo", "swaps", "sys/kernel/osrelease"):
            (proc / file).write_bytes(data.draw(content, label=file))
        (folder / "kubepods").mkdir()
        (folder / "kubepods" / "memory.stat").write_bytes(data.draw(content, label="memory.stat"))
        cgroups = cgroupfs.Cgroups(name, PAGE)
        try:
            facts = node_info.read_facts(proc, folder / "block", cgroups, "kubepods")
            node_info.available(proc)
            cgroups.stat("kubepods")
        finally:
            cgroups.close()
    json = msgspec.json.encode(facts)
    assert msgspec.json.decode(json, type=state.Facts) == facts


def test_reads_of_a_file_are_bounded(tmp_path: pathlib.Path) -> None:
    (tmp_path / "meminfo").symlink_to("/dev/zero")
    assert node_info.available(tmp_path) == 0
