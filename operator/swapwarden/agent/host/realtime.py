"""Runs the agent before all ordinary processes of a busy CPU, with bounds on what it may take of it.

What a pod waits for on a busy CPU follows from what it reserves. A realtime thread reserves nothing, and waits for no
ordinary one (sched(7)). The right to become one, CAP_SYS_NICE, is given up as soon as it was used, before anything is
read: from then on the process has no capability, as without it. In return it is bounded in what it takes of a CPU:

- At once: the kernel counts how long the thread runs without waiting for anything (RLIMIT_RTTIME, setrlimit(2)). After
  `ONCE_SECONDS` it becomes an ordinary one, until the process is started again; one that can't even do that is killed.
- In the long run: between turns of the event loop it pauses (`Paced`), so that whoever gives the agent work without end
  does not take the CPU from others through it.

Threads that it begins, which look at disks, are realtime ones, too: an ordinary one that loses the CPU while it has the
interpreter's lock keeps the agent waiting for as long as it waits itself. The kernel counts for each of them by itself.
"""

from __future__ import annotations

import contextlib
import ctypes
import logging
import os
import resource
import selectors
import signal
import struct
import time
from collections.abc import Callable
from typing import Final

from swapwarden.telemetry import metrics

log = logging.getLogger(__name__)

REALTIME = metrics.gauge(
    "swapwarden_agent_realtime", "1 while the agent runs before all ordinary processes (chart: agent.realtime)."
)

PRIORITY: Final = 1
"""The least there is: before ordinary threads, after all other realtime ones."""
ONCE_SECONDS: Final = (1.0, 3.0)
"""Of CPU time without waiting for anything: until it is an ordinary thread, and until the kernel ends the process."""
SHARE: Final = 0.25
"""Of one CPU, in the long run."""
BURST_SECONDS: Final = 1.0
"""Of CPU time, beyond that share: what a start on a full node takes, and hundreds of repairs at once."""
BREATH_SECONDS: Final = (0.5, 0.001)
"""After so much CPU time it waits for so long in any case. Else turns without end, of which each is short and all are
within the burst, would count as one that keeps the CPU at once."""
_CAPABILITIES: Final = struct.Struct("=II")
"""struct __user_cap_header_struct (include/uapi/linux/capability.h)."""
_VERSION: Final = 0x20080522
_NO_CAPABILITIES: Final = bytes(2 * 3 * 4)
"""Two struct __user_cap_data_struct: none effective, permitted or inheritable."""


def begin(once: tuple[float, float] = ONCE_SECONDS) -> bool:
    """Ask for it, for the thread that calls, and give up all capabilities; whether the kernel gave it.

    Call it before there are other threads, each of which has capabilities of its own.
    """
    signal.signal(signal.SIGXCPU, _step_down)
    soft, hard = (round(seconds * 1e6) for seconds in once)
    try:
        resource.setrlimit(resource.RLIMIT_RTTIME, (soft, hard))
        os.sched_setscheduler(0, os.SCHED_FIFO, os.sched_param(PRIORITY))
    except (OSError, ValueError) as error:
        log.warning(
            "no realtime priority (%s): on a busy CPU repairs wait as long as the pod's CPU request has them wait. It"
            " takes CAP_SYS_NICE, and a kernel that gives it to what is in cgroups (without CONFIG_RT_GROUP_SCHED)",
            error,
        )
        return False
    finally:
        _give_up()
    REALTIME.set(1)
    return True


def _give_up() -> None:
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.capset(_CAPABILITIES.pack(_VERSION, 0), _NO_CAPABILITIES) != 0:  # less is always granted
        log.warning("capabilities are kept (%s)", os.strerror(ctypes.get_errno()))


def _step_down(_number: int, _frame: object) -> None:
    """Take SIGXCPU: until this is done for all threads no ordinary one gets the CPU."""
    for thread in os.listdir("/proc/self/task"):  # noqa: PTH208 names only
        with contextlib.suppress(ProcessLookupError):  # it has just ended
            os.sched_setscheduler(int(thread), os.SCHED_OTHER, os.sched_param(0))
    REALTIME.set(0)
    log.warning("kept a CPU for %.1f s at once: an ordinary process until it is started again", ONCE_SECONDS[0])


class Paced(selectors.EpollSelector):
    """Of an event loop that, between its turns, pauses when these took more than their share of a CPU.

    What a turn takes is measured as time that went by: nothing ordinary runs in between.
    """

    def __init__(
        self,
        clock: Callable[[], float] = time.monotonic,
        pause: Callable[[float], None] = time.sleep,
        ahead: Callable[[], float] = REALTIME.value,
    ) -> None:
        """`clock` in seconds; `pause` takes seconds; `ahead` gives 0 once the thread is an ordinary one.

        From then on it does not pause: the CPU is the scheduler's to share, and turns last as long as others run.
        """
        super().__init__()
        self._clock = clock
        self._pause = pause
        self._ahead = ahead
        self._left = BURST_SECONDS
        """CPU time that it may use at once."""
        self._unpaused = 0.0
        """CPU time since the last pause."""
        self._at = self._woken = clock()

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        """As the one above. Pauses count as waiting: nothing is lost, only heard of later."""
        now = self._clock()
        turn = now - self._woken
        self._left = min(BURST_SECONDS, self._left + (now - self._at) * SHARE) - turn
        self._unpaused += turn
        self._at = now
        seconds = max(0.0, -self._left / SHARE)
        after, breath = BREATH_SECONDS
        if self._unpaused >= after:
            seconds = max(seconds, breath)
        if seconds > 0:
            self._unpaused = 0.0
            if self._ahead():
                self._pause(seconds)
        ready = super().select(timeout)
        self._woken = self._clock()
        return ready
