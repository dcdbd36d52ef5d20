"""Who gives way where request bodies fill the memory."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator

import pytest
from swapwarden.webhook import bodies

KIB = 1024
MIB = 1024 * KIB
SHARE = bodies.MAX_BUFFERED_BYTES // 5
"""Five of these fill it."""


class Held:
    """A request whose body stays in memory until it gives way, or the test ends."""

    def __init__(self, all_of_them: bodies.Bodies, peer: str, seconds: float) -> None:
        self._bodies, self._peer, self._seconds = all_of_them, peer, seconds
        self.arrived = asyncio.Event()
        self.task = asyncio.create_task(self._run())

    async def _run(self) -> None:
        async with self._bodies.receive(self._peer, self._seconds) as self.body:
            self.arrived.set()
            await asyncio.Event().wait()

    async def gave_way(self) -> bool:
        for _ in range(3):
            await asyncio.sleep(0)
        return self.task.done() and isinstance(self.task.exception(), bodies.GaveWay)


class Memory:
    def __init__(self) -> None:
        self.bodies = bodies.Bodies()
        self._held: list[Held] = []

    async def hold(self, peer: str, count: int, namespace: str = "", seconds: float = 60.0) -> Held:
        """A body that has arrived so far."""
        held = Held(self.bodies, peer, seconds)
        self._held.append(held)
        await held.arrived.wait()
        with contextlib.suppress(bodies.GaveWay):
            held.body.add((b'{"namespace":"%s"' % namespace.encode("ascii")).ljust(count))
        return held

    async def end(self) -> None:
        for held in self._held:
            held.task.cancel()
        await asyncio.gather(*(held.task for held in self._held), return_exceptions=True)


@pytest.fixture
async def memory(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Memory]:
    # To fill the memory takes a busy machine longer than the second after which a body stalls.
    monkeypatch.setattr(bodies, "STALLED_AFTER", 20.0)
    started = Memory()
    yield started
    await started.end()


async def test_the_address_that_has_most_gives_way_to_a_newcomer(memory: Memory) -> None:
    hostile = [await memory.hold("hostile", SHARE, str(number)) for number in range(5)]
    api_server = await memory.hold("api", 100 * KIB)
    assert not await api_server.gave_way()
    assert sum([await each.gave_way() for each in hostile]) == 1
    larger = await memory.hold("api", SHARE)
    assert not await larger.gave_way()
    assert sum([await each.gave_way() for each in hostile]) == 2


async def test_of_one_address_the_namespace_that_has_most_gives_way(memory: Memory) -> None:
    modest = await memory.hold("api", 100 * KIB, "modest")
    greedy = [await memory.hold("api", SHARE, "greedy") for _ in range(4)]
    late = await memory.hold("api", SHARE, "late")
    assert [await each.gave_way() for each in (modest, *greedy, late)] == [False] * 4 + [True, False]


async def test_stalled_bodies_give_way_first_also_those_of_small_senders(
    memory: Memory, monkeypatch: pytest.MonkeyPatch
) -> None:
    stalled = [await memory.hold(f"address-{number}", 640 * KIB) for number in range(5)]
    whole = await memory.hold("api", 700 * KIB)
    whole.body.arrived()
    loop = asyncio.get_running_loop()
    now = loop.time
    monkeypatch.setattr(loop, "time", lambda: now() + 2 * bodies.STALLED_AFTER)
    young = [await memory.hold("api", SHARE) for _ in range(4)]
    young.append(await memory.hold("api", SHARE - 3 * MIB - 600 * KIB))
    assert [await each.gave_way() for each in (whole, *young)] == [False] * 6
    assert sum([await each.gave_way() for each in stalled]) == 1, "no more than it takes"


async def test_one_that_waits_for_its_turn_gives_way_as_well(memory: Memory) -> None:
    waiting = [await memory.hold("hostile", SHARE) for _ in range(5)]
    for each in waiting:
        each.body.arrived()
    assert not await (await memory.hold("api", SHARE)).gave_way()
    assert [await each.gave_way() for each in waiting] == [False] * 4 + [True]


async def test_small_ones_never_give_way(memory: Memory, monkeypatch: pytest.MonkeyPatch) -> None:
    small = [await memory.hold("hostile", bodies.SMALL_BODY_BYTES) for _ in range(3)]
    monkeypatch.setattr(bodies, "MAX_BUFFERED_BYTES", 2 * bodies.SMALL_BODY_BYTES)
    small.append(await memory.hold("hostile", bodies.SMALL_BODY_BYTES))
    large = await memory.hold("api", bodies.SMALL_BODY_BYTES + 1)
    assert await large.gave_way()
    assert [await each.gave_way() for each in small] == [False] * 4


async def test_finished_bodies_do_not_count(memory: Memory) -> None:
    for round_ in range(3):
        held = [await memory.hold(f"address-{round_}", SHARE) for _ in range(5)]
        assert [await each.gave_way() for each in held] == [False] * 5
        # A body that has given way is counted once.
        newcomer = await memory.hold("newcomer", SHARE)
        assert sum([await each.gave_way() for each in held]) == 1
        for each in (*held, newcomer):
            each.task.cancel()
        await asyncio.gather(*(each.task for each in (*held, newcomer)), return_exceptions=True)


async def test_one_whose_time_is_over_at_that_moment_harms_nobody(memory: Memory) -> None:
    newcomer = await memory.hold("api", 2 * SHARE)
    late = await memory.hold("hostile", 4 * SHARE, seconds=0.0)
    assert late.task.cancelling(), "it has not been woken yet"
    assert await late.gave_way()
    assert not await newcomer.gave_way()
