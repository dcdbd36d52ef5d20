"""A node's kernel settings by a state, on plain files."""

from __future__ import annotations

import asyncio
import os
import pathlib
import threading
from collections.abc import Iterator
from typing import Any

import msgspec
import pytest
from swapwarden.agent.desired import spec
from swapwarden.agent.host import files, worker
from swapwarden.agent.inventory import board
from swapwarden.agent.ledger import ledger
from swapwarden.agent.reconcile import queue, settings
from swapwarden.api import names

from tests.unit.agent.agent_node import recorded, state, until

VM = {"swappiness": "60", "min_free_kbytes": "67584", "watermark_scale_factor": "10", "page-cluster": "3"}
ZSWAP = {"enabled": "N", "compressor": "lzo", "max_pool_percent": "20"}
ASKED = {"vm.swappiness": "10", "vm.page-cluster": "0", "zswap.compressor": "zstd", "zswap.enabled": "Y"}


class Node:
    """Files as the host has them. Its agent may be restarted."""

    def __init__(self, folder: pathlib.Path) -> None:
        self.run = folder / "run"
        self.run.mkdir()
        self.roots = {settings.VM: folder / "vm", settings.ZSWAP: folder / "zswap"}
        for place, given in ((settings.VM, VM), (settings.ZSWAP, ZSWAP)):
            self.roots[place].mkdir()
            for name, value in given.items():
                (self.roots[place] / name).write_text(f"{value}\n")
        self.board = board.Board()
        self.agents: list[settings.Sysctls] = []

    def start(self) -> settings.Sysctls:
        made = settings.Sysctls(ledger.Ledger(self.run).settings, self.roots, self.board, worker.Worker())
        self.agents.append(made)
        return made

    def file(self, name: str) -> pathlib.Path:
        setting = settings.SETTINGS[name]
        return self.roots[setting.folder] / setting.file

    def __getitem__(self, name: str) -> str:
        return self.file(name).read_text().strip()

    def __setitem__(self, name: str, value: str) -> None:
        self.file(name).write_text(f"{value}\n")

    @property
    def values(self) -> dict[str, str]:
        return {name: self[name] for name in settings.SETTINGS}


BEFORE = {
    "vm.swappiness": "60",
    "vm.min_free_kbytes": "67584",
    "vm.watermark_scale_factor": "10",
    "vm.page-cluster": "3",
    "zswap.enabled": "N",
    "zswap.compressor": "lzo",
    "zswap.max_pool_percent": "20",
}


def asking(settings: dict[str, str] | None = None, **fields: Any) -> spec.NodeSpec:
    return msgspec.structs.replace(state(**fields), kernel=ASKED if settings is None else settings)


@pytest.fixture
def host(tmp_path: pathlib.Path) -> Node:
    return Node(tmp_path)


async def apply(agent: settings.Sysctls, order: spec.NodeSpec) -> None:
    """Put a state in force, and let the agent handle it if that is due."""
    agent.set_desired(order)
    if agent.due.is_set():
        await agent.reconcile()


def shorts(agent: settings.Sysctls) -> dict[str, str]:
    return {short.name: short.reason for short in agent.status.problems}


async def test_settings_get_what_the_state_says_and_others_stay(host: Node) -> None:
    agent = host.start()
    assert not agent.status.concerned
    await apply(agent, asking())
    assert host.values == {**BEFORE, **ASKED}
    assert (agent.status.problems, agent.status.to_restore, agent.status.concerned) == ((), 0, True)


@pytest.mark.parametrize(
    "order",
    [asking(mode=names.Mode.RESTORE), asking({}, mode=names.Mode.RESTORE), asking({}), asking(mode=names.Mode.AUDIT)],
)
@pytest.mark.parametrize("again", [False, True])
async def test_settings_that_are_no_longer_desired_are_restored(
    host: Node, order: spec.NodeSpec, *, again: bool
) -> None:
    agent = host.start()
    await apply(agent, asking())
    if again:
        agent = host.start()
    await apply(agent, order)
    assert host.values == BEFORE
    assert agent.status.to_restore == 0
    assert recorded(host.run) == []


async def test_one_that_is_left_out_is_put_back_and_the_others_stay(host: Node) -> None:
    agent = host.start()
    await apply(agent, asking())
    rest = {name: value for name, value in ASKED.items() if name != "vm.swappiness"}
    await apply(agent, asking(rest))
    assert host.values == {**BEFORE, **rest}


async def test_another_writers_value_is_repaired_and_later_restored(host: Node) -> None:
    agent = host.start()
    await apply(agent, asking())
    before = settings.REPAIRS.value("vm.swappiness")
    host["vm.swappiness"] = "33"
    await agent.reconcile()
    assert host["vm.swappiness"] == "10"
    assert settings.REPAIRS.value("vm.swappiness") == before + 1
    await apply(agent, asking(mode=names.Mode.RESTORE))
    assert host["vm.swappiness"] == "33"


async def test_the_earlier_value_is_another_writers_when_it_returns(host: Node) -> None:
    agent = host.start()
    await apply(agent, asking())
    before = settings.REPAIRS.value("vm.swappiness")
    host["vm.swappiness"] = BEFORE["vm.swappiness"]  # as sysctl --system does it
    await agent.reconcile()
    assert (host["vm.swappiness"], settings.REPAIRS.value("vm.swappiness")) == ("10", before + 1)
    await apply(agent, asking({"vm.swappiness": "20"}))
    assert (host["vm.swappiness"], settings.REPAIRS.value("vm.swappiness")) == ("20", before + 1)
    await apply(agent, asking(mode=names.Mode.RESTORE))
    assert host["vm.swappiness"] == BEFORE["vm.swappiness"]


async def test_another_writers_last_value_is_left_as_it_is(host: Node) -> None:
    agent = host.start()
    await apply(agent, asking())
    host["vm.swappiness"] = "33"
    await apply(agent, asking(mode=names.Mode.RESTORE))
    assert host.values == {**BEFORE, "vm.swappiness": "33"}
    assert agent.status.to_restore == 0


async def test_before_a_state_arrives_nothing_is_put_back(host: Node) -> None:
    await apply(host.start(), asking())
    agent = host.start()
    await agent.reconcile()
    assert host.values == {**BEFORE, **ASKED}


async def test_what_the_agent_was_not_given_is_named_with_the_remedy(host: Node) -> None:
    root = host.roots.pop(settings.VM)
    agent = host.start()
    await apply(agent, asking())
    assert shorts(agent) == {"vm.swappiness": "NoAccess", "vm.page-cluster": "NoAccess"}
    assert "set agent.kernel.vm to true in the chart (--vm-root)" in agent.status.problems[0].message
    assert (root / "swappiness").read_text() == "60\n"
    assert host["zswap.enabled"] == "Y"


async def test_settings_without_access_must_still_be_restored(host: Node) -> None:
    await apply(host.start(), asking({"vm.swappiness": "10"}))
    root = host.roots.pop(settings.VM)
    agent = host.start()
    await apply(agent, asking(mode=names.Mode.RESTORE))
    assert (shorts(agent), agent.status.to_restore) == ({"vm.swappiness": "NoAccess"}, 1)
    host.roots[settings.VM] = root
    agent = host.start()
    await apply(agent, asking(mode=names.Mode.RESTORE))
    assert (agent.status.to_restore, host.values) == (0, BEFORE)


async def test_what_the_kernel_does_not_have_is_named(host: Node) -> None:
    host.file("zswap.compressor").unlink()
    agent = host.start()
    await apply(agent, asking())
    assert shorts(agent) == {"zswap.compressor": "NotSupported"}
    assert "/sys/module/zswap/parameters/compressor" in agent.status.problems[0].message


@pytest.mark.parametrize(
    "setting",
    [("vm.overcommit_memory", "2"), ("zswap.compressor", "evil-module"), ("vm.swappiness", "../x"), ("../x", "1")],
)
async def test_only_known_settings_are_written(setting: tuple[str, str], host: Node) -> None:
    agent = host.start()
    await apply(agent, asking(dict([setting])))
    assert shorts(agent) == {setting[0]: "NotSupported"}
    assert host.values == BEFORE


async def test_audit_says_what_would_be_written(host: Node) -> None:
    agent = host.start()
    await apply(agent, asking({"vm.swappiness": "10", "vm.page-cluster": "3"}, mode=names.Mode.AUDIT))
    assert agent.status.problems == (
        board.SettingProblem("vm.swappiness", names.Problem.AUDIT, "10 would be written over 60"),
    )


async def test_audit_compares_with_what_it_restored(host: Node) -> None:
    agent = host.start()
    await apply(agent, asking({"vm.swappiness": "10"}))
    await apply(agent, asking({"vm.swappiness": "10"}, mode=names.Mode.AUDIT))
    assert agent.status.problems == (
        board.SettingProblem("vm.swappiness", names.Problem.AUDIT, "10 would be written over 60"),
    )


async def test_a_setting_that_is_asked_for_again_is_no_repair(host: Node) -> None:
    agent = host.start()
    repairs = settings.REPAIRS.value("vm.swappiness")
    for order in (asking(), asking({}), asking()):
        await apply(agent, order)
    assert (host["vm.swappiness"], settings.REPAIRS.value("vm.swappiness")) == ("10", repairs)


async def test_a_refused_write_is_tried_again(host: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(queue, "RETRY_SECONDS", (0.01, 0.01))

    def refuse(*_: object) -> None:
        raise files.SettingFileError("Invalid argument")

    agent = host.start()
    running = asyncio.create_task(agent.run())
    with monkeypatch.context() as refusing:
        refusing.setattr("swapwarden.agent.host.files.write_setting", refuse)
        agent.set_desired(asking({"zswap.compressor": "zstd"}))
        await until(lambda: shorts(agent) == {"zswap.compressor": "WriteFailed"})
        assert "refuses zstd (Invalid argument); load its module" in agent.status.problems[0].message
    await until(lambda: host["zswap.compressor"] == "zstd" and not agent.status.problems)
    running.cancel()
    await asyncio.gather(running, return_exceptions=True)


class Slow:
    """Stands where the kernel takes a value, and is long about it."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.free = threading.Event()
        self.begun = threading.Event()
        self._write = files.write_setting
        monkeypatch.setattr(files, "write_setting", self.write)

    def write(self, file: pathlib.Path, value: str) -> None:
        self.begun.set()
        self.free.wait()
        self._write(file, value)


@pytest.fixture
def slow(monkeypatch: pytest.MonkeyPatch) -> Iterator[Slow]:
    made = Slow(monkeypatch)
    yield made
    made.free.set()


async def test_a_kernel_that_waits_for_a_module_holds_up_nothing_else(host: Node, slow: Slow) -> None:
    """As with zswap.compressor, for which it starts modprobe."""
    agent = host.start()
    running = asyncio.create_task(agent.run())
    agent.set_desired(asking({"zswap.compressor": "zstd"}))
    await until(slow.begun.is_set)  # the event loop turns all the while
    assert shorts(agent) == {"zswap.compressor": "Pending"}, "success is not reported yet"
    slow.free.set()
    await until(lambda: not agent.status.problems)
    assert host["zswap.compressor"] == "zstd"
    running.cancel()
    await asyncio.gather(running, return_exceptions=True)


async def test_a_kernel_that_hangs_is_reported_and_not_asked_again(
    host: Node, slow: Slow, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(settings, "WRITE_SECONDS", 0.01)
    monkeypatch.setattr(queue, "RETRY_SECONDS", (0.01, 0.01))
    agent = host.start()
    running = asyncio.create_task(agent.run())
    agent.set_desired(asking({"zswap.compressor": "zstd"}))
    await until(lambda: slow.begun.is_set() and shorts(agent) == {"zswap.compressor": "WriteFailed"})
    assert "modprobe" in agent.status.problems[0].message
    assert sum(thread.name == "kernel-settings" for thread in threading.enumerate()) == 1
    slow.free.set()
    monkeypatch.setattr(settings, "WRITE_SECONDS", 10)
    await until(lambda: not agent.status.problems)
    running.cancel()
    await asyncio.gather(running, return_exceptions=True)


async def test_a_restore_while_the_kernel_is_busy_is_still_due(host: Node, slow: Slow) -> None:
    """Else the last agent would leave, and what it was about to write would stay."""
    agent = host.start()
    running = asyncio.create_task(agent.run())
    agent.set_desired(asking({"vm.swappiness": "10"}))
    await until(slow.begun.is_set)
    agent.set_desired(asking({"vm.swappiness": "10"}, mode=names.Mode.RESTORE))
    assert agent.status.to_restore == 1
    slow.free.set()
    await until(lambda: agent.status.to_restore == 0)
    assert host.values == BEFORE
    running.cancel()
    await asyncio.gather(running, return_exceptions=True)


async def test_a_state_that_arrives_before_the_first_write_is_followed_at_once(
    host: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else what an administrator takes back while the kernel is read is written all the same."""
    reading, free, read = threading.Event(), threading.Event(), files.read_setting

    def slowly(file: pathlib.Path) -> str:
        reading.set()
        free.wait()
        return read(file)

    monkeypatch.setattr(files, "read_setting", slowly)
    agent = host.start()
    running = asyncio.create_task(agent.run())
    agent.set_desired(asking({"vm.swappiness": "10"}))
    await until(reading.is_set)
    agent.set_desired(asking({}))
    agent.set_desired(asking({"vm.page-cluster": "0"}))
    written = settings.WRITES.value("vm.swappiness", "ok")
    free.set()
    await until(lambda: host["vm.page-cluster"] == "0" and not agent.status.problems)
    assert settings.WRITES.value("vm.swappiness", "ok") == written
    running.cancel()
    await asyncio.gather(running, return_exceptions=True)


async def test_a_state_that_asks_for_the_same_settings_costs_nothing(host: Node) -> None:
    agent = host.start()
    await apply(agent, asking(generation=1))
    told = host.board.revision
    agent.set_desired(asking(generation=2))
    assert (agent.due.is_set(), agent.status.problems, host.board.revision) == (False, (), told)
    agent.check()
    assert agent.due.is_set()


async def test_a_value_that_the_kernel_changes_is_reported(host: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("swapwarden.agent.host.files.os.write", lambda _fd, data: len(data))
    agent = host.start()
    await apply(agent, asking({"vm.swappiness": "10"}))
    assert agent.status.problems[0].message == "holds 60 after 10 was written"


async def test_nothing_is_written_whose_original_cannot_be_kept(host: Node) -> None:
    (host.run / "ledger.new").mkdir()
    agent = host.start()
    await apply(agent, asking({"vm.swappiness": "10"}))
    assert shorts(agent) == {"vm.swappiness": "WriteFailed"}
    assert host.values == BEFORE


class Killed(BaseException):
    """The process ends here."""


def lethal(patch: pytest.MonkeyPatch, at: int) -> None:
    """End the process at the step `at` of those that others can see: before it if even, after it if odd."""
    count = 0

    def wrap(target: Any, name: str) -> None:
        real = getattr(target, name)

        def step(*args: Any, **kwargs: Any) -> Any:
            nonlocal count
            mine, count = count, count + 2
            if mine == at:
                raise Killed
            result = real(*args, **kwargs)
            if mine + 1 == at:
                raise Killed
            return result

        patch.setattr(target, name, step)

    wrap(os, "write")
    wrap(os, "fsync")
    wrap(pathlib.Path, "replace")


@pytest.mark.parametrize("turn", ["write", "change", "put back"])
async def test_a_kill_at_any_step_loses_no_original(
    turn: str, tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    other = {**ASKED, "vm.swappiness": "5"}
    order = {"write": asking(), "change": asking(other), "put back": asking({})}[turn]
    at = 0
    while True:
        host = Node(tmp_path_factory.mktemp("node"))
        if turn != "write":
            await apply(host.start(), asking())
        with monkeypatch.context() as patch:
            lethal(patch, at)
            try:
                await apply(host.start(), order)
            except Killed:
                killed = True
            else:
                killed = False
        await apply(host.start(), asking(mode=names.Mode.RESTORE))
        assert host.values == BEFORE, at
        assert recorded(host.run) == []
        if not killed:
            break
        at += 1
    assert at > 10 if turn != "change" else at > 3
