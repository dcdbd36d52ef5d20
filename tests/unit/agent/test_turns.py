from __future__ import annotations

import asyncio
import os

import pytest
from swapwarden.agent import turns
from swapwarden.agent.drift import attribution
from swapwarden.agent.reconcile import reconciler

from tests.unit.agent.agent_node import MIB, Node, state, until
from tests.unit.agent.cgroup_tree import swap_max, write


def counting(steps: int, done: list[int]) -> turns.Steps[str]:
    for step in range(steps):
        done.append(step)
        yield
    return "all"


def test_at_once() -> None:
    done: list[int] = []
    assert turns.finish(counting(3, done)) == "all"
    assert done == [0, 1, 2]


async def test_others_have_their_turn_between_any_two_steps() -> None:
    done: list[int] = []
    seen: list[int] = []

    async def other() -> None:
        while len(done) < 5:
            seen.append(len(done))
            await asyncio.sleep(0)

    beside = asyncio.create_task(other())
    assert await turns.share(counting(5, done)) == "all"
    await beside
    assert set(seen) >= {1, 2, 3, 4}


async def test_what_the_kernel_tells_during_a_step_goes_before_the_next_one() -> None:
    done: list[int] = []
    heard: list[int] = []
    loop = asyncio.get_running_loop()
    reading, writing = os.pipe()
    loop.add_reader(reading, lambda: heard.append(len(done) * len(os.read(reading, 1))))

    def telling() -> turns.Steps[None]:
        for step in range(3):
            done.append(step)
            os.write(writing, b"x")
            yield

    try:
        await turns.share(telling())
        assert heard == [1, 2, 3]
    finally:
        loop.remove_reader(reading)
        os.close(reading)
        os.close(writing)


async def test_an_error_in_a_step_is_the_callers() -> None:
    def failing() -> turns.Steps[None]:
        yield
        raise LookupError("gone")

    with pytest.raises(LookupError, match="gone"):
        await turns.share(failing())


async def test_who_is_cancelled_takes_no_further_step() -> None:
    done: list[int] = []
    sharing = asyncio.create_task(turns.share(counting(10**6, done)))
    await until(lambda: len(done) > 2)
    sharing.cancel()
    with pytest.raises(asyncio.CancelledError):
        await sharing
    before = len(done)
    for _ in range(5):
        await asyncio.sleep(0)
    assert len(done) == before


@pytest.mark.parametrize("goes", [False, True])
async def test_a_look_at_many_pods_gives_way_and_leaves_out_what_went(plain: Node, *, goes: bool) -> None:
    agent = plain.start()
    agent.apply(state())
    made = [plain.tree.pod(number) for number in range(2 * reconciler.PODS_A_TURN)]
    await until(lambda: len(agent.known) == len(made))
    last = agent.known[-1]
    last.knob.failed = "refused"
    looking = agent.looking()
    next(looking)
    if goes:
        plain.tree.remove(next(path for path in made if plain.known(path) is last))
        await until(lambda: last not in agent.known)
    assert [each.pod for each in turns.finish(looking).violations] == ([] if goes else [last.uid])


async def test_causes_are_found_one_at_a_time(plain: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(attribution, "MOMENT_SECONDS", 0.05)
    count = 12
    agent = plain.start()
    agent.apply(state(dict.fromkeys(range(count), 0)))
    made = [await plain.run(number, "app") for number in range(count)]
    await until(lambda: all(swap_max(pod) == "0" for pod in made))

    def told() -> int:
        return sum(bool(each.tally.causes) for each in agent.known)

    for pod in made:
        write(pod, str(5 * MIB))
    steps = {0}

    for _ in range(10**6):
        steps.add(told())
        if count in steps:
            break
        await asyncio.sleep(0)
    assert steps == set(range(count + 1))
