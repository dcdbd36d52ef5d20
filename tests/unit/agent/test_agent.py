"""Work of an idle agent."""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import pathlib
import time
import types
from collections.abc import AsyncIterator, Callable, Iterator
from typing import cast

import pytest
from swapwarden.agent import agent, main
from swapwarden.agent.inventory import board
from swapwarden.agent.node import node_watch
from swapwarden.agent.reconcile import reconciler
from swapwarden.agent.report import report

from tests.unit import background
from tests.unit.agent.agent_node import until
from tests.unit.agent.cgroup_tree import CgroupTree


@pytest.fixture(params=[1, 2])
def version(request: pytest.FixtureRequest) -> int:
    number: int = request.param
    return number


@pytest.fixture
def made(tmp_path: pathlib.Path, version: int, monkeypatch: pytest.MonkeyPatch) -> Iterator[agent.Agent]:
    monkeypatch.setattr(agent, "ALIVE_SECONDS", 0.001)
    tree = CgroupTree(tmp_path)
    if version == 1:
        (tree.root / "cgroup.controllers").unlink()
        (tree.root / "memory").mkdir()
    parser = argparse.ArgumentParser()
    main.add_arguments(parser)
    folders = {"run-dir": tmp_path / "run", "state-dir": tmp_path / "state", "cgroup-root": tree.root}
    for folder in (folders["run-dir"], folders["state-dir"]):
        folder.mkdir()
    flags = [f"--{name}={path}" for name, path in {**folders, "proc-root": tree.proc}.items()]
    with contextlib.ExitStack() as stack:
        yield agent.Agent(parser.parse_args(["--node-name=n1", *flags]), stack)


@pytest.fixture
async def beating(made: agent.Agent) -> AsyncIterator[agent.Agent]:
    async with background.running(made._pulse.run()):
        yield made


@pytest.fixture
def beats(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    given: list[float] = []
    monkeypatch.setattr(agent.Heartbeat, "beat", lambda _: given.append(time.monotonic()))
    return given


async def test_an_idle_agent_gives_signs_of_life_and_does_nothing_else(
    beats: list[float], beating: agent.Agent, monkeypatch: pytest.MonkeyPatch
) -> None:
    touched: list[int] = []
    monkeypatch.setattr(board.Board, "touch", lambda _: touched.append(len(beats)))
    await until(lambda: len(beats) > 3)
    assert touched == []
    beating._report.passes_at = time.monotonic()
    await until(lambda: bool(touched))


@pytest.mark.usefixtures("beating")
async def test_with_each_sign_of_life_what_there_is_to_know_is_known(
    monkeypatch: pytest.MonkeyPatch, beats: list[float], version: int
) -> None:
    """Where nothing is enforced, there is nothing to know."""
    caught_up: list[int] = []
    monkeypatch.setattr(reconciler.NodeReconciler, "catch_up", lambda _: caught_up.append(len(beats)))
    before = len(beats)
    await until(lambda: len(beats) > before + 3)
    assert caught_up == (list(range(before + 1, len(beats) + 1)) if version == 2 else [])


class Signs:
    """A pulse whose signs are counted."""

    def __init__(self, folder: pathlib.Path) -> None:
        self.given = 0
        self.now = 1000.0
        self.pulse = agent.Pulse(
            agent.Heartbeat(folder / "alive"),
            cast("node_watch.NodeWatch", types.SimpleNamespace(has_cgroup_v2=True)),
            cast("reconciler.NodeReconciler", types.SimpleNamespace(catch_up=self.count)),
            cast("report.Report", types.SimpleNamespace(expire=lambda: None)),
            clock=lambda: self.now,
        )

    def count(self) -> None:
        self.given += 1


@contextlib.asynccontextmanager
async def running(signs: Signs) -> AsyncIterator[None]:
    async with background.running(signs.pulse.run()):
        await until(lambda: signs.given > 0)
        yield


async def test_what_wakes_up_the_agent_anyway_is_an_occasion_for_a_sign_of_life(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The next one is due that much later, so that an idle agent wakes up no oftener for it."""
    signs, loop = Signs(tmp_path), asyncio.get_running_loop()
    signs.pulse.awake()
    assert signs.given == 0, "it holds no lock yet"
    async with running(signs):
        signs.pulse.awake()
        assert signs.given == 1, "it gave one just now"
        timers: list[float] = []
        later = loop.call_later

        def noted(wait: float, step: Callable[[], None]) -> asyncio.TimerHandle:
            timers.append(wait)
            return later(wait, step)

        monkeypatch.setattr(loop, "call_later", noted)
        signs.now += agent.AWAKE_SECONDS
        signs.pulse.awake()
        assert (signs.given, timers) == (2, [agent.ALIVE_SECONDS])
    signs.now += agent.AWAKE_SECONDS
    signs.pulse.awake()
    assert signs.given == 2, "it has ended"


async def test_an_agent_that_is_idle_wakes_up_once_for_a_sign_of_life(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(agent, "ALIVE_SECONDS", 0.005)
    loop = asyncio.get_running_loop()
    turns = 0
    once = loop._run_once  # type: ignore[attr-defined]  # asyncio's own
    done = asyncio.Event()

    def counted() -> None:
        nonlocal turns
        turns += 1
        once()

    class Counted(Signs):
        def count(self) -> None:
            super().count()
            if self.given == 2:
                monkeypatch.setattr(loop, "_run_once", counted)
            if self.given == 12:
                done.set()

    signs = Counted(tmp_path)
    async with background.running(signs.pulse.run()):
        await done.wait()
        assert turns <= 13


def test_the_last_sign_of_the_one_before(tmp_path: pathlib.Path) -> None:
    file = tmp_path / "alive"
    first = agent.Heartbeat(file, clock=lambda: 1234.5)
    assert first.last_seen is None
    first.beat()
    assert agent.Heartbeat(file, clock=lambda: 2000.0).last_seen == 1234.5
    first.close()
    later = agent.Heartbeat(file, clock=lambda: 2000.0)
    later.remove()
    later.remove()
    later.close()
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("content", [b"", b"\xff\xfe", b"nan", b"inf", b"-1", b"1e9", b"\x00" * 32, b"9" * 500, b"."])
def test_a_sign_that_makes_no_sense_is_none(tmp_path: pathlib.Path, content: bytes) -> None:
    (tmp_path / "alive").write_bytes(content)
    sign = agent.Heartbeat(tmp_path / "alive", clock=lambda: 100.0)
    assert sign.last_seen is None
    sign.close()
    assert agent.Heartbeat(tmp_path / "alive", clock=lambda: 101.0).last_seen == 100.0


def test_a_full_disk_is_survived(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
    sign = agent.Heartbeat(tmp_path / "alive")

    def full(*_: object) -> int:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("swapwarden.agent.agent.os.pwrite", full)
    sign.close()
    assert agent.Heartbeat(tmp_path / "alive").last_seen is None
