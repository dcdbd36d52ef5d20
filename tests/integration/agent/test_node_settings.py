"""Settings of a node, from a real API server's object to files, over kills of the agent, and back."""

from __future__ import annotations

import pathlib
import shutil

import pytest
from swapwarden import __main__ as program
from swapwarden.agent.host import systemd_dropins

from testbed.controlplane.servers import ControlPlane
from tests.integration.agent.agent_process import AgentProcess, until
from tests.integration.agent.test_agent_real_api import Node
from tests.unit.agent.cgroup_tree import swap_max, write

SWAPPINESS = {"vm.swappiness": "10"}


class Host(Node):
    """A node whose agent is given its settings."""

    def __init__(self, cluster: ControlPlane, folder: pathlib.Path) -> None:
        super().__init__(cluster, folder)
        self.vm = folder / "vm"
        self.vm.mkdir()
        (self.vm / "swappiness").write_text("60\n")

    def given(self, *options: str) -> AgentProcess:
        return AgentProcess(self.folder, self.tree.root, self.tree.proc, self.kubeconfig, *options, node=self.name)

    @property
    def swappiness(self) -> str:
        return (self.vm / "swappiness").read_text().strip()

    def condition(self, kind: str) -> tuple[str, str, str]:
        found = {each["type"]: each for each in self.object.get("status", {}).get("conditions", [])}
        told = found.get(kind, {})
        return told.get("status", ""), told.get("reason", ""), told.get("message", "")


@pytest.fixture
def host(ruled: ControlPlane, tmp_path: pathlib.Path) -> Host:
    return Host(ruled, tmp_path)


def test_a_setting_is_written_repaired_and_put_back_over_kills(host: Host) -> None:
    options = (f"--vm-root={host.vm}", "--resync-interval=1")
    host.put({}, kernelSettings=SWAPPINESS)
    with host.given(*options) as first:
        until(lambda: host.swappiness == "10", "it is written")
        until(lambda: host.condition("SettingsApplied")[:2] == ("True", "AsSpecified"), "it is told")
        (host.vm / "swappiness").write_text("33\n")
        until(lambda: host.swappiness == "10", "it is repaired")
        until(lambda: first.metric('swapwarden_agent_setting_repairs_total{setting="vm.swappiness"}') == 1, "counted")
        first.kill()
    with host.given(*options):
        generation = host.put({}, mode="Restore", kernelSettings=None)
        until(lambda: host.condition("Applied")[:2] == ("True", "Restored"), "all is put back")
        assert host.object["status"]["observedGeneration"] == generation
        assert host.swappiness == "33"


def test_missing_settings_are_reported_with_the_remedy(host: Host) -> None:
    generation = host.put({}, kernelSettings=SWAPPINESS)
    with host.given():
        host.applied(generation)
        until(lambda: host.condition("SettingsApplied")[1] == "NoAccess", "it is told")
        message = host.condition("SettingsApplied")[2]
        assert message.startswith("vm.swappiness: the agent has no access")
        assert "set agent.kernel.vm to true" in message
        assert host.condition("Degraded") == ("True", "SettingsNotApplied", message)
        assert host.swappiness == "60"


def test_a_slice_is_kept_from_swap_and_put_back(host: Host) -> None:
    shutil.rmtree(host.tree.root / "system.slice")
    system = host.tree.group(host.tree.root / "system.slice")
    units = {name: {"swapMax": "0"} for name in ("system.slice", "kubepods.slice")}
    with host.given():
        host.applied(host.put({}, units=units))
        until(lambda: swap_max(system) == "0", "it is written")
        until(lambda: host.condition("SettingsApplied")[1] == "Refused", "it is told")
        assert host.condition("SettingsApplied")[2].startswith("kubepods.slice: the node's pods are in it")
        write(system, "max")
        until(lambda: swap_max(system) == "0", "it is repaired")
        host.put({}, mode="Restore", units=None)
        until(lambda: host.condition("Applied")[:2] == ("True", "Restored"), "all is put back")
        assert [swap_max(path) for path in (system, host.tree.kubepods)] == ["max", "max"]


def test_a_slice_keeps_its_drop_in_over_a_boot_and_has_priority_on_the_disk(host: Host) -> None:
    shutil.rmtree(host.tree.root / "system.slice")
    system = host.tree.group(host.tree.root / "system.slice")
    (system / "io.latency").write_text("")
    disk = host.folder / "sys/block/vda"
    (disk / "mq").mkdir(parents=True)
    (disk / "dev").write_text("254:0\n")
    file = host.folder / "units/system.slice.d" / systemd_dropins.FILE
    file.parent.mkdir(parents=True)
    seen = f"--slice-drop-in-dir={file.parent.parent}"
    options = (f"--sys-root={host.folder / 'sys'}", seen)
    assert program.main(["drop-ins", "install", seen]) == 0
    units = {"system.slice": {"swapMax": "0", "ioLatencyMicroseconds": 25_000}}
    with host.given(*options) as agent:
        host.applied(host.put({}, units=units))
        until(lambda: (system / "io.latency").read_text().strip() == "254:0 target=25000", "the target is written")
        until(lambda: host.condition("SettingsApplied")[:2] == ("True", "AsSpecified"), "it is told")
        agent.kill()
    # A boot: systemd makes the slice so, and what the agent wrote down is gone.
    (host.folder / "run" / "ledger.jsonl").unlink()
    assert swap_max(system) == "0"
    (system / "io.latency").write_text("")
    with host.given(*options):
        until(
            lambda: (system / "io.latency").read_text().strip() == "254:0 target=25000", "the target is written again"
        )
        host.put({}, mode="Restore", units=None)
        until(lambda: host.condition("Applied")[:2] == ("True", "Restored"), "all is put back")
        assert (file.exists(), swap_max(system)) == (True, "max")
        assert (system / "io.latency").read_text().strip() == "254:0 target=max"
