"""Work of an idle agent."""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import pathlib
import time
from collections.abc import AsyncIterator, Iterator

import pytest
from swapwarden.agent import agent, main
from swapwarden.agent.inventory import board
from swapwarden.agent.ledger import heartbeat
from swapwarden.agent.reconcile import reconciler

from tests.unit.agent.agent_node import until
from tests.unit.agent.cgroup_tree import CgroupTree


@pytest.fixture(params=[1, 2])
def version(request: pytest.FixtureRequest) -> int:
    number: int = request.param
    return number


@pytest.fixture
def made(tmp_path: pathlib.Path, version: int, monkeypatch: pytest.MonkeyPatch) -> Iterator[agent.Agent]:
    monkeypatch.setattr(heartbeat, "ALIVE_SECONDS", 0.001)
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
    task = asyncio.create_task(made._pulse.run())
    yield made
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)


@pytest.fixture
def beats(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    given: list[float] = []
    monkeypatch.setattr(heartbeat.Heartbeat, "beat", lambda _: given.append(time.monotonic()))
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
