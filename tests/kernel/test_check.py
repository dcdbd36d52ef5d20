"""`swapwarden agent --check` on a real kernel: its findings and its verdict are right."""

from __future__ import annotations

import functools
import os
import sys
import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest
from swapwarden.api.conditions import ConditionType

from testbed.vm.kernelvm import CGROUPS, KernelVM

KUBELET = """\
kind: KubeletConfiguration
failSwapOn: false
memorySwap: {swapBehavior: LimitedSwap}
evictionHard: {memory.available: 90%}
"""


@pytest.fixture
def pods(kernel_vm: KernelVM) -> Iterator[Path]:
    """A cgroup above all pods, without any."""
    root = CGROUPS / f"test-check-{uuid.uuid4().hex[:8]}"
    kernel_vm.write(CGROUPS / "cgroup.subtree_control", "+memory")
    for path in (root, root / "kubepods.slice"):
        kernel_vm.mkdir(path)
    kernel_vm.write(root / "cgroup.subtree_control", "+memory")
    yield root
    for path in (root / "kubepods.slice", root):
        kernel_vm.rmdir(path)


def test_check(kernel_vm: KernelVM, pods: Path) -> None:
    config = kernel_vm.shared / "check-kubelet.yaml"
    config.write_text(KUBELET)
    argv = [sys.executable, "-m", "swapwarden", "agent", "--check", f"--cgroup-anchor={pods.name}"]
    run = functools.partial(
        kernel_vm.run, env={"PYTHONPATH": os.environ.get("PYTHONPATH", "")}, timeout=180, check=False
    )
    done = run([*argv, f"--kubelet-config={config}"])
    table = {line[:25].strip(): line for line in done.stdout.splitlines()}
    low = sum(
        int(line.split()[1]) for line in kernel_vm.read("/proc/zoneinfo").splitlines() if line.split()[:1] == ["low"]
    )
    assert done.rc == 0, done.stdout + done.stderr
    assert f"/{pods.name}/kubepods.slice" in table["pods below"]
    assert kernel_vm.read("/proc/sys/vm/min_free_kbytes").strip() in table["vm.min_free_kbytes"]
    assert f"{low * 4096 / 2**20:.0f} MiB" in table["kswapd starts below"]
    (device,) = (line for name, line in table.items() if name.startswith("swap on /dev/vd"))
    assert "512 MiB, partition" in device
    assert "Virtual, not encrypted" in device
    assert f" {ConditionType.EVICTION_BEFORE_SWAP}: " in done.stdout
    assert ConditionType.KUBELET_WILL_NOT_START not in done.stdout
    # Without the controller in the cgroups of pods nothing can be limited there.
    kernel_vm.write(pods / "cgroup.subtree_control", "-memory")
    done = run(argv)
    assert done.rc == 1, done.stdout + done.stderr
    assert "Not compatible" in done.stdout
