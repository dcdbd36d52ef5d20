"""memory.min, low and high: where the agent sets them, in which order, and at no cost without a setting."""

from __future__ import annotations

import os
import pathlib
from collections.abc import Iterator, Mapping
from typing import Any

import msgspec
import pytest
from swapwarden.agent.desired import resolve, spec
from swapwarden.agent.host import cgroupfs
from swapwarden.agent.inventory import records
from swapwarden.agent.node import swap_devices
from swapwarden.agent.reconcile import reconciler
from swapwarden.agent.report import status
from swapwarden.api import names
from swapwarden.api import state as api

from tests.unit.agent.agent_node import Node, apply, compare, settle, snapshot, until
from tests.unit.agent.cgroup_tree import PAGE, container_id, uid, write

MIB = 1 << 20
FILES = ("memory.min", "memory.low", "memory.high")
UNSET = {"memory.min": "0", "memory.low": "0", "memory.high": "max"}


def parsed(generation: int = 1, **parts: Any) -> spec.NodeSpec:
    """A state as the API server sends it."""
    received = {"metadata": {"generation": generation}, "spec": {"profileRef": {"name": "p"}, **parts}}
    return spec.parse(msgspec.json.decode(msgspec.json.encode(received), type=spec.ReceivedState), PAGE)


def qos(generation: int = 1, **parts: Any) -> spec.NodeSpec:
    """Protection of one pod and of all above it, throttling of a container, and a share for the system."""
    app = {"id": container_id("app")[:13], "swapMax": str(MIB), "memoryHigh": str(48 * MIB)}
    pods = {uid(1): {"swapMax": str(MIB), "memoryLow": str(32 * MIB), "containers": {"app": app}}}
    return parsed(
        generation,
        **{
            "kubepods": {"memoryLow": str(64 * MIB), "memoryMin": str(16 * MIB)},
            "burstable": {"memoryLow": str(32 * MIB)},
            "units": {"system.slice": {"memoryLow": str(8 * MIB)}},
            "pods": pods,
            **parts,
        },
    )


FACTS = api.Facts(cgroup_version=2, swap_controller=True, swap_bytes=1, memory_bytes=1)


class Machine:
    """A node with one pod of one container, whose writes are noted."""

    def __init__(self, node: Node, monkeypatch: pytest.MonkeyPatch) -> None:
        self.node = node
        self.slice = node.tree.root / "system.slice"
        self.pod = node.tree.pod(1)
        self.app = node.tree.container(self.pod, "app")
        self.levels = [node.tree.kubepods, node.tree.level("burstable")]
        for path in (self.slice, *self.levels, self.pod, self.app):
            for name, value in UNSET.items():
                (path / name).write_text(f"{value}\n")
        self.writes: list[tuple[str, int]] = []
        real = cgroupfs.Cgroups.write

        def noted(cgroups: cgroupfs.Cgroups, name: str, value: int) -> None:
            if not name.endswith(cgroupfs.SWAP_MAX):
                self.writes.append((name, value))
            real(cgroups, name, value)

        monkeypatch.setattr(cgroupfs.Cgroups, "write", noted)

    def names(self, path: pathlib.Path) -> str:
        return str(path.relative_to(self.node.tree.root))

    def held(self) -> dict[str, str]:
        """All values other than those of a cgroup that nobody has written to."""
        values = {}
        for path in (self.slice, *self.levels, self.pod, self.app):
            for name in FILES:
                value = (path / name).read_text().split()[0]
                if value != UNSET[name]:
                    values[f"{path.name[:20]}/{name}"] = value
        return values

    def desired(self) -> Mapping[str, str]:
        return {
            "system.slice/memory.low": str(8 * MIB),
            "kubepods.slice/memory.min": str(16 * MIB),
            "kubepods.slice/memory.low": str(64 * MIB),
            f"{self.levels[1].name[:20]}/memory.low": str(32 * MIB),
            f"{self.pod.name[:20]}/memory.low": str(32 * MIB),
            f"{self.app.name[:20]}/memory.high": str(48 * MIB),
        }

    async def enforces(self, state: spec.NodeSpec) -> reconciler.NodeReconciler:
        agent = self.node.start()
        apply(agent, state)
        await until(lambda: self.held() == self.desired())
        await until(lambda: all(file.status.confirmed is not None for file in memory_files(agent)))
        settle(agent)
        return agent


@pytest.fixture
def machine(plain: Node, monkeypatch: pytest.MonkeyPatch) -> Machine:
    return Machine(plain, monkeypatch)


def memory_files(agent: reconciler.NodeReconciler) -> Iterator[records.ControlFile]:
    return (file for file in agent.inventory.files() if not file.usage)


def last(machine: Machine, path: pathlib.Path, name: str) -> int:
    """The place of the last write to a file among all writes."""
    whole = f"{machine.names(path)}/{name}"
    return max(place for place, (written, _) in enumerate(machine.writes) if written == whole)


async def test_all_levels_get_their_values(machine: Machine) -> None:
    agent = await machine.enforces(qos())
    assert snapshot(agent).violations == []
    assert all(file.status.confirmed == file.desired.value for file in memory_files(agent))


async def test_protection_is_raised_from_the_top_and_lowered_from_the_pods(machine: Machine) -> None:
    agent = await machine.enforces(qos())
    low = [last(machine, path, "memory.low") for path in (*machine.levels, machine.pod)]
    assert low == sorted(low)
    less = {"memoryLow": str(MIB)}
    apply(agent, qos(2, kubepods=less, burstable=less, pods={uid(1): {"swapMax": "0", **less}}))
    low = [last(machine, path, "memory.low") for path in (machine.pod, *reversed(machine.levels))]
    assert low == sorted(low)
    assert machine.writes[low[-1]] == (f"{machine.names(machine.levels[0])}/memory.low", MIB)


async def test_what_systemd_resets_is_repaired(machine: Machine) -> None:
    await machine.enforces(qos())
    for path in (machine.slice, *machine.levels, machine.pod, machine.app):
        for name, value in UNSET.items():
            write(path, value, name)
    await until(lambda: machine.held() == machine.desired())


async def test_a_full_comparison_repairs_what_no_event_reported(machine: Machine) -> None:
    agent = await machine.enforces(qos())
    for path in (*machine.levels, machine.pod):
        write(path, "0", "memory.low")
    list(agent.work.watching.read())
    compare(agent)
    await until(lambda: machine.held() == machine.desired())


@pytest.mark.parametrize("mode", [names.Mode.RESTORE, names.Mode.AUDIT])
async def test_a_restore_ends_throttling_first_and_the_systems_protection_last(
    machine: Machine, mode: names.Mode
) -> None:
    agent = await machine.enforces(qos())
    del machine.writes[:]
    apply(agent, qos(2, mode=mode.value))
    await until(lambda: machine.held() == {})
    places = [
        last(machine, machine.app, "memory.high"),
        last(machine, machine.pod, "memory.low"),
        last(machine, machine.levels[1], "memory.low"),
        last(machine, machine.levels[0], "memory.low"),
        last(machine, machine.slice, "memory.low"),
    ]
    assert places == sorted(places)
    await until(lambda: snapshot(agent).to_restore == 0)


async def test_another_agent_restores_what_an_earlier_one_wrote(machine: Machine) -> None:
    await machine.enforces(qos())
    machine.node.stop()
    agent = machine.node.start(qos(2, mode="Restore"))
    apply(agent, qos(2, mode="Restore"))
    await until(lambda: machine.held() == {})
    compare(agent)
    assert [file.name for file in memory_files(agent) if not file.container] == [
        f"{machine.names(path)}/{name}"
        for path, name in (
            (machine.levels[0], "memory.low"),
            (machine.levels[0], "memory.min"),
            (machine.levels[1], "memory.low"),
            (machine.pod, "memory.low"),
        )
    ], "Enforce would write these again"


async def test_files_without_a_setting_are_forgotten(machine: Machine) -> None:
    agent = await machine.enforces(qos())
    apply(agent, parsed(2, pods={uid(1): {"swapMax": str(MIB)}}))
    await until(lambda: machine.held() == {})
    compare(agent)
    assert [file.name for file in memory_files(agent) if not file.container] == []
    assert not any(
        record.key.file in FILES for record in machine.node.ledger.limits if not record.key.path.endswith("scope")
    )


async def test_audit_writes_nothing(machine: Machine) -> None:
    agent = machine.node.start()
    apply(agent, qos(mode="Audit"))
    assert (machine.held(), machine.writes) == ({}, [])
    listed = {(violation.pod, violation.setting) for violation in snapshot(agent).violations}
    assert listed >= {("kubepods", "memoryMin"), ("kubepods", "memoryLow"), ("burstable", "memoryLow")}


@pytest.mark.parametrize("number", [4 * MIB, 80 * MIB])
async def test_a_number_of_another_writer_stays_in_every_mode(machine: Machine, number: int) -> None:
    theirs = (machine.levels[1], "memory.low"), (machine.pod, "memory.low"), (machine.app, "memory.high")
    for path, name in theirs:
        write(path, str(number), name)
    agent = machine.node.start()
    for generation, mode in enumerate(("Enforce", "Audit", "Enforce", "Restore"), 1):
        apply(agent, qos(generation, mode=mode))
        assert [(path / name).read_text().split() for path, name in theirs] == [[str(number)]] * 3
        if mode == "Enforce":
            assert sum(file.status.foreign for file in memory_files(agent)) == 3
    assert [name for name, _ in machine.writes if "kubepods-burstable" in name] == []


async def test_a_kubelet_that_begins_to_write_is_left_alone(machine: Machine) -> None:
    agent = await machine.enforces(qos())
    write(machine.levels[1], str(5 * MIB), "memory.low")
    await until(lambda: any(file.status.foreign for file in memory_files(agent)))
    compare(agent)
    apply(agent, qos(2, mode="Restore"))
    await until(lambda: len(machine.held()) == 1)
    assert (machine.levels[1] / "memory.low").read_text().split() == [str(5 * MIB)]


async def test_a_pod_with_swap_alone_costs_no_more(machine: Machine, monkeypatch: pytest.MonkeyPatch) -> None:
    opened: list[str] = []
    real = os.open

    def counted(path: Any, *arguments: Any, **more: Any) -> int:
        opened.append(str(path))
        return real(path, *arguments, **more)

    agent = machine.node.start()
    monkeypatch.setattr(os, "open", counted)
    app = {"id": container_id("app")[:13], "swapMax": str(MIB)}
    apply(agent, parsed(pods={uid(1): {"swapMax": str(MIB), "containers": {"app": app}}}))
    compare(agent)
    assert list(memory_files(agent)) == []
    assert [path for path in opened if path.endswith(FILES) and "kubepods-burstable" in path] == []
    watched = {owner for owner in agent.work.watching.owners.values() if isinstance(owner, records.ControlFile)}
    assert {file.spec.name for file in watched} == {cgroupfs.SWAP_MAX}


async def test_a_container_with_throttling_alone_has_no_record_of_swap(machine: Machine) -> None:
    agent = machine.node.start()
    app = {"id": container_id("app")[:13], "memoryHigh": str(MIB)}
    apply(agent, parsed(pods={uid(1): {"swapMax": "0", "containers": {"app": app}}}))
    await until(lambda: (machine.app / "memory.high").read_text().split() == [str(MIB)])
    (container,) = agent.inventory.pods[machine.names(machine.pod)].containers.values()
    assert [file.spec.name for file in container.files] == ["memory.high"]


async def test_a_burstable_level_that_is_recreated_is_protected_again(machine: Machine) -> None:
    agent = await machine.enforces(qos())
    machine.node.tree.remove(machine.levels[1])
    await until(lambda: len(agent.inventory.levels) == 2)
    level = machine.node.tree.group(machine.levels[1])
    for name, value in UNSET.items():
        (level / name).write_text(f"{value}\n")
    compare(agent)
    await until(lambda: (level / "memory.low").read_text().split() == [str(32 * MIB)])


async def test_a_level_of_system_pods_is_not_the_burstable_one(machine: Machine) -> None:
    level = machine.node.tree.group(machine.levels[0] / "kubepods-system.slice" / "kubepods-system-burstable.slice")
    (level / "memory.low").write_text("0\n")
    agent = await machine.enforces(qos())
    compare(agent)
    assert (level / "memory.low").read_text().split() == ["0"]


async def test_protection_is_left_to_a_kubelet_with_tiers(machine: Machine) -> None:
    agent = await machine.enforces(qos())
    agent.look(swap_devices.Disks(), frozenset({resolve.Owned.PROTECTION}))
    await until(lambda: len(machine.held()) == 2)
    assert {place.rpartition("/")[2] for place in machine.held()} == {"memory.low", "memory.high"}
    assert (machine.slice / "memory.low").read_text().split() == [str(8 * MIB)], "no kubelet sets that"
    assert msgspec.structs.astuple(status.verdicts(snapshot(agent), FACTS)["MemoryQoS"])[:2] == (
        "False",
        "KubeletOwned",
    )
    agent.look(swap_devices.Disks(), frozenset())
    await until(lambda: machine.held() == machine.desired())
    assert status.verdicts(snapshot(agent), FACTS)["MemoryQoS"].status == "True"


async def test_throttling_of_containers_is_left_to_a_kubelet_with_a_factor(machine: Machine) -> None:
    agent = machine.node.start()
    agent.look(swap_devices.Disks(), frozenset({resolve.Owned.THROTTLING}))
    high = {"memoryHigh": str(48 * MIB)}
    app = {"id": container_id("app")[:13], **high}
    apply(agent, parsed(pods={uid(1): {"containers": {"app": app}, **high}}))
    await until(lambda: (machine.pod / "memory.high").read_text().split() == [str(48 * MIB)])
    compare(agent)
    assert (machine.app / "memory.high").read_text().split() == ["max"]


async def test_the_condition_names_files_with_foreign_numbers_and_is_absent_without_a_plan(machine: Machine) -> None:
    write(machine.pod, str(5 * MIB), "memory.low")
    agent = machine.node.start()
    apply(agent, qos())
    condition = status.verdicts(snapshot(agent), FACTS)["MemoryQoS"]
    assert (condition.status, condition.reason) == ("False", "KubeletOwned")
    assert f"/{machine.names(machine.pod)}/memory.low" in condition.message
    apply(agent, parsed(2, pods={uid(1): {"swapMax": "0"}}))
    agent.look(swap_devices.Disks(), frozenset(resolve.Owned))
    compare(agent)
    assert "MemoryQoS" not in status.verdicts(snapshot(agent), FACTS)


@pytest.mark.parametrize("node", ["kind"], indirect=True)
async def test_a_cgroup_above_all_pods_that_takes_their_protection_away_is_found(node: Node) -> None:
    above = node.tree.kubepods.parent
    (above / "memory.low").write_text("0\n")
    (above / "memory.min").write_text("max\n")
    agent = node.start()

    def short(desired: spec.NodeSpec, *owned: resolve.Owned) -> tuple[str, str, int] | None:
        apply(agent, desired)
        agent.look(swap_devices.Disks(), frozenset(owned))
        shortfall = snapshot(agent).memory.shortfall
        return None if shortfall is None else (shortfall.path, shortfall.file, shortfall.needed)

    assert short(parsed()) is None
    assert short(qos(2)) == ("kubelet.slice", "memory.low", 64 * MIB)
    assert short(qos(2), resolve.Owned.THROTTLING) == ("kubelet.slice", "memory.low", 64 * MIB)
    assert short(qos(2), resolve.Owned.PROTECTION) is None, "it is the kubelet's protection"
    assert short(qos(3, mode="Audit")) is None
