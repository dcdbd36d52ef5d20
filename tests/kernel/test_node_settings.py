"""Settings of the node on a real kernel: its own files take them, and get their earlier values back."""

from __future__ import annotations

import pathlib
import sys

from testbed.standin import hog
from testbed.vm.kernelvm import CGROUPS
from tests.kernel.test_agent import MEMORY, PATIENCE, Node, until

VM = pathlib.Path("/proc/sys/vm")
WANTED = {"swappiness": "7", "min_free_kbytes": "8192", "watermark_scale_factor": "50", "page-cluster": "1"}


def test_the_kernels_own_files_take_settings_and_have_them_back(node: Node) -> None:
    def held() -> dict[str, str]:
        return {name: node.vm.read(VM / name).strip() for name in WANTED}

    before = held()
    assert before != WANTED
    generation = node.put({"pods": {}, "kernelSettings": {f"vm.{name}": value for name, value in WANTED.items()}})
    agent = node.start("kubeconfig", f"--vm-root={VM}", "--resync-interval=1")
    node.applied(generation)
    until(lambda: held() == WANTED, "they are written")
    node.vm.write(VM / "swappiness", "99")
    until(lambda: held() == WANTED, "another writer's value is repaired")
    # After a kill, the next agent knows the earlier values.
    agent.stop()
    node.start("kubeconfig", f"--vm-root={VM}")
    node.applied(node.put({"mode": "Restore", "kernelSettings": None}), "Restored")
    assert held() == {**before, "swappiness": "99"}
    node.vm.write(VM / "swappiness", before["swappiness"])


def test_a_slice_of_the_node_does_not_swap(node: Node) -> None:
    system = node.root / "system.slice"
    node.vm.mkdir(system)
    try:
        node.vm.write(system / "memory.max", str(MEMORY))
        generation = node.put({"pods": {}, "units": {"system.slice": {"swapMax": "0"}}})
        node.start()
        node.applied(generation)
        until(lambda: node.vm.read(system / "memory.swap.max").strip() == "0", "it is written")
        node.vm.write(system / "memory.swap.max", "max")
        until(lambda: node.vm.read(system / "memory.swap.max").strip() == "0", "it is repaired")
        argv = [sys.executable, hog.__file__, "88", "--cgroup", str(system), "--pace", "96"]
        assert node.vm.spawn(argv, log="hog-system").wait(PATIENCE) == -9
        assert node.vm.read(system / "memory.swap.current").strip() == "0"
        node.applied(node.put({"mode": "Restore", "units": None}), "Restored")
        assert node.vm.read(system / "memory.swap.max").strip() == "max"
    finally:
        node.vm.rmdir(system)


def test_the_io_of_a_slice_has_priority_on_the_disk_with_swap(node: Node) -> None:
    """Debian's kernel has io.weight (iocost) and no io.latency."""
    vda = node.vm.read(pathlib.Path("/sys/block/vda/dev")).strip()
    for path in (CGROUPS, node.root):
        node.vm.write(path / "cgroup.subtree_control", "+io")
    system = node.root / "system.slice"
    node.vm.mkdir(system)

    def weights() -> list[str]:
        return node.vm.read(system / "io.weight").splitlines()

    def told() -> tuple[str, str]:
        conditions = node.status.get("conditions", [])
        found: dict[str, str] = next((each for each in conditions if each["type"] == "SettingsApplied"), {})
        return found.get("reason", ""), found.get("message", "")

    try:
        asked = {"system.slice": {"ioLatencyMicroseconds": 25_000, "ioWeight": 800}}
        node.put({"pods": {}, "units": asked})
        agent = node.start("kubeconfig", "--resync-interval=1")
        until(lambda: told()[0] == "NotSupported", "it reports that the kernel heeds neither")
        assert "CONFIG_BLK_CGROUP_IOLATENCY" in told()[1]
        assert f"write `{vda} enable=1`" in told()[1]
        assert weights() == ["default 100"]
        node.vm.write(CGROUPS / "io.cost.qos", f"{vda} enable=1")
        until(lambda: weights() == ["default 100", f"{vda} 800"], "the weight is written once iocost is on")
        until(lambda: told()[0] == "NoEffect", "one of the two has effect")
        node.vm.write(system / "io.weight", f"{vda} 30")
        until(lambda: weights() == ["default 100", f"{vda} 800"], "another writer's value is repaired")
        # After a kill, the next agent knows the earlier values.
        agent.stop()
        node.start("kubeconfig")
        node.applied(node.put({"mode": "Restore", "units": None}), "Restored")
        assert weights() == ["default 100", f"{vda} 30"]
    finally:
        node.vm.write(CGROUPS / "io.cost.qos", f"{vda} enable=0")
        node.vm.rmdir(system)
