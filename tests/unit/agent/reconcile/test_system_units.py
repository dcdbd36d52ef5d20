"""The node's own slices and services by a state, on a directory tree."""

from __future__ import annotations

import pathlib
import shutil

import msgspec
import pytest
from swapwarden.agent.desired import spec
from swapwarden.agent.drift import attribution
from swapwarden.agent.host import cgroupfs, faults
from swapwarden.agent.reconcile import queue, reconciler
from swapwarden.api import names

from tests.unit.agent.agent_node import (
    MIB,
    Node,
    all_writes_heard,
    apply,
    compare,
    find_causes,
    snapshot,
    state,
    until,
)
from tests.unit.agent.cgroup_tree import swap_max, write


class Units:
    """A node with system.slice, two services in it, and a slice below another."""

    def __init__(self, node: Node) -> None:
        self.node = node
        root = node.tree.root
        shutil.rmtree(root / "system.slice")
        self.system = node.tree.group(root / "system.slice")
        self.kubelet = node.tree.group(self.system / "kubelet.service")
        self.runtime = node.tree.group(root / "runtime.slice" / "containerd.service")
        self.nested = node.tree.group(root / "a.slice" / "a-b.slice")

    @property
    def values(self) -> list[str]:
        return [swap_max(path) for path in (self.system, self.kubelet, self.runtime, self.nested)]


def asking(*units: str, mode: names.Mode = names.Mode.ENFORCE) -> spec.NodeSpec:
    return msgspec.structs.replace(state(mode=mode), units=dict.fromkeys(units, spec.UnitEntry(0)))


ALL = ("system.slice", "kubelet.service", "containerd.service", "a-b.slice")


@pytest.fixture
def units(plain: Node) -> Units:
    return Units(plain)


def shorts(agent: reconciler.NodeReconciler) -> dict[str, str]:
    return {short.name: short.reason for short in snapshot(agent).settings or ()}


async def test_units_that_are_named_get_none_and_others_stay(units: Units) -> None:
    agent = units.node.start()
    assert snapshot(agent).settings is None
    apply(agent, asking(*ALL))
    assert units.values == ["0"] * 4
    assert (snapshot(agent).settings, snapshot(agent).violations) == ((), [])
    apply(agent, asking("kubelet.service"))
    assert units.values == ["max", "0", "max", "max"]
    assert swap_max(units.node.tree.kubepods) == "max"


@pytest.mark.parametrize("order", [state(), state(mode=names.Mode.RESTORE), asking(*ALL, mode=names.Mode.AUDIT)])
@pytest.mark.parametrize("again", [False, True])
async def test_settings_that_are_no_longer_desired_are_restored(
    units: Units, order: spec.NodeSpec, *, again: bool
) -> None:
    write(units.nested, str(8 * MIB))
    agent = units.node.start()
    apply(agent, asking(*ALL))
    if again:
        units.node.stop()
        agent = units.node.start(asking(*ALL))
    apply(agent, order)
    assert units.values == ["max", "max", "max", str(8 * MIB)]
    assert snapshot(agent).to_restore == 0
    if order.mode is names.Mode.AUDIT:
        assert shorts(agent) == dict.fromkeys(ALL, "Audit")
    else:
        assert snapshot(agent).settings is None


@pytest.mark.parametrize("mistake", [False, True])
async def test_what_fails_with_one_stops_none_of_the_others(
    units: Units, monkeypatch: pytest.MonkeyPatch, *, mistake: bool
) -> None:
    monkeypatch.setattr(queue, "SOON_SECONDS", (0.01, 0.01))
    counted: list[str] = []

    def fault(what: str, error: Exception) -> str:
        counted.append(what)
        return f"{what}: {error}"

    monkeypatch.setattr(faults, "fault", fault)
    agent = units.node.start()
    real = units.node.cgroups.inode

    def fail(path: str) -> int | None:
        if path == "system.slice/kubelet.service":
            raise ZeroDivisionError if mistake else cgroupfs.CgroupError(f"{path}: Input/output error")
        return real(path)

    with monkeypatch.context() as broken:
        broken.setattr(units.node.cgroups, "inode", fail)
        apply(agent, asking(*ALL))
        assert units.values == ["0", "max", "0", "0"]
        assert shorts(agent)["kubelet.service"] == "WriteFailed"
        assert bool(counted) is mistake
    await until(lambda: units.values == ["0"] * 4)
    await until(lambda: shorts(agent) == {})


async def test_values_written_before_a_restart_are_restored_though_the_state_is_new(units: Units) -> None:
    apply(units.node.start(), asking(*ALL))
    units.node.stop()
    apply(units.node.start(), state())
    assert units.values == ["max"] * 4


async def test_what_systemd_writes_back_is_repaired_at_once(units: Units) -> None:
    agent = units.node.start()
    apply(agent, asking("system.slice", "kubelet.service"))
    write(units.kubelet, "max")
    write(units.system, "max")
    await until(lambda: units.values[:2] == ["0", "0"])


@pytest.mark.parametrize("again", [False, True])
@pytest.mark.parametrize("value", [str(1 << 30), "max"])
async def test_a_value_that_systemd_holds_for_a_unit_is_no_other_writers(
    units: Units, value: str, *, again: bool
) -> None:
    before = attribution.REWRITES.value("system", "UnitValue")
    write(units.system, value)
    agent = units.node.start()
    apply(agent, asking("system.slice"))
    if again:
        units.node.stop()
        agent = units.node.start()
        apply(agent, asking("system.slice"))
    write(units.system, value)
    await until(lambda: units.values[0] == "0")
    find_causes(agent)
    assert attribution.REWRITES.value("system", "UnitValue") == before + 1
    assert snapshot(agent).recent.others == ""
    write(units.system, "4096")
    await until(lambda: units.values[0] == "0")
    find_causes(agent)
    assert snapshot(agent).recent.others == "another writer gives a number of bytes to slices and services of the node"


async def test_a_service_that_starts_again_has_a_new_cgroup(units: Units) -> None:
    agent = units.node.start()
    apply(agent, asking("kubelet.service", "late.service"))
    assert shorts(agent) == {"late.service": "NotFound"}
    kept = units.kubelet.rename(units.node.folder / "kept")  # its inode must not be given away again
    again = units.node.tree.group(units.kubelet)
    late = units.node.tree.group(units.system / "late.service")
    told = units.node.told
    await until(lambda: [swap_max(again), swap_max(late)] == ["0", "0"])
    assert shorts(agent) == {}
    assert units.node.told > told
    assert swap_max(kept) == "0"
    apply(agent, state())
    assert [swap_max(again), swap_max(late)] == ["max", "max"]


@pytest.mark.parametrize("at_once", [True, False])
async def test_a_recreated_slice_is_watched_again(units: Units, *, at_once: bool) -> None:
    agent = units.node.start()
    apply(agent, asking("late.service"))
    units.system.rename(units.node.folder / "kept")  # the watch stays with it, as with a cgroup that is removed
    homes = agent._units._homes
    if not at_once:
        await until(lambda: "system.slice" not in homes)
    units.node.tree.group(units.system)
    await until(lambda: "system.slice" in homes and homes["system.slice"].inode == units.system.stat().st_ino)
    late = units.node.tree.group(units.system / "late.service")
    await until(lambda: swap_max(late) == "0")


@pytest.mark.parametrize("naming", ["systemd", "cgroupfs", "kind"])
async def test_what_pods_are_in_is_refused(naming: str, tmp_path: pathlib.Path) -> None:
    node = Node(tmp_path, naming)
    pod = node.tree.pod(1)
    agent = node.start()
    named = ("kubepods.slice", "kubepods-burstable.slice", "kubelet.slice", "kubelet-kubepods.slice", "-.slice", "..")
    apply(agent, asking(*named))
    there = {
        "systemd": {"kubepods.slice", "kubepods-burstable.slice"},
        "cgroupfs": set(),
        "kind": {"kubelet.slice", "kubelet-kubepods.slice"},
    }[naming]
    assert shorts(agent) == {name: "Refused" if name in there else "NotFound" for name in named}
    assert [swap_max(path) for path in (node.tree.kubepods, node.tree.level("burstable"), pod)] == ["max"] * 3
    node.stop()


@pytest.mark.parametrize("name", ["system.slice/kubelet.service", "../system.slice", "", ".slice", "system"])
async def test_no_name_is_a_path(name: str, units: Units) -> None:
    agent = units.node.start()
    apply(agent, asking(name))
    assert shorts(agent) == {name: "NotFound"}
    assert units.values == ["max"] * 4


async def test_swap_in_use_is_not_cut_where_there_is_no_room(units: Units) -> None:
    write(units.system, str(64 * MIB), "memory.swap.current")
    write(units.system, str(100 * MIB), "memory.max")
    write(units.system, str(90 * MIB), "memory.current")
    agent = units.node.start()
    apply(agent, asking("system.slice"))
    assert swap_max(units.system) == str(80 * MIB)
    assert shorts(agent) == {"system.slice": "Draining"}
    assert snapshot(agent).violations == []
    write(units.system, "0", "memory.swap.current")
    compare(agent)
    assert (swap_max(units.system), shorts(agent)) == ("0", {})


async def test_a_cgroup_without_the_file_is_reported(units: Units, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(queue, "SOON_SECONDS", (0.001, 0.001))
    (units.system / "bare.service").mkdir()
    agent = units.node.start()
    apply(agent, asking("bare.service"))
    await until(lambda: shorts(agent) == {"bare.service": "WriteFailed"})


async def test_nothing_is_done_before_pods_are_found(tmp_path: pathlib.Path) -> None:
    """Who knows what they are in."""
    node = Node(tmp_path)
    node.tree.group(node.tree.root / "x.slice")
    hidden = node.tree.kubepods.rename(tmp_path / "hidden")
    agent = node.start()
    apply(agent, asking("x.slice"))
    assert swap_max(node.tree.root / "x.slice") == "max"
    hidden.rename(node.tree.kubepods)
    compare(agent)
    assert swap_max(node.tree.root / "x.slice") == "0"
    node.stop()


@pytest.mark.parametrize("naming", ["systemd", "cgroupfs", "kind"])
async def test_slices_appear_and_the_tree_of_pods_is_removed_though_both_are_in_one_cgroup(
    naming: str, tmp_path: pathlib.Path
) -> None:
    node = Node(tmp_path, naming)
    agent = node.start()
    apply(agent, asking("late.slice"))
    late = node.tree.group(node.tree.root / "late.slice")
    await until(lambda: swap_max(late) == "0")
    apply(agent, state())
    assert swap_max(late) == "max"
    apply(agent, asking("late.slice"))
    node.tree.remove(node.tree.kubepods)
    await until(lambda: agent.root is None)
    node.stop()


@pytest.mark.parametrize("born", [True, False])
@pytest.mark.parametrize(
    "after", [state(), state(mode=names.Mode.RESTORE), asking("system.slice", mode=names.Mode.AUDIT)]
)
async def test_a_slice_that_systemd_still_holds_at_0_is_named_until_it_is_reloaded(
    units: Units, after: spec.NodeSpec, *, born: bool
) -> None:
    write(units.system, "0" if born else "max")
    agent = units.node.start(slices=["system.slice"])
    apply(agent, asking("system.slice", "kubelet.service"))
    if not born:  # systemd reads the file later
        await until(lambda: all_writes_heard(agent))
        write(units.system, "0")
        write(units.kubelet, "0")
        await until(lambda: any(record.systemd_zero for record in units.node.ledger.limits))
    assert shorts(agent) == {}
    for _ in range(2):
        apply(agent, after)
        assert (units.values[:2], snapshot(agent).to_restore) == (["max", "max"], 0)
        assert shorts(agent) == {"system.slice": "ReloadNeeded"}
        units.node.stop()
        agent = units.node.start()
    apply(agent, after)
    write(units.system, "max")
    await until(lambda: "ReloadNeeded" not in shorts(agent).values())


async def test_a_slice_whose_file_stays_is_named_with_the_value_that_has_it_there(units: Units) -> None:
    agent = units.node.start(slices=["system.slice"])
    apply(agent, asking("system.slice"))
    await until(lambda: all_writes_heard(agent))
    write(units.system, "0")
    await until(lambda: any(record.systemd_zero for record in units.node.ledger.limits))
    apply(agent, state())
    assert units.values[0] == "max"
    (short,) = snapshot(agent).settings or ()
    assert (short.reason, "agent.dropIns.slices" in short.message) == ("ReloadNeeded", True)


async def test_a_file_that_systemd_has_not_read_leaves_nothing_to_reload(units: Units) -> None:
    agent = units.node.start(slices=["system.slice"])
    apply(agent, asking("system.slice"))
    await until(lambda: all_writes_heard(agent))
    write(units.system, "max")
    await until(lambda: units.values[0] == "0")
    apply(agent, state())
    assert snapshot(agent).settings is None


@pytest.mark.parametrize("installed", [True, False])
async def test_a_limit_that_came_from_the_drop_in_is_taken_away_with_it(units: Units, *, installed: bool) -> None:
    """After a boot, of which systemd makes the slice so: nothing was ever written to it."""
    write(units.system, "0")
    agent = units.node.start(slices=["system.slice"] if installed else [])
    apply(agent, asking("system.slice", "kubelet.service"))
    assert units.values[:2] == ["0", "0"]
    apply(agent, state(mode=names.Mode.RESTORE))
    assert units.values[:2] == ["max" if installed else "0", "max"]
    assert snapshot(agent).to_restore == 0
