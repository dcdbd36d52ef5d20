"""A file for which the kernel reclaims memory while it is written: the event loop does not wait for that."""

from __future__ import annotations

import os
import pathlib
import select
import threading

import pytest
from swapwarden.agent.desired import resolve
from swapwarden.agent.drift import repairs
from swapwarden.agent.host import cgroup_files, cgroupfs
from swapwarden.agent.inventory import records
from swapwarden.agent.reconcile import pending, reconciler
from swapwarden.api.violations import ViolationReason

from tests.unit.agent.agent_node import Node, apply, look_again, state, unseen, until
from tests.unit.agent.cgroup_tree import swap_max, write

MIB = 1 << 20
HIGH = cgroup_files.CgroupFile("memory.high", reclaims=True)


class Kernel:
    """Takes a lower memory.high only once somebody opens a FIFO, as reclaim that finds nothing to reclaim."""

    def __init__(self, node: Node, fifo: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.fifo = fifo
        os.mkfifo(fifo)
        self.error: Exception | None = None
        self.shows = False
        """Whether a file holds the lower value already while the kernel reclaims, as it does."""
        self.writers: list[str] = []
        """The threads that wrote."""
        self.nice: list[int] = []
        """Their priorities."""
        real = node.cgroups.write

        def blocks(name: str, value: int) -> None:
            if name.endswith("/memory.high"):
                self.writers.append(threading.current_thread().name)
                self.nice.append(os.getpriority(os.PRIO_PROCESS, threading.get_native_id()))
                if value < cgroupfs.NO_LIMIT and node.cgroups.read(name) > value:
                    if self.shows:
                        real(name, value)
                    os.close(os.open(fifo, os.O_RDONLY))
                    if self.shows:
                        return
            if self.error is not None and name.endswith("/memory.high"):
                raise self.error
            real(name, value)

        monkeypatch.setattr(node.cgroups, "write", blocks)

    def reclaims(self) -> None:
        """It has got the memory."""
        os.close(os.open(self.fifo, os.O_WRONLY))


class Machine:
    """A pod with such a file, and another without."""

    def __init__(self, node: Node, kernel: Kernel, pod: pathlib.Path, other: pathlib.Path) -> None:
        self.node, self.kernel, self.pod, self.other = node, kernel, pod, other
        self.known = node.known(pod)
        self.file = records.ControlFile(self.known.path, self.known.file.inode, self.known, spec=HIGH)

    @property
    def agent(self) -> reconciler.NodeReconciler:
        assert self.node.agent is not None
        return self.node.agent

    @property
    def high(self) -> str:
        return (self.pod / "memory.high").read_text().strip()

    def use(self, amount: int) -> None:
        (self.pod / "memory.current").write_text(f"{amount}\n")

    def want(self, value: resolve.DesiredValue) -> None:
        self.file.desired = records.Desired(value, value)
        look_again(self.agent, self.file)

    async def done(self) -> None:
        """The kernel has reclaimed, and the agent has seen it."""
        self.kernel.reclaims()
        await until(lambda: self.file.status.pending is None)


@pytest.fixture
async def machine(plain: Node, tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> Machine:
    agent = plain.start()
    apply(agent, state({1: MIB, 2: MIB}))
    pod, other = await plain.run(1, "app"), await plain.run(2)
    return Machine(plain, Kernel(plain, tmp_path / "reclaim", monkeypatch), pod, other)


async def test_others_are_repaired_while_the_kernel_reclaims(machine: Machine) -> None:
    machine.want(MIB)
    assert machine.file.status.pending is not None
    assert unseen(machine.file), "it is not said to hold its value"
    write(machine.other, "max")
    await until(lambda: swap_max(machine.other) == str(MIB))
    assert machine.high == "max"
    await machine.done()
    assert (machine.high, machine.file.status.confirmed) == (str(MIB), MIB)
    assert threading.main_thread().name not in machine.kernel.writers
    assert min(machine.kernel.nice) >= pending.NICE > os.getpriority(os.PRIO_PROCESS, 0), "repairs go first"


async def test_a_pending_write_is_on_record_before(machine: Machine) -> None:
    """After a kill meanwhile, the next agent knows the value to restore."""
    machine.want(MIB)
    record = machine.node.ledger.limits.get(machine.file.key)
    assert record is not None
    assert (record.found, record.wrote) == (cgroupfs.NO_LIMIT, (MIB,))
    await machine.done()


async def test_a_repair_counts_when_the_kernel_is_done(machine: Machine) -> None:
    machine.want(MIB)
    await machine.done()
    before = repairs.MEMORY_REPAIRS.value("memory.high")
    write(machine.pod, "max", "memory.high")
    look_again(machine.agent, machine.file)
    assert repairs.MEMORY_REPAIRS.value("memory.high") == before, "it is not over"
    await machine.done()
    assert repairs.MEMORY_REPAIRS.value("memory.high") == before + 1
    assert machine.high == str(MIB)


async def test_memory_is_reclaimed_in_steps(machine: Machine) -> None:
    machine.use(3 * pending.STEP_BYTES)
    machine.want(MIB)
    seen: list[str] = []
    for number in range(1, 4):
        await until(lambda: len(machine.kernel.writers) == number)  # noqa: B023 it is called at once
        machine.kernel.reclaims()
        await until(lambda: machine.high not in {"max", *seen})
        seen.append(machine.high)
    await until(lambda: machine.file.status.pending is None)
    assert seen == [str(2 * pending.STEP_BYTES), str(pending.STEP_BYTES), str(MIB)]
    record = machine.node.ledger.limits.get(machine.file.key)
    assert record is not None
    assert record.last_applied == MIB


async def test_a_larger_value_waits_for_no_reclaim(machine: Machine) -> None:
    """The kernel ends the write of the smaller value then."""
    write(machine.pod, str(8 * MIB), "memory.high")
    machine.node.ledger.limits.record(machine.file.key, cgroupfs.NO_LIMIT, 8 * MIB)
    machine.want(MIB)
    machine.want(16 * MIB)
    assert (machine.high, machine.file.status.pending is None) == (str(16 * MIB), False)
    await machine.done()
    await until(lambda: machine.high == str(16 * MIB))
    assert machine.file.status.confirmed == 16 * MIB


async def test_a_value_that_the_kernel_shows_early_is_still_the_agents_own(machine: Machine) -> None:
    """The setting is removed while the kernel reclaims for it: the earlier value is restored at once."""
    machine.want(8 * MIB)
    await machine.done()
    machine.kernel.shows = True
    machine.want(MIB)
    await until(lambda: machine.high == str(MIB))
    machine.want(resolve.Handling.RESTORE)
    assert (machine.high, machine.file.status.pending is None) == ("max", False)
    await machine.done()
    look_again(machine.agent, machine.file)
    assert machine.high == "max"


@pytest.mark.parametrize("late", [False, True], ids=["thread first", "thread last"])
async def test_a_larger_value_written_meanwhile_is_the_agents_own_too(machine: Machine, *, late: bool) -> None:
    """In whatever order both reach the kernel, and although an event reports a write after the last one known."""
    machine.want(8 * MIB)
    await machine.done()
    machine.kernel.shows = not late
    machine.want(MIB)
    await until(lambda: len(machine.kernel.writers) == 2 and (late or machine.high == str(MIB)))
    machine.want(16 * MIB)
    assert machine.high == str(16 * MIB)
    await machine.done()
    await until(lambda: machine.high == str(16 * MIB))
    machine.want(resolve.Handling.RESTORE)
    assert machine.high == "max"


def test_a_step_reclaims_little_and_stays_at_or_above_the_target() -> None:
    big = pending.STEP_BYTES
    assert pending.step(MIB, cgroupfs.NO_LIMIT, 10 * big, 4096) == 9 * big
    assert pending.step(MIB, 9 * big, 10 * big, 4096) == 8 * big, "also where nothing could be reclaimed"
    assert pending.step(MIB, 9 * big, 1, 4096) == MIB
    assert pending.step(MIB, 9 * big, 2 * big + 5, 4096) % 4096 == 0


async def test_a_newer_value_follows_when_the_kernel_is_done(machine: Machine) -> None:
    machine.want(MIB)
    machine.want(2 * MIB)
    assert machine.high == "max", "one write at a time"
    await machine.done()
    await until(lambda: machine.high == str(2 * MIB))
    assert machine.file.status.confirmed == 2 * MIB


async def test_a_raise_waits_for_no_thread(machine: Machine) -> None:
    machine.want(MIB)
    await machine.done()
    machine.want(2 * MIB)
    assert (machine.high, machine.file.status.pending) == (str(2 * MIB), None)


async def test_a_refusal_in_a_thread_is_the_files_own(machine: Machine) -> None:
    machine.kernel.error = cgroupfs.CgroupError("memory.high: Device or resource busy")
    machine.want(MIB)
    await machine.done()
    assert machine.file.status.reason is ViolationReason.WRITE_FAILED
    machine.kernel.error = None
    look_again(machine.agent, machine.file)
    await machine.done()
    assert machine.high == str(MIB)
    assert machine.file.status.reason is None


async def test_a_write_that_takes_long_is_logged(machine: Machine, caplog: pytest.LogCaptureFixture) -> None:
    machine.want(MIB)
    machine.node.later += pending.REPORT_SECONDS
    look_again(machine.agent, machine.file)
    assert f"{pending.REPORT_SECONDS:.0f} s ago" in caplog.records[-1].error  # type: ignore[attr-defined]  # an extra field
    await machine.done()


def begun(machine: Machine) -> pending.PendingWrites:
    waiting = pending.PendingWrites(machine.node.cgroups)
    asked = repairs.CgroupWrite(cgroupfs.NO_LIMIT, MIB, 0.0, 0.0, 0, None, None)
    with pytest.raises(pending.PendingError):
        waiting.begin(machine.file, asked, 0.0)
    return waiting


async def test_a_file_that_is_gone_waits_for_no_write(machine: Machine) -> None:
    waiting = begun(machine)
    waiting.drop(machine.file)
    machine.kernel.reclaims()
    assert select.select([waiting], [], [], 10)[0]
    assert list(waiting.ended()) == []
    assert waiting.end(machine.file) is None
    waiting.close()


async def test_a_cgroup_recreated_before_a_thread_is_free_is_not_written_to(machine: Machine) -> None:
    machine.file.inode += 1
    before = machine.high
    waiting = begun(machine)
    assert select.select([waiting], [], [], 10)[0]
    assert list(waiting.ended()) == [machine.file]
    with pytest.raises(cgroupfs.GoneError):
        waiting.end(machine.file)
    waiting.close()
    assert machine.high == before
