from __future__ import annotations

import asyncio
import contextlib
import pathlib
from collections.abc import AsyncIterator, Callable

import pytest
from swapwarden.agent.ledger import heartbeat

from tests.unit.agent.agent_node import until


def test_the_last_sign_of_the_one_before(tmp_path: pathlib.Path) -> None:
    file = tmp_path / "alive"
    first = heartbeat.Heartbeat(file, clock=lambda: 1234.5)
    assert first.last_seen is None
    first.beat()
    assert heartbeat.Heartbeat(file, clock=lambda: 2000.0).last_seen == 1234.5
    first.close()
    later = heartbeat.Heartbeat(file, clock=lambda: 2000.0)
    later.remove()
    later.remove()
    later.close()
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("content", [b"", b"\xff\xfe", b"nan", b"inf", b"-1", b"1e9", b"\x00" * 32, b"9" * 500, b"."])
def test_a_sign_that_makes_no_sense_is_none(tmp_path: pathlib.Path, content: bytes) -> None:
    (tmp_path / "alive").write_bytes(content)
    sign = heartbeat.Heartbeat(tmp_path / "alive", clock=lambda: 100.0)
    assert sign.last_seen is None
    sign.close()
    assert heartbeat.Heartbeat(tmp_path / "alive", clock=lambda: 101.0).last_seen == 100.0


def test_a_full_disk_is_survived(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
    sign = heartbeat.Heartbeat(tmp_path / "alive")

    def full(*_: object) -> int:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("swapwarden.agent.ledger.heartbeat.os.pwrite", full)
    sign.close()
    assert heartbeat.Heartbeat(tmp_path / "alive").last_seen is None


class Signs:
    """A pulse whose signs are counted."""

    def __init__(self, folder: pathlib.Path) -> None:
        self.given = 0
        self.now = 1000.0
        self.pulse = heartbeat.Pulse(heartbeat.Heartbeat(folder / "alive"), self.count, clock=lambda: self.now)

    def count(self) -> None:
        self.given += 1


@contextlib.asynccontextmanager
async def running(signs: Signs) -> AsyncIterator[None]:
    task = asyncio.create_task(signs.pulse.run())
    try:
        await until(lambda: signs.given > 0)
        yield
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


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
        signs.now += heartbeat.AWAKE_SECONDS
        signs.pulse.awake()
        assert (signs.given, timers) == (2, [heartbeat.ALIVE_SECONDS])
    signs.now += heartbeat.AWAKE_SECONDS
    signs.pulse.awake()
    assert signs.given == 2, "it has ended"


async def test_an_agent_that_is_idle_wakes_up_once_for_a_sign_of_life(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(heartbeat, "ALIVE_SECONDS", 0.005)
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
    task = asyncio.create_task(signs.pulse.run())
    await done.wait()
    assert turns <= 13
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
