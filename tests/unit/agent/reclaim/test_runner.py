"""The thread as the event loop sees it: it runs only where a pod asks, and ends with the agent."""

from __future__ import annotations

import asyncio
import math
import pathlib
import threading
from collections.abc import Callable
from typing import Any

import msgspec
import pytest
from swapwarden.agent.desired import resolve, spec
from swapwarden.agent.host import cgroupfs
from swapwarden.agent.inventory import board, records
from swapwarden.agent.reclaim import history, reclaimer, runner
from swapwarden.api import names, state

ROOT = "kubepods.slice"
BOUNDS = state.ReclaimSettings(1, 6, 1, 0, 0)


def pod(uid: str, *containers: str) -> records.Pod:
    made = records.Pod(f"{ROOT}/pod{uid}", uid, 1, resolve.Origin.APPEARED, 0.0)
    made.containers = {name: records.Container(f"{made.path}/{name}", made, name, math.inf) for name in containers}
    return made


def node_spec(mode: names.Mode = names.Mode.ENFORCE, **fields: Any) -> spec.NodeSpec:
    asks = spec.PodEntry({}, {}, reclaim=names.ReclaimMode.CONTINUOUS)
    made = spec.NodeSpec("u", 1, mode, names.BeforePlan.NO_SWAP, None, {"a": asks, "b": spec.PodEntry({}, {})})
    return msgspec.structs.replace(made, **{"reclaim": BOUNDS, **fields})


class Made:
    def __init__(self, folder: pathlib.Path) -> None:
        (folder / "cgroups" / ROOT).mkdir(parents=True)
        (folder / "run").mkdir()
        self.cgroups = cgroupfs.Cgroups(str(folder / "cgroups"), 4096)
        self.board = board.Board()
        self.run = folder / "run"
        self.runner = runner.Runner(self.cgroups, folder / "proc", self.run, self.board)

    def follow(self, found: spec.NodeSpec | None, *pods: records.Pod, root: str | None = ROOT) -> None:
        self.runner.follow(found, root, pods)


def threads() -> list[threading.Thread]:
    return [each for each in threading.enumerate() if each.name == "reclaim"]


def with_loop(folder: pathlib.Path, do: Callable[[Made], None]) -> None:
    async def main() -> None:
        made = Made(folder)
        try:
            do(made)
        finally:
            made.runner.close()
            made.cgroups.close()

    asyncio.run(main())
    assert threads() == []


def test_there_is_a_thread_only_where_a_pod_asks(tmp_path: pathlib.Path) -> None:
    def do(made: Made) -> None:
        made.follow(None, pod("a", "1"))
        made.follow(node_spec(), pod("b", "1"), pod("c", "1"))
        made.follow(node_spec(), pod("a"))
        made.follow(node_spec(), pod("a", "1"), root=None)
        made.follow(node_spec(names.Mode.AUDIT), pod("a", "1"))
        made.follow(node_spec(names.Mode.RESTORE), pod("a", "1"))
        made.follow(node_spec(reclaim=None), pod("a", "1"))
        assert threads() == []
        made.follow(node_spec(), pod("a", "1"), pod("b", "1"))
        assert len(threads()) == 1

    with_loop(tmp_path, do)


def test_a_pod_that_drains_is_left_alone(tmp_path: pathlib.Path) -> None:
    def do(made: Made) -> None:
        one = pod("a", "1")
        one.file.status = msgspec.structs.replace(one.file.status, draining=True)
        made.follow(node_spec(), one)
        assert threads() == []

    with_loop(tmp_path, do)


def test_a_kernel_without_it_is_a_problem_of_the_node_while_pods_ask(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    viewed = threading.Event()
    turn = reclaimer.Reclaimer.turn

    def seen(turns: reclaimer.Reclaimer) -> float:
        try:
            return turn(turns)
        finally:
            viewed.set()

    monkeypatch.setattr(reclaimer.Reclaimer, "turn", seen)

    def do(made: Made) -> None:
        asks = node_spec(), pod("a", "1")
        made.follow(*asks)
        assert viewed.wait(30)
        made.follow(*asks)
        (problem,) = made.board.reclaim.problems
        assert (problem.name, problem.reason) == ("reclaim", names.Problem.NOT_SUPPORTED)
        assert "Linux 5.19" in problem.message
        assert [each.pod for each in made.board.reclaimed] == ["a"]
        revision = made.board.revision
        made.follow(*asks)
        assert made.board.revision == revision
        made.follow(node_spec(reclaim=None), pod("a", "1"))
        assert made.board.reclaim.problems == ()
        assert made.board.reclaimed == ()

    with_loop(tmp_path, do)


def test_an_uninstalled_agent_leaves_no_file(tmp_path: pathlib.Path) -> None:
    def do(made: Made) -> None:
        (made.run / history.FILE).write_bytes(b"{}")
        made.follow(node_spec(), pod("a", "1"))
        made.runner.remove()
        assert list(made.run.iterdir()) == []

    with_loop(tmp_path, do)
