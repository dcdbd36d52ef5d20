"""What the agent's process does by itself, with nothing to do."""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import pathlib
import time

import pytest
from swapwarden.agent import main
from swapwarden.api import state

from tests.unit.agent.agent_node import until


class Sign:
    def __init__(self) -> None:
        self.given = 0

    def beat(self) -> None:
        self.given += 1


class Enforcer:
    def __init__(self) -> None:
        self.caught_up = 0

    def catch_up(self) -> None:
        self.caught_up += 1


class Idle(main.Agent):
    """Counts what would be work."""

    looks = 0

    def _take_facts(self, found: main._Seen) -> None:  # noqa: ARG002 the signature
        self.looks += 1


@pytest.fixture
def agent(tmp_path: pathlib.Path) -> Idle:
    kubeconfig = {
        "clusters": [{"name": "c", "cluster": {"server": "http://127.0.0.1:1"}}],
        "users": [{"name": "u", "user": {}}],
        "contexts": [{"name": "c", "context": {"cluster": "c", "user": "u"}}],
        "current-context": "c",
    }
    (tmp_path / "kubeconfig").write_text(json.dumps(kubeconfig))
    parser = argparse.ArgumentParser()
    main.add_arguments(parser)
    folders = [f"--{name}={tmp_path / name}" for name in ("run-dir", "state-dir", "kubeconfig")]
    return Idle(parser.parse_args(["--node-name=n1", *folders]))


async def test_an_idle_agent_gives_signs_of_life_and_does_nothing_else(
    agent: Idle, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(main, "ALIVE_SECONDS", 0.001)
    sign = Sign()
    monkeypatch.setattr(agent, "_heartbeat", sign, raising=False)
    task = asyncio.create_task(agent._keep_alive())
    await until(lambda: sign.given > 3)
    assert (agent.looks, agent.board.revision) == (0, 0)
    agent._look_again = time.monotonic()
    await until(lambda: agent.board.revision > 0)
    assert agent.looks == 0
    task.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await task


@pytest.mark.parametrize("version", [1, 2])
async def test_with_each_sign_of_life_what_there_is_to_know_is_known(
    agent: Idle, monkeypatch: pytest.MonkeyPatch, version: int
) -> None:
    """Where nothing is enforced, there is nothing to know."""
    monkeypatch.setattr(main, "ALIVE_SECONDS", 0.001)
    sign, known = Sign(), Enforcer()
    monkeypatch.setattr(agent, "_heartbeat", sign, raising=False)
    monkeypatch.setattr(
        agent, "_facts", state.Facts(version, swap_controller=True, swap_bytes=0, memory_bytes=0), raising=False
    )
    monkeypatch.setattr(agent, "_enforcer", known)
    task = asyncio.create_task(agent._keep_alive())
    await until(lambda: sign.given > 3)
    assert known.caught_up == (sign.given if version == 2 else 0)
    task.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await task


async def test_what_wakes_up_the_agent_anyway_is_an_occasion_for_a_sign_of_life(
    agent: Idle, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The next one is due that much later, so that an idle agent wakes up no oftener for it."""
    sign = Sign()
    monkeypatch.setattr(agent, "_heartbeat", sign, raising=False)
    agent._awake()
    assert sign.given == 0, "it holds no lock yet"
    task = asyncio.create_task(agent._keep_alive())
    await until(lambda: sign.given == 1)
    first = agent._next_sign
    agent._awake()
    assert (sign.given, agent._next_sign) == (1, first), "it gave one just now"
    agent._lived -= main.AWAKE_SECONDS
    agent._awake()
    assert sign.given == 2
    assert first is not None
    assert first.cancelled()
    assert agent._next_sign is not None
    assert agent._next_sign.when() >= asyncio.get_running_loop().time() + main.ALIVE_SECONDS - 5
    task.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await task
    agent._lived -= main.AWAKE_SECONDS
    agent._awake()
    assert sign.given == 2, "it has ended"


async def test_an_agent_that_is_idle_wakes_up_once_for_a_sign_of_life(
    agent: Idle, monkeypatch: pytest.MonkeyPatch
) -> None:
    sign = Sign()
    monkeypatch.setattr(agent, "_heartbeat", sign, raising=False)
    monkeypatch.setattr(main, "ALIVE_SECONDS", 0.005)
    loop = asyncio.get_running_loop()
    turns = 0
    once = loop._run_once  # type: ignore[attr-defined]  # asyncio's own

    def counted() -> None:
        nonlocal turns
        turns += 1
        once()

    task = asyncio.create_task(agent._keep_alive())
    done = asyncio.Event()
    enough = Sign.beat

    def beat(given: Sign) -> None:
        enough(given)
        if given.given == 2:
            monkeypatch.setattr(loop, "_run_once", counted)
        if given.given == 12:
            done.set()

    monkeypatch.setattr(Sign, "beat", beat)
    await done.wait()
    assert turns <= 13
    task.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await task
