"""Runs the agent before all ordinary processes of a busy CPU, and bounds how much of the CPU it takes.

On a busy CPU a pod waits according to its CPU request. A realtime thread needs no request and waits for no ordinary
thread (sched(7)). The agent gives up the capability for it, CAP_SYS_NICE, right after use, before it reads anything.
From then on the process has no capability. Two bounds hold in return:

- At once: the kernel counts how long the thread runs without waiting (RLIMIT_RTTIME, setrlimit(2)). After
  `ONCE_SECONDS` it becomes an ordinary thread until the process restarts. If it cannot do even that, it is killed.
- In the long run: it pauses between turns of the event loop (`Paced`). Endless work for the agent then does not take
  the CPU from others.

Threads that it starts to read disks are also realtime threads: an ordinary thread that loses the CPU while it has the
interpreter's lock would keep the agent waiting. The kernel counts for each of them separately.
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
"""The lowest one: before ordinary threads, after all other realtime threads."""
ONCE_SECONDS: Final = (1.0, 3.0)
"""CPU time without waiting: until it is an ordinary thread, and until the kernel kills the process."""
SHARE: Final = 0.25
"""The share of one CPU in the long run."""
BURST_SECONDS: Final = 1.0
"""CPU time beyond that share: enough for a start on a full node, or hundreds of repairs at once."""
BREATH_SECONDS: Final = (0.5, 0.001)
"""After the first number of CPU seconds it always waits for the second. Otherwise the kernel would count endless short
turns within the burst as one that keeps the CPU."""
_CAPABILITIES: Final = struct.Struct("=II")
"""struct __user_cap_header_struct (include/uapi/linux/capability.h)."""
_VERSION: Final = 0x20080522
_NO_CAPABILITIES: Final = bytes(2 * 3 * 4)
"""Two struct __user_cap_data_struct: none effective, permitted or inheritable."""


def begin(once: tuple[float, float] = ONCE_SECONDS) -> bool:
    """Make the calling thread a realtime thread, and give up all capabilities. Return whether the kernel allowed it.

    Call it before starting other threads, each of which has its own capabilities.
    """
    signal.signal(signal.SIGXCPU, _step_down)
    soft, hard = (round(seconds * 1e6) for seconds in once)
    try:
        resource.setrlimit(resource.RLIMIT_RTTIME, (soft, hard))
        os.sched_setscheduler(0, os.SCHED_FIFO, os.sched_param(PRIORITY))
    except (OSError, ValueError) as error:
        log.warning(
            "no realtime priority (%s): on a busy CPU the CPU request of the agent's pod bounds its repairs. It takes"
            " CAP_SYS_NICE, and a kernel that grants it to processes in cgroups (without CONFIG_RT_GROUP_SCHED)",
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
    """Handle SIGXCPU: until all threads have stepped down, no ordinary thread gets the CPU."""
    for thread in os.listdir("/proc/self/task"):  # noqa: PTH208 names only
        with contextlib.suppress(ProcessLookupError):  # it has just ended
            os.sched_setscheduler(int(thread), os.SCHED_OTHER, os.sched_param(0))
    REALTIME.set(0)
    log.warning("kept a CPU for %.1f s at once: an ordinary process until it is started again", ONCE_SECONDS[0])


class Paced(selectors.EpollSelector):
    """The selector of an event loop that pauses between turns that took more than their share of a CPU.

    A turn is measured as elapsed time: no ordinary thread runs in between.
    """

    def __init__(
        self,
        clock: Callable[[], float] = time.monotonic,
        pause: Callable[[float], None] = time.sleep,
        ahead: Callable[[], float] = REALTIME.value,
    ) -> None:
        """`clock` in seconds; `pause` takes seconds; `ahead` returns 0 once the thread is an ordinary one.

        From then on it does not pause: the scheduler shares the CPU, and turns last as long as others run.
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
        """Wait for events, after a pause if one is due. Pauses lose no event."""
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
