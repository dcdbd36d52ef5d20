"""Realtime priority from a real kernel, and its limits: tested in processes of their own, since it stays for good."""

from __future__ import annotations

import json
import selectors
import subprocess
import sys

import pytest
from swapwarden.agent.host import realtime

ASK = """
import json, logging, os, pathlib, sys, threading, time
from swapwarden.agent.host import realtime

def policy(thread=0):
    # By default of the one that asks.
    return os.sched_getscheduler(thread) & ~os.SCHED_RESET_ON_FORK

def capabilities():
    lines = pathlib.Path("/proc/thread-self/status").read_text().splitlines()
    return {line.split(":")[0]: int(line.split()[1], 16) for line in lines if line.startswith("Cap")}

logging.basicConfig(stream=sys.stderr)
given = realtime.begin((0.02, 60.0))
result = {"given": given, "policy": policy(), "capabilities": capabilities()}
over = threading.Event()
thread = threading.Thread(target=over.wait)
thread.start()
if "spin" in sys.argv:
    until = time.monotonic() + 20
    while policy() == os.SCHED_FIFO and time.monotonic() < until:
        pass
    result["policy"], result["gauge"] = policy(), realtime.REALTIME.value()
result["threads"] = [policy(thread.native_id)]
over.set()
print(json.dumps(result))
"""


def ask(*how: str, before: tuple[str, ...] = ()) -> tuple[dict[str, object], str]:
    """Return what a process got after it asked, and its log."""
    argv = [*before, sys.executable, "-c", ASK, *how]
    ended = subprocess.run(argv, check=True, capture_output=True, text=True)  # noqa: S603 our own
    return json.loads(ended.stdout), ended.stderr


def held(told: dict[str, object]) -> int:
    """The capabilities that it can use or pass on, as a mask."""
    capabilities = told["capabilities"]
    assert isinstance(capabilities, dict)
    return int(capabilities["CapEff"]) | int(capabilities["CapPrm"]) | int(capabilities["CapInh"])


def test_it_runs_before_others_with_its_threads_and_keeps_no_capability() -> None:
    """One that waits for the CPU, and has the interpreter's lock, keeps all others waiting."""
    told, _ = ask()
    assert told["given"]
    assert (told["policy"], told["threads"]) == (1, [1])  # SCHED_FIFO
    assert held(told) == 0


def test_it_continues_without_the_priority_and_logs_what_it_takes() -> None:
    told, logged = ask(before=("setpriv", "--bounding-set=-sys_nice", "--inh-caps=-sys_nice"))
    assert (told["given"], told["policy"], held(told)) == (False, 0, 0)
    assert "CAP_SYS_NICE" in logged


def test_one_that_keeps_the_cpu_at_once_becomes_an_ordinary_one_and_says_so() -> None:
    told, logged = ask("spin")
    assert told["given"]
    assert (told["policy"], told["threads"], told["gauge"]) == (0, [0], 0)
    assert "until it is started again" in logged


class Clock:
    """Time passes only by the test and in pauses."""

    def __init__(self) -> None:
        self.now = 0.0
        self.paused = 0.0
        self.unpaused = 0.0
        """The longest time between two pauses."""
        self._last = 0.0

    def __call__(self) -> float:
        return self.now

    def pause(self, seconds: float) -> None:
        self.unpaused = max(self.unpaused, self.now - self._last)
        self.now += seconds
        self._last = self.now
        self.paused += seconds


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def paced(clock: Clock) -> realtime.Paced:
    return realtime.Paced(clock, clock.pause, lambda: 1.0)


def work(paced: realtime.Paced, clock: Clock, seconds: float, turns: int = 1) -> None:
    for _ in range(turns):
        clock.now += seconds
        paced.select(0)


def test_what_a_start_takes_is_taken_almost_without_a_pause(paced: realtime.Paced, clock: Clock) -> None:
    work(paced, clock, 0.01, turns=100)
    assert clock.paused <= 0.01


@pytest.mark.parametrize("turn", [0.0005, 0.01, 0.2])
def test_short_turns_never_count_as_one_that_keeps_the_cpu(paced: realtime.Paced, clock: Clock, turn: float) -> None:
    """Not the first ones either, which it may take at once: the kernel counts from the last time that it waited."""
    work(paced, clock, turn, turns=round(20 / turn))
    assert 0 < clock.unpaused <= 0.8 * realtime.ONCE_SECONDS[0]


def test_one_that_became_an_ordinary_one_does_not_pause(clock: Clock) -> None:
    ahead = [1.0]
    paced = realtime.Paced(clock, clock.pause, lambda: ahead[0])
    work(paced, clock, 0.01, turns=1000)
    before = clock.paused
    assert before > 0
    ahead[0] = 0.0
    work(paced, clock, 0.01, turns=1000)
    assert clock.paused == before


@pytest.mark.parametrize("turn", [0.0005, 0.01, 0.5])
def test_work_without_end_gets_its_share_of_a_cpu_and_no_more(paced: realtime.Paced, clock: Clock, turn: float) -> None:
    turns = round(100 / turn)
    work(paced, clock, turn, turns=turns)
    used, went_by = turn * turns, clock.now
    assert used <= realtime.BURST_SECONDS + went_by * realtime.SHARE + turn
    assert used >= went_by * realtime.SHARE - turn


def test_no_pause_is_longer_than_the_turn_before_it_accounts_for(paced: realtime.Paced, clock: Clock) -> None:
    work(paced, clock, 0.01, turns=1000)
    before = clock.paused
    work(paced, clock, 0.01)
    assert clock.paused - before <= 0.01 / realtime.SHARE


def test_waiting_earns_cpu_time_for_later_up_to_the_burst(
    paced: realtime.Paced, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    def wait(_: selectors.EpollSelector, timeout: float | None) -> list[tuple[selectors.SelectorKey, int]]:
        clock.now += timeout or 0
        return []

    work(paced, clock, 0.01, turns=1000)
    with monkeypatch.context() as idle:
        idle.setattr(selectors.EpollSelector, "select", wait)
        paced.select(1e6)
    before = clock.paused
    work(paced, clock, 0.01, turns=round(realtime.BURST_SECONDS / 0.01))
    assert clock.paused - before <= 0.01
