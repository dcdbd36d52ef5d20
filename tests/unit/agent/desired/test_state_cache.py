from __future__ import annotations

import asyncio
import errno
import os
import pathlib
import threading
from typing import Any

import msgspec
import pytest
from swapwarden.agent.desired import spec, state_cache
from swapwarden.agent.host import worker
from swapwarden.api import state

from tests.unit.agent.agent_node import until

PAGE = 4096
BOOT = "5b1c2f0e-0000-4000-8000-000000000001"


def keeping(disk: pathlib.Path) -> state_cache.StateCache:
    """With a directory in memory beside the one on the disk."""
    memory = disk / "memory"
    memory.mkdir()
    return state_cache.StateCache(memory, disk, "n1", BOOT, worker.Worker())


def wire(value: str = "0", generation: int = 3) -> spec.ReceivedState:
    pods = {"a": {"swapMax": value, "containers": {"c": {"id": "0123456789abc", "swapAtMost": "4096"}}}}
    return received({"profileRef": {"name": "p"}, "pods": pods}, "n1", generation)


def received(body: dict[str, Any], name: str, generation: int) -> spec.ReceivedState:
    metadata = state.ObjectMeta(name=name, uid="uid", resource_version="55", generation=generation)
    return spec.ReceivedState(metadata, msgspec.Raw(msgspec.json.encode(body)), {"observedGeneration": 2})


def test_a_stored_state_is_loaded(tmp_path: pathlib.Path) -> None:
    state_cache.store(tmp_path, "n1", wire(), BOOT)
    loaded = state_cache.load(tmp_path, "n1", PAGE)
    assert loaded is not None
    assert spec.parse(loaded.state, PAGE) == spec.parse(wire(), PAGE)
    assert loaded.boot == BOOT
    assert os.listdir(tmp_path) == [state_cache.FILE]  # noqa: PTH208 names are what is asked for


def test_one_of_an_agent_that_knew_of_no_boots_is_loaded(tmp_path: pathlib.Path) -> None:
    body = msgspec.json.encode({"node": "n1", "uid": "uid", "generation": 3, "spec": {"profileRef": {"name": "p"}}})
    (tmp_path / state_cache.FILE).write_bytes(state_cache.sealed(body))
    loaded = state_cache.load(tmp_path, "n1", PAGE)
    assert loaded is not None
    assert loaded.boot == ""


def test_nothing_stored_is_nothing(tmp_path: pathlib.Path) -> None:
    assert state_cache.load(tmp_path, "n1", PAGE) is None


def test_another_nodes_state_is_not_used(tmp_path: pathlib.Path) -> None:
    state_cache.store(tmp_path, "n2", wire(), BOOT)
    assert state_cache.load(tmp_path, "n1", PAGE) is None


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"\0" * 512,
        b"{",
        b'{"node":"n1"}',
        b"\xff\xfe",
        state_cache.sealed(b'{"node":"n1"}'),
        state_cache.sealed(b"[" * 100_000),
        state_cache.sealed(
            msgspec.json.encode({"node": "n1", "uid": "", "generation": 1, "spec": {"pods": {"a": {"swapMax": "1G"}}}})
        ),
        b" " * (state_cache.MAX_BYTES + 1),
    ],
)
def test_a_corrupt_cache_is_moved_aside(tmp_path: pathlib.Path, content: bytes) -> None:
    before = state_cache.CORRUPT.value()
    (tmp_path / state_cache.FILE).write_bytes(content)
    assert state_cache.load(tmp_path, "n1", PAGE) is None
    assert [path.name for path in tmp_path.iterdir()] == ["state.json.corrupt"]
    assert state_cache.CORRUPT.value() == before + 1


def test_no_more_is_read_than_a_state_can_have_whatever_the_file_says_of_its_size(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(state_cache, "MAX_BYTES", 100)
    (tmp_path / state_cache.FILE).symlink_to("/proc/self/status")  # its size is 0
    assert state_cache.load(tmp_path, "n1", PAGE) is None
    assert [record.__dict__["error"] for record in caplog.records] == ["it is larger than 100 bytes"]


@pytest.mark.parametrize("change", [1, 0x80])
def test_a_byte_that_a_disk_changed_is_noticed_wherever_it_is(tmp_path: pathlib.Path, change: int) -> None:
    state_cache.store(tmp_path, "n1", wire(), BOOT)
    file = tmp_path / state_cache.FILE
    data = file.read_bytes()
    for at in range(len(data)):
        changed = bytearray(data)
        changed[at] ^= change
        file.write_bytes(changed)
        assert state_cache.load(tmp_path, "n1", PAGE) is None
        file.write_bytes(data[:at])
        assert state_cache.load(tmp_path, "n1", PAGE) is None


def test_a_crash_while_storing_leaves_the_old(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
    state_cache.store(tmp_path, "n1", wire("4096"), BOOT)

    def crash(_: int) -> None:
        raise OSError(5, "Input/output error")

    monkeypatch.setattr("swapwarden.agent.desired.state_cache.os.fsync", crash)
    with pytest.raises(OSError, match="Input/output error"):
        state_cache.store(tmp_path, "n1", wire("8192"), BOOT)
    loaded = state_cache.load(tmp_path, "n1", PAGE)
    assert loaded is not None
    assert spec.parse(loaded.state, PAGE).pods["a"].settings["memory.swap.max"].value == 4096


@pytest.mark.parametrize(
    ("noted", "stored", "counts"), [((4, "b1"), (9, "b1"), 9), ((9, "b1"), (4, "b1"), 9), ((9, "b0"), (4, "b0"), 4)]
)
def test_the_newer_generation_counts_wherever_it_is_of_this_boot(
    tmp_path: pathlib.Path, noted: tuple[int, str], stored: tuple[int, str], counts: int
) -> None:
    memory, disk = tmp_path / "memory", tmp_path / "disk"
    memory.mkdir()
    disk.mkdir()

    def wire(generation: int) -> spec.ReceivedState:
        return received({"profileRef": {"name": "p"}}, "node-1", generation)

    state_cache.note(memory, "node-1", wire(noted[0]), noted[1])
    state_cache.store(disk, "node-1", wire(stored[0]), stored[1])
    loaded = state_cache.newest(state_cache.load(memory, "node-1", PAGE), state_cache.load(disk, "node-1", PAGE), "b1")
    assert loaded is not None
    assert loaded.state.metadata.generation == counts


def test_a_removed_state_leaves_no_file(tmp_path: pathlib.Path) -> None:
    for name in ("state.json", "state.json.new", "state.json.corrupt"):
        (tmp_path / name).write_text("x")
    state_cache.remove(tmp_path)
    assert list(tmp_path.iterdir()) == []


async def test_a_write_under_way_is_done_when_the_keeper_has_ended(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    begun, disk, written = asyncio.Event(), threading.Event(), []
    loop = asyncio.get_running_loop()

    def slow(*state: object) -> None:
        loop.call_soon_threadsafe(begun.set)
        disk.wait()
        written.append(state)

    monkeypatch.setattr(state_cache, "store", slow)
    keeper, state = keeping(tmp_path), wire()
    keeper.keep(state)
    running = asyncio.create_task(keeper.run())
    await begun.wait()
    running.cancel()
    loop.call_soon(disk.set)
    with pytest.raises(asyncio.CancelledError):
        await running
    assert written == [(tmp_path, "n1", state, BOOT)]


async def test_the_cache_reports_a_disk_that_takes_nothing_and_continues(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    loop, stored = asyncio.get_running_loop(), asyncio.Event()
    before, full = state_cache.FAILURES.value(), wire()
    keeper, fits = keeping(tmp_path), wire("4096")

    def store(directory: pathlib.Path, node: str, state: spec.ReceivedState, boot: str) -> None:
        if state is full:
            loop.call_soon_threadsafe(keeper.keep, fits)
            raise OSError(errno.ENOSPC, "No space left on device")
        assert (directory, node, state, boot) == (tmp_path, "n1", fits, BOOT)
        loop.call_soon_threadsafe(stored.set)

    monkeypatch.setattr(state_cache, "MIN_SECONDS", 0)
    monkeypatch.setattr(state_cache, "store", store)
    running = asyncio.create_task(keeper.run())
    keeper.keep(full)
    await stored.wait()
    running.cancel()
    assert state_cache.FAILURES.value() == before + 1


async def test_what_a_full_disk_did_not_take_is_tried_again(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    loop, tries, tried = asyncio.get_running_loop(), [OSError(errno.ENOSPC, "No space left on device"), None], 0
    looked = asyncio.Event()
    keeper, newest = keeping(tmp_path), wire()

    def store(_directory: pathlib.Path, _node: str, state: spec.ReceivedState, _boot: str) -> None:
        nonlocal tried
        assert state is newest
        tried += 1
        loop.call_soon_threadsafe(looked.set)
        if (error := tries[tried - 1]) is not None:
            raise error

    monkeypatch.setattr(state_cache, "MIN_SECONDS", 0)
    monkeypatch.setattr(state_cache, "store", store)
    failed = state_cache.FAILURES.value()
    running = asyncio.create_task(keeper.run())
    keeper.keep(newest)
    await until(lambda: state_cache.FAILURES.value() == failed + 1)
    looked.clear()
    keeper.retry()
    await looked.wait()
    await until(lambda: not keeper._failed)
    keeper.retry()
    for _ in range(5):
        await asyncio.sleep(0)
    running.cancel()
    assert tried == 2, "a written state is not written again"


def newest(disk: pathlib.Path, boot: str = BOOT) -> int | None:
    """The generation that an agent which starts now begins with."""
    stored = state_cache.newest(state_cache.load(disk / "memory", "n1", PAGE), state_cache.load(disk, "n1", PAGE), boot)
    return None if stored is None else stored.state.metadata.generation


async def test_an_agent_killed_before_the_disk_has_a_state_is_followed_by_one_that_knows_it(
    tmp_path: pathlib.Path,
) -> None:
    keeper = keeping(tmp_path)
    state_cache.store(tmp_path, "n1", wire("4096", 3), BOOT)
    keeper.keep(wire("0", 4))
    assert newest(tmp_path) == 4
    assert newest(tmp_path, "another boot") == 3, "what outlived a boot is older than the disk's, or may be"


async def test_the_newest_state_is_on_the_disk_when_the_keeper_has_ended(tmp_path: pathlib.Path) -> None:
    """For the next boot: the one in memory is gone then."""
    keeper = keeping(tmp_path)
    running = asyncio.create_task(keeper.run())
    keeper.keep(wire("4096", 3))
    await until(lambda: newest(tmp_path, "another boot") == 3)
    keeper.keep(wire("0", 4))
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running
    assert newest(tmp_path, "another boot") == 4


async def test_a_state_that_arrives_as_the_last_write_ends_is_also_written(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    begun, disk = asyncio.Event(), threading.Event()
    loop, real = asyncio.get_running_loop(), state_cache.store

    def slow(*state: Any) -> None:
        loop.call_soon_threadsafe(begun.set)
        disk.wait()
        real(*state)

    monkeypatch.setattr(state_cache, "store", slow)
    keeper = keeping(tmp_path)
    keeper.keep(wire("4096", 3))
    running = asyncio.create_task(keeper.run())
    await begun.wait()
    keeper.keep(wire("0", 4))
    running.cancel()
    loop.call_soon(disk.set)
    with pytest.raises(asyncio.CancelledError):
        await running
    assert newest(tmp_path, "another boot") == 4


async def test_a_state_that_memory_does_not_take_is_not_hidden_by_the_one_before_it(
    tmp_path: pathlib.Path, caplog: pytest.LogCaptureFixture
) -> None:
    """The disk has a newer one sooner or later."""
    keeper, failed = keeping(tmp_path), state_cache.FAILURES.value()
    keeper.keep(wire("4096", 3))
    full = tmp_path / "memory" / "state.json.new"
    full.symlink_to("/dev/full")
    for generation in (4, 5):
        keeper.keep(wire("0", generation))
    assert (state_cache.FAILURES.value(), caplog.text.count("cannot be cached in --run-dir")) == (failed + 2, 1)
    state_cache.store(tmp_path, "n1", wire("0", 5), BOOT)
    assert newest(tmp_path) == 5
    state_cache.remove(tmp_path)
    full.unlink()
    keeper.retry()
    assert newest(tmp_path) == 5, "there is room again"


@pytest.mark.parametrize(("noted", "expected"), [(4, 4), (None, None)])
async def test_a_disk_that_hangs_keeps_no_agent_from_its_start(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch, noted: int | None, expected: int | None
) -> None:
    keeper, disk, real = keeping(tmp_path), threading.Event(), state_cache.load
    state_cache.store(tmp_path, "n1", wire("0", 9), BOOT)
    if noted is not None:
        state_cache.note(tmp_path / "memory", "n1", wire("0", noted), BOOT)

    def load(directory: pathlib.Path, node: str, page: int) -> state_cache.Loaded | None:
        if directory == tmp_path:
            disk.wait()
        return real(directory, node, page)

    monkeypatch.setattr(state_cache, "load", load)
    for name in ("LOAD_SECONDS", "NOTED_SECONDS"):
        monkeypatch.setattr(state_cache, name, 0.01)
    failed = state_cache.FAILURES.value()
    try:
        loaded = await keeper.load(PAGE)
    finally:
        disk.set()
    assert (None if loaded is None else loaded.state.metadata.generation) == expected
    assert state_cache.FAILURES.value() == failed + 1
    for name in ("LOAD_SECONDS", "NOTED_SECONDS"):
        monkeypatch.setattr(state_cache, name, 10.0)
    loaded = await keeper.load(PAGE)
    assert loaded is not None
    assert loaded.state.metadata.generation == 9, "it answers again"


async def test_the_end_does_not_wait_for_a_disk_that_hangs(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    begun, disk, loop = asyncio.Event(), threading.Event(), asyncio.get_running_loop()

    def hang(*_: object) -> None:
        loop.call_soon_threadsafe(begun.set)
        disk.wait()

    monkeypatch.setattr(state_cache, "store", hang)
    monkeypatch.setattr(state_cache, "END_SECONDS", 0.01)
    keeper = keeping(tmp_path)
    running = asyncio.create_task(keeper.run())
    keeper.keep(wire())
    await begun.wait()
    running.cancel()
    try:
        async with asyncio.timeout(5) as patience:
            with pytest.raises(asyncio.CancelledError):
                await running
    finally:
        disk.set()
    assert not patience.expired()
    assert not [each for each in threading.enumerate() if each.name == "state-disk" and not each.daemon]
