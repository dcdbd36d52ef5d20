from __future__ import annotations

import argparse
import pathlib
import shutil
import tempfile

import pytest
from hypothesis import given
from hypothesis import strategies as st
from swapwarden.agent import main as agent
from swapwarden.agent.node import preflight

from tests.unit.agent import host_tree
from tests.unit.agent.host_tree import HostTree


@pytest.fixture
def node(tmp_path: pathlib.Path) -> HostTree:
    return HostTree(tmp_path)


def run(node: HostTree, *more: str) -> int:
    parser = argparse.ArgumentParser()
    agent.add_arguments(parser)
    return agent.run(parser.parse_args(["--check", *node.arguments, *more]))


def table(text: str) -> dict[str, str]:
    """Values by fact."""
    head, _, _ = text.partition("\n\n")
    title, *lines = head.splitlines()
    value, evidence = title.index("VALUE"), title.index("EVIDENCE")
    return {line[:value].strip(): line[value:evidence].strip() for line in lines}


def test_all_facts(node: HostTree, capsys: pytest.CaptureFixture[str]) -> None:
    node.burstable(1, "8192", "0")
    assert run(node) == preflight.COMPATIBLE
    out = capsys.readouterr().out
    assert table(out) == {
        "cgroup version": "2",
        "controllers": "cpu io memory pids",
        "pods below": "/kubepods.slice",
        "swap controller": "yes",
        "io.latency": "not set",
        "io.weight": "no",
        "kernel": "6.1.0-25-amd64",
        "tmpfs noswap": "no",
        "page size": "4096",
        "memory": "4096 MiB",
        "swap": "1024 MiB",
        "swap on /dev/vda": "1024 MiB, partition, priority -2, Virtual, not encrypted, disk shared: unknown",
        "zswap": "on, zstd, 20%",
        "vm.swappiness": "60",
        "vm.min_free_kbytes": "45056",
        "vm.watermark_scale_factor": "10",
        "vm.page-cluster": "3",
        "kswapd starts below": "55 MiB free",
        "memory pressure (PSI)": "yes",
        "systemd": "252",
        "container runtime": "containerd",
        "container runtime may swap": "yes",
        "kubelet may swap": "yes",
        "Burstable containers": "limited in 1, not in 0 of 1 pods",
        "under memory pressure": "swapping, then evictions",
        "kubelet evicts by the node": "below 50 MiB available",
        "kernel swaps": "below 59 MiB available",
        "kernel kills": "below 46 MiB available",
        "kubelet: failSwapOn": "false",
        "kubelet: swapBehavior": "LimitedSwap",
        "kubelet: evictionHard memory.available": "50Mi",
        "kubelet: enforceNodeAllocatable": "pods",
        "kubelet: MemoryQoS": "by its version",
        "kubelet: cgroupDriver": "systemd",
        "kubelet: cgroupRoot": "/",
        "kubelet: containerRuntimeEndpoint": "default",
    }
    assert out.endswith("Compatible: Swapwarden can hold pods' swap limits on this node.\n")


def gaps(node: HostTree, capsys: pytest.CaptureFixture[str], *more: str) -> list[str]:
    run(node, *more)
    lines = capsys.readouterr().out.splitlines()
    listed = [line.split(". ", 1)[1].partition(": ")[0] for line in lines if line[:1].isdigit()]
    assert len(listed) == sum(line.startswith("   Remedy: ") for line in lines)
    return listed


def test_what_falls_short(node: HostTree, capsys: pytest.CaptureFixture[str]) -> None:
    node.burstable(1, "max")
    assert gaps(node, capsys) == [
        "KubeletSetsNoLimits",
        "SecretsOnDisk",
        "swap not encrypted",
        "kubelet may swap",
        "container runtime may swap",
        "system.slice",
        "io.latency",
    ]


@pytest.mark.parametrize(
    ("controllers", "message", "remedy"),
    [
        ("cpu io memory", "the node's kernel has no io.latency", "CONFIG_BLK_CGROUP_IOLATENCY"),
        ("cpu memory", "system.slice has no io controller", "`systemctl set-property system.slice IOAccounting=yes`"),
    ],
)
def test_a_remedy_where_io_latency_is_missing(
    node: HostTree, capsys: pytest.CaptureFixture[str], controllers: str, message: str, remedy: str
) -> None:
    (node.system / "io.latency").unlink()
    (node.system / "cgroup.controllers").write_text(f"{controllers}\n")
    assert "io.latency" in gaps(node, capsys)
    run(node)
    _, said = capsys.readouterr().out.split("io.latency: ")
    assert message in said
    assert remedy in said
    shutil.rmtree(node.system)
    assert "io.latency" not in gaps(node, capsys)


def test_nothing_falls_short(node: HostTree, capsys: pytest.CaptureFixture[str]) -> None:
    (node.system / "memory.swap.max").write_text("0\n")
    (node.system / "io.latency").write_text("254:0 target=25000\n")
    (node.proc / "swaps").write_text("Filename Type Size Used Priority\n/dev/zram0 partition 1048576 0 100\n")
    (node.sys / "block/zram0").mkdir()
    assert gaps(node, capsys) == []
    assert run(node) == preflight.COMPATIBLE
    assert "Nothing falls short." in capsys.readouterr().out


def test_a_bad_node(node: HostTree, capsys: pytest.CaptureFixture[str]) -> None:
    (node.proc / "swaps").write_text("Filename Type Size Used Priority\n/dev/sda2 partition 1048576 0 -2\n")
    node.file(node.sys / "block/sda/queue/rotational", "1\n")
    node.file(node.sys / "block/sda/sda2/partition", "2\n")
    (node.proc / "pressure/memory").unlink()
    node.file(node.host / "etc/kubelet.yaml", "kind: KubeletConfiguration\n")
    listed = gaps(node, capsys, f"--kubelet-config={node.host}/etc/kubelet.yaml")
    assert listed[:4] == ["KubeletWillNotStart", "EvictionBeforeSwap", "SecretsOnDisk", "swapBehavior"]
    assert {"swap on /dev/sda2", "memory pressure (PSI)"} < set(listed)


def test_swap_on_the_disk_of_the_file_systems(node: HostTree, capsys: pytest.CaptureFixture[str]) -> None:
    node.file(node.sys / "block/vda/vda1/partition", "1\n")
    node.file(node.sys / "block/vda/vda2/partition", "2\n")
    (node.sys / "dev/block").mkdir(parents=True)
    (node.sys / "dev/block/254:1").symlink_to("../../devices/virtio0/block/vda/vda1")
    (node.proc / "swaps").write_text("Filename Type Size Used Priority\n/dev/vda2 partition 1048576 0 -2\n")
    node.file(node.proc / "self/mountinfo", "1 0 254:1 / / rw - ext4 /dev/vda1 rw\n")
    assert "disk of swap" in gaps(node, capsys)
    run(node)
    assert "shared" in table(capsys.readouterr().out)["swap on /dev/vda2"]


def test_without_swap(node: HostTree, capsys: pytest.CaptureFixture[str]) -> None:
    (node.proc / "swaps").write_text("Filename Type Size Used Priority\n")
    (node.proc / "meminfo").write_text("MemTotal: 4194304 kB\nSwapTotal: 0 kB\n")
    assert gaps(node, capsys) == ["no swap"]


def test_without_a_configuration_the_behavior_is_inferred(node: HostTree, capsys: pytest.CaptureFixture[str]) -> None:
    (node.host / "var/lib/kubelet/config.yaml").unlink()

    def behavior() -> str:
        run(node)
        return table(capsys.readouterr().out)["kubelet: swapBehavior"]

    assert behavior() == "unknown"
    node.burstable(1, "0")
    assert behavior() == "unknown", "LimitedSwap also gives critical pods none"
    node.burstable(2, "4096")
    assert behavior() == "LimitedSwap"


def test_exit_status(node: HostTree, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(node) == preflight.COMPATIBLE
    (node.kubepods / "memory.swap.max").unlink()
    assert run(node) == preflight.INCOMPATIBLE
    shutil.rmtree(node.kubepods)
    assert run(node) == preflight.COMPATIBLE  # no pods yet; other cgroups have the file
    (node.system / "memory.swap.max").unlink()
    assert run(node) == preflight.UNKNOWN
    (node.root / "cgroup.controllers").write_text("cpu io\n")
    assert "no memory controller" in gaps(node, capsys)
    (node.root / "cgroup.controllers").unlink()
    assert run(node) == preflight.UNKNOWN  # no cgroup file system
    (node.root / "memory").mkdir()
    assert run(node) == preflight.INCOMPATIBLE  # cgroup v1
    assert run(node, f"--cgroup-root={node.root}/none") == preflight.UNKNOWN
    assert "--cgroup-root" in capsys.readouterr().err


def test_what_files_say_cannot_move_the_cursor(node: HostTree, capsys: pytest.CaptureFixture[str]) -> None:
    (node.proc / "swaps").write_text("Filename Type Size Used Priority\n/dev/\\033[2J\x07 file 1 0 1\n")
    (node.root / "cgroup.controllers").write_text("memory\x1b[2J\n")
    run(node)
    assert "\x1b" not in (out := capsys.readouterr().out)
    assert "\x07" not in out


FILES = [
    *(f"proc/{name}" for name in ("meminfo", "swaps", "self/mountinfo", "sys/kernel/osrelease", *host_tree.PROC)),
    *(f"sys/{name}" for name in host_tree.SYS),
    "host/var/lib/kubelet/config.yaml",
    "cgroup/cgroup.controllers",
    "cgroup/kubepods.slice/memory.swap.max",
    "cgroup/system.slice/io.latency",
    "cgroup/system.slice/kubelet.service/memory.swap.max",
]
GARBAGE = st.one_of(
    st.binary(max_size=200),
    st.sampled_from(
        [
            b"9" * 5000,
            b"MemTotal: %s kB\n" % (b"9" * 5000),
            b"Filename\n/dev/vda partition 1024 0 --5\n",
            b"Filename\n/dev/../.. partition 1024 0 -2\n/dev/mapper/* file \xd9\xa3 0 -2\n",
            b"  low      " + b"9" * 5000,
            b"kind: KubeletConfiguration\nevictionHard: {memory.available: 99999999999E}\nmemorySwap: [",
        ]
    ),
)


@given(data=st.dictionaries(st.sampled_from(FILES), GARBAGE, min_size=1, max_size=6))
def test_garbage_in_any_file_is_no_accident(data: dict[str, bytes]) -> None:
    with tempfile.TemporaryDirectory() as folder:
        node = HostTree(pathlib.Path(folder))
        for name, content in data.items():
            (pathlib.Path(folder) / name).parent.mkdir(parents=True, exist_ok=True)
            (pathlib.Path(folder) / name).write_bytes(content)
        assert run(node) in {preflight.COMPATIBLE, preflight.INCOMPATIBLE, preflight.UNKNOWN}
